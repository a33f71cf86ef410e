// Copies from the device whose bytes are not sent yet: the bytes stay in staging until the copy's event completes, and
// are sent as replies or CopyData notices.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "protocol/threads/mutex.hpp"
#include "server/replay/completion/event_pool.hpp"
#include "server/replay/copy/staging.hpp"

namespace gpuwire::server {

class Replay;

struct CopyFromDeviceState {
  uint64_t sequence = 0;
  uint64_t bytes = 0;
  // The copy is answered by a reply, else by a CopyData notice.
  bool called = false;
  CUstream stream = nullptr;
  StagingBlock block;
  PooledEvent done;
  // Set by add().
  CUcontext context = nullptr;
};

// The executor adds copies; any thread delivers them. A function that synchronises with the device calls
// deliver_finished_work() before it answers: all work that the synchronisation covers has completed by then, so the
// work's data are sent first, and the client finds them in place.
class CopyBack {
 public:
  explicit CopyBack(Replay& replay) : replay_(replay) {}

  // Executor. The copy and its event are on the stream.
  void add(CUcontext context, CopyFromDeviceState copy);
  // Sends every copy whose event has completed, oldest first. No reply is sent before a copy that it covers, whatever
  // the stream. Waits for a copy that another thread is sending.
  void deliver_finished();
  // The same on the watcher's thread, which calls `delivered` afterwards: for a thread that may not call the driver.
  // Returns false if no copy is pending, or the session ends; `delivered` is then never called.
  bool deliver_soon(std::function<void()> delivered);
  // Executor, at the end of the session: drops unsent copies. Nothing uses the device any more.
  void clear();
  size_t pending() const { return count_.load(std::memory_order_acquire); }

 private:
  Replay& replay_;
  // Taken before list_, and held while sending, so that no thread overtakes a copy that is being sent.
  Mutex delivering_;
  Mutex list_;
  std::deque<std::shared_ptr<CopyFromDeviceState>> copies_ GUARDED_BY(list_);
  // Size of copies_, changed under list_: read without it to skip both locks. Acquire/release pairs add() and
  // deliver_finished(): the executor always sees its own additions, and it starts any other thread that must see an
  // addition after making it.
  std::atomic<size_t> count_{0};
};

// Sends all data that completed work brings to the program: those of copies and those that the device wrote to host
// regions. Called before each reply and notice that reports completed work. Any thread.
void deliver_finished_work(Replay& replay);

// Sends one finished copy: the bytes, or the error in their place. Moves its block away. Any thread.
void send_copy(Replay& replay, CopyFromDeviceState& copy, CUresult result);

}  // namespace gpuwire::server
