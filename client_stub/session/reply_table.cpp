#include "client_stub/session/reply_table.hpp"

#include <new>

namespace gpuwire::client {

PendingCall* ReplyTable::add(uint64_t sequence, const BulkSink& sink) try {
  if (free_.empty()) {
    // free_ reserves room for every entry, because remove() must not fail.
    free_.reserve(all_.size() + 1);
    all_.push_back(std::make_unique<PendingCall>());
    free_.push_back(all_.back().get());
  }
  PendingCall* call = free_.back();
  free_.pop_back();
  call->sequence = sequence;
  call->sink = sink;
  call->bytes_end = call->reply_bytes = 0;
  call->external = call->filling = call->arrived = call->asleep = call->aside = call->left = call->lacks_bytes = false;
  call->thread = pthread_self();
  call->reply.clear();
  calls_.append(call);
  ++size_;
  return call;
} catch (const std::bad_alloc&) {
  return nullptr;
}

PendingCall* ReplyTable::find(uint64_t sequence) {
  PendingCall* call = calls_.find(sequence);
  return call ? call : aside_.find(sequence);
}

void ReplyTable::remove(PendingCall* call) {
  list_of(call).take_out(call);
  --size_;
  free_.push_back(call);
}

void ReplyTable::set_aside(PendingCall* call, bool aside) {
  list_of(call).take_out(call);
  call->aside = aside;
  list_of(call).append(call);
}

void ReplyTable::List::append(PendingCall* call) {
  call->older = newest;
  call->newer = nullptr;
  (newest ? newest->newer : oldest) = call;
  newest = call;
}

void ReplyTable::List::take_out(PendingCall* call) {
  (call->older ? call->older->newer : oldest) = call->newer;
  (call->newer ? call->newer->older : newest) = call->older;
}

PendingCall* ReplyTable::List::find(uint64_t sequence) const {
  for (PendingCall* call = oldest; call; call = call->newer)
    if (call->sequence == sequence) return call;
  return nullptr;
}

}  // namespace gpuwire::client
