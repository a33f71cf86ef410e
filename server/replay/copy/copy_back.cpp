#include "server/replay/copy/copy_back.hpp"

#include <algorithm>
#include <vector>

#include "protocol/wire/limits.hpp"
#include "server/replay/completion/completion.hpp"
#include "server/replay/completion/polling.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_notices.hpp"

namespace gpuwire::server {
namespace {

constexpr size_t kCopiedReplyBytesMax = 16u << 10;

}  // namespace

void deliver_finished_work(Replay& replay) {
  replay.state().copy_back().deliver_finished();
  replay.state().host_regions().deliver();
}

void send_copy(Replay& replay, CopyFromDeviceState& copy, CUresult result) {
  std::span<const std::byte> bulk;
  if (result == CUDA_SUCCESS && copy.bytes) bulk = {copy.block.data(), copy.bytes};
  // The outbox copies small data, so their staging is free at once.
  std::shared_ptr<const void> keeper;
  if (bulk.size() > kCopiedReplyBytesMax) keeper = std::make_shared<StagingBlock>(std::move(copy.block));
  if (copy.called) {
    replay.state().host_regions().deliver();
    return send_result(replay, copy.sequence, result, bulk, std::move(keeper));
  }
  notify::copy_data(replay.outbox(), {.sequence = copy.sequence, .result = result, .last = true}, bulk,
                    std::move(keeper));
}

void CopyBack::add(CUcontext context, CopyFromDeviceState copy) {
  copy.context = context;
  auto shared = std::make_shared<CopyFromDeviceState>(std::move(copy));
  CUevent event = shared->done.get();
  {
    MutexLock lock(list_);
    copies_.push_back(shared);
    count_.store(copies_.size(), std::memory_order_release);
  }
  // The callback holds the copy, so its event outlives the watch even when another thread delivers it first.
  if (replay_.watcher().watch(context, event, [this, shared](CUresult) { deliver_finished(); })) return;
  wait_for_event(replay_.driver(), event);
  deliver_finished();
}

void CopyBack::deliver_finished() {
  if (count_.load(std::memory_order_acquire) == 0) return;
  MutexLock delivering(delivering_);
  struct Candidate {
    std::shared_ptr<CopyFromDeviceState> copy;
    CUresult result = CUDA_ERROR_NOT_READY;
  };
  std::vector<Candidate> candidates;
  {
    MutexLock lock(list_);
    for (auto& copy : copies_) candidates.push_back({copy});
  }
  // Returns whether the poll found a finished reply behind copies that were unfinished when they were polled. The reply
  // may cover these copies: then they are done by now, and have to be sent before it.
  const auto poll = [&] {
    std::vector<CUstream> busy;  // streams with an unfinished copy: their later copies are unfinished, too
    bool again = false;
    for (Candidate& each : candidates) {
      if (each.result != CUDA_ERROR_NOT_READY) continue;
      if (std::find(busy.begin(), busy.end(), each.copy->stream) != busy.end()) continue;
      each.result = replay_.driver().cuEventQuery(each.copy->done.get());
      if (each.result == CUDA_ERROR_NOT_READY) {
        busy.push_back(each.copy->stream);
      } else {
        again = again || (each.copy->called && !busy.empty());
      }
    }
    return again;
  };
  while (poll()) {}
  for (auto& [copy, result] : candidates) {
    if (result == CUDA_ERROR_NOT_READY) continue;
    if (copy->called) result = settle(replay_, copy->done.get(), result);
    send_copy(replay_, *copy, result);
    copy->block = {};
    MutexLock lock(list_);
    std::erase(copies_, copy);
    count_.store(copies_.size(), std::memory_order_release);
  }
}

bool CopyBack::deliver_soon(std::function<void()> delivered) {
  CUcontext context = nullptr;
  {
    MutexLock lock(list_);
    if (copies_.empty()) return false;
    context = copies_.front()->context;
  }
  return replay_.watcher().watch(context, nullptr, [this, delivered = std::move(delivered)](CUresult) {
    deliver_finished();
    delivered();
  });
}

void CopyBack::clear() {
  MutexLock delivering(delivering_);
  MutexLock lock(list_);
  copies_.clear();
  count_.store(0, std::memory_order_release);
}

}  // namespace gpuwire::server
