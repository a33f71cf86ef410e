// Copies from the device whose bytes have not left yet: they wait in staging for their event, and leave as replies or
// CopyData notices.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "server/replay/stream/event_pool.hpp"
#include "server/replay/copy/staging.hpp"

namespace gpuwire::server {

class Replay;

struct CopyFromDeviceState {
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  bool called = false;  // answered by a reply; else by a CopyData notice
  CUstream stream = nullptr;
  StagingBlock block;
  PooledEvent done;
};

// The executor adds; any thread delivers. A function that synchronises with the device calls deliver_finished_work()
// before it answers: all work that the synchronisation covers has completed by then, so its data leave first, and the
// client finds them in place.
class CopyBack {
 public:
  explicit CopyBack(Replay& replay) : replay_(replay) {}

  // Executor. The copy and its event are on the stream.
  void add(CUcontext context, CopyFromDeviceState copy);
  // Sends every copy whose event has completed, oldest first, and no reply before a copy that it covers, on whatever
  // stream that is; waits for a copy that another thread is sending.
  void deliver_finished();
  // Executor, at the end of the session: drops unsent copies. Nothing uses the device any more.
  void clear();
  size_t pending() const { return count_.load(std::memory_order_acquire); }

 private:
  Replay& replay_;
  std::mutex delivering_;  // taken before list_; held while sending, so that no one overtakes a copy on its way out
  std::mutex list_;
  std::deque<std::shared_ptr<CopyFromDeviceState>> copies_;
  // Size of copies_, changed under list_: read without it to skip both locks. Acquire/release pairs add() and
  // deliver_finished(): the executor's own additions are always seen by it, and another thread that must see one was
  // started by it afterwards.
  std::atomic<size_t> count_{0};
};

// Before each answer and notice that reports completed work, in whichever form it was asked: all data that the work
// brings to the program leave first, those of copies and those that the device wrote to host regions. Any thread.
void deliver_finished_work(Replay& replay);

// Sends one finished copy: the bytes, or the error in their place. Its block is given away. Any thread.
void send_copy(Replay& replay, CopyFromDeviceState& copy, CUresult result);

}  // namespace gpuwire::server
