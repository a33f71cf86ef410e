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

// Streams that wait for the NULL stream keep this order anyway. Any other stream is made to wait for the newest such
// copy before it gets work: natively the copy would be over by then. No stream waits for a copy that was sent after the
// stream's work.
//
// At most one instance in a process, because a driver function has no argument to pass it in. All functions run on the
// executor's thread unless stated; work that other threads give to streams is the server's own, and waits for no copy.
class UploadOrder {
 public:
  UploadOrder() = default;
  ~UploadOrder();
  UploadOrder(const UploadOrder&) = delete;
  UploadOrder& operator=(const UploadOrder&) = delete;

  // Wraps those functions of the table that give work to streams (`gives_work` in protocol/api). The wrappers call the
  // functions that the table had before. Precondition: nobody uses the table yet.
  void put_before(DriverTable& table);
  const DriverTable& driver() const { return driver_; }

  // Records that the client's program regards a copy as done; `done` reports the copy's end. `keeper` keeps the event
  // alive.
  void told(CUevent done, std::shared_ptr<const void> keeper);
  // Exempts a stream of the server itself, which must wait for no other stream, until its context ends.
  void leave_out(CUstream stream) { left_out_.push_back(stream); }
  // Called before a stream is destroyed. The driver may give its handle to another stream.
  void ends_stream(CUstream stream) { waited_.erase(stream); }
  // Called before the events and streams of some context are destroyed.
  void context_ends();

  // Returns whether there is such a copy. Any thread.
  bool pending() const { return pending_.load(std::memory_order_relaxed); }
  // Called before the stream gets work.
  void before_work(CUstream stream);

 private:
  void forget();

  // The wrapped functions.
  DriverTable driver_;
  // Written by the executor; for other threads it is only a hint, hence relaxed.
  std::atomic<bool> pending_{false};
  // Other threads read it, and have other ids, so relaxed.
  std::atomic<std::thread::id> executor_{};
  CUevent newest_ = nullptr;
  std::shared_ptr<const void> keeper_;
  uint64_t copies_ = 0;
  // The value of copies_ up to which each stream waits. Used while copies are pending.
  std::unordered_map<CUstream, uint64_t> waited_;
  std::vector<CUstream> left_out_;
};

}  // namespace gpuwire::server
