// Keeps a promise that the client makes early: a blocking copy to the device has returned, so later work of any stream
// finds its bytes.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "server/driver_table.hpp"

namespace gpuwire::server {

// Streams that wait for the NULL stream do so anyway. A stream that does not is made to wait for the newest such copy
// before it is given work: natively the copy was over by then. No stream waits for a copy that was sent behind its
// work.
//
// At most one in a process: a driver function has no argument to pass it in. All of it on the executor's thread; work
// that other threads give to streams is the server's own, and waits for no copy.
class UploadOrder {
 public:
  UploadOrder() = default;
  ~UploadOrder();
  UploadOrder(const UploadOrder&) = delete;
  UploadOrder& operator=(const UploadOrder&) = delete;

  // Puts it before the functions of the table that give work to streams (`gives_work` in protocol/api), whose present
  // ones it calls. Before the table is used.
  void put_before(DriverTable& table);
  const DriverTable& driver() const { return driver_; }

  // The client's program regards a copy as done whose end this event reports. `keeper`: its holder keeps the event.
  void told(CUevent done, std::shared_ptr<const void> keeper);
  // A stream of the server's own, which is beside all others by its purpose; until it ends with its context.
  void leave_out(CUstream stream) { left_out_.push_back(stream); }
  // The events and streams of some context are about to go.
  void context_ends();

  // Is there such a copy at all? Any thread.
  bool pending() const { return pending_.load(std::memory_order_relaxed); }
  // The stream is about to be given work.
  void before_work(CUstream stream);

 private:
  void forget();

  DriverTable driver_;  // behind it
  // Written by the executor, for which alone it is more than a hint: relaxed.
  std::atomic<bool> pending_{false};
  std::atomic<std::thread::id> executor_{};  // read by other threads, which have other ids: relaxed
  CUevent newest_ = nullptr;
  std::shared_ptr<const void> keeper_;
  uint64_t copies_ = 0;
  std::unordered_map<CUstream, uint64_t> waited_;  // how many of copies_ each stream waits for; while there are pending
  std::vector<CUstream> left_out_;
};

}  // namespace gpuwire::server
