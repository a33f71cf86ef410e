// Closes descriptors whose close(2) may wait for another process.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <thread>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// Closes descriptors on a separate thread, which starts with the first descriptor: close(2) of a socket with SO_LINGER,
// or of a file on a user-space file system, blocks for as long as another process wants. One thread passes descriptors
// to this object; mutex_ is a leaf.
class DescriptorCloser {
 public:
  static constexpr size_t kWaitingMax = 1024;
  static constexpr int kEndMs = 500;

  DescriptorCloser() = default;
  DescriptorCloser(const DescriptorCloser&) = delete;
  DescriptorCloser& operator=(const DescriptorCloser&) = delete;
  // Waits kEndMs for the descriptors that are being closed. A thread that is blocked for longer continues alone: its
  // wait may never end, it uses nothing of this object, and it ends with the process.
  ~DescriptorCloser();

  // Turns off the socket's SO_LINGER first. If kWaitingMax descriptors wait, or without a thread, the calling thread
  // closes the descriptor.
  void close(OwnedDescriptor descriptor);

 private:
  struct Shared {
    Mutex mutex;
    Condition changed;
    std::deque<OwnedDescriptor> waiting GUARDED_BY(mutex);
    bool ending GUARDED_BY(mutex) = false, ended GUARDED_BY(mutex) = false;
  };
  static void run(const std::shared_ptr<Shared>& shared);

  // The state of thread_, if it was started.
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace gpuwire::server
