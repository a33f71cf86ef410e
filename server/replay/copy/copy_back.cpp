#include "server/replay/copy/copy_back.hpp"

#include <algorithm>
#include <vector>

#include "protocol/wire/limits.hpp"
#include "server/replay/call/completion.hpp"
#include "server/replay/call/polling.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_notices.hpp"

namespace gpuwire::server {

void send_copy(Replay& replay, CopyFromDeviceState& copy, CUresult result) {
  std::span<const std::byte> bulk;
  if (result == CUDA_SUCCESS && copy.bytes) bulk = {copy.block.data(), copy.bytes};
  // What is small is copied for the way, and its staging is free at once.
  std::shared_ptr<const void> keeper;
  if (bulk.size() > wire::kPostedBulkBytesMax) keeper = std::make_shared<StagingBlock>(std::move(copy.block));
  if (copy.called) {
    replay.state().host_regions().deliver();
    return send_result(replay, copy.sequence, result, bulk, std::move(keeper));
  }
  notify::copy_data(replay.outbox(), {.sequence = copy.sequence, .result = result, .last = true}, bulk,
                    std::move(keeper));
}

void CopyBack::add(CUcontext context, CopyFromDeviceState copy) {
  auto shared = std::make_shared<CopyFromDeviceState>(std::move(copy));
  CUevent event = shared->done.get();
  {
    std::lock_guard lock(list_);
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
  std::lock_guard delivering(delivering_);
  std::vector<std::shared_ptr<CopyFromDeviceState>> candidates;
  {
    std::lock_guard lock(list_);
    candidates.assign(copies_.begin(), copies_.end());
  }
  std::vector<CUstream> busy;  // the rest of such a stream is not done either
  for (auto& copy : candidates) {
    if (std::find(busy.begin(), busy.end(), copy->stream) != busy.end()) continue;
    CUresult result = replay_.driver().cuEventQuery(copy->done.get());
    if (result == CUDA_ERROR_NOT_READY) {
      busy.push_back(copy->stream);
      continue;
    }
    if (copy->called) result = settle(replay_, copy->done.get(), result);
    send_copy(replay_, *copy, result);
    copy->block = {};
    std::lock_guard lock(list_);
    std::erase(copies_, copy);
    count_.store(copies_.size(), std::memory_order_release);
  }
}

void CopyBack::clear() {
  std::lock_guard delivering(delivering_);
  std::lock_guard lock(list_);
  copies_.clear();
  count_.store(0, std::memory_order_release);
}

}  // namespace gpuwire::server
