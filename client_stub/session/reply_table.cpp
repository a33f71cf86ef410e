#include "client_stub/session/reply_table.hpp"

#include <new>

namespace gpuwire::client {

PendingCall* ReplyTable::add(uint64_t sequence, const BulkSink& sink) try {
  if (free_.empty()) {
    // Room for every entry in free_ first: remove() must not fail.
    free_.reserve(all_.size() + 1);
    all_.push_back(std::make_unique<PendingCall>());
    free_.push_back(all_.back().get());
  }
  PendingCall* call = free_.back();
  free_.pop_back();
  call->sequence = sequence;
  call->sink = sink;
  call->bytes_end = call->reply_bytes = 0;
  call->external = call->filling = call->arrived = call->asleep = false;
  call->reply.clear();
  call->older = newest_;
  call->newer = nullptr;
  (newest_ ? newest_->newer : oldest_) = call;
  newest_ = call;
  ++size_;
  return call;
} catch (const std::bad_alloc&) {
  return nullptr;
}

PendingCall* ReplyTable::find(uint64_t sequence) {
  for (PendingCall* call = oldest_; call; call = call->newer)
    if (call->sequence == sequence) return call;
  return nullptr;
}

void ReplyTable::remove(PendingCall* call) {
  (call->older ? call->older->newer : oldest_) = call->newer;
  (call->newer ? call->newer->older : newest_) = call->older;
  --size_;
  free_.push_back(call);
}

}  // namespace gpuwire::client
