#include "server/base/descriptor_closer.hpp"

#include <chrono>
#include <exception>
#include <utility>

#include <sys/socket.h>

namespace gpuwire::server {

DescriptorCloser::~DescriptorCloser() {
  if (!thread_.joinable()) return;
  MutexLock lock(shared_->mutex);
  shared_->ending = true;
  shared_->changed.notify_all();
  const bool ended = shared_->changed.wait_for(lock.native(), std::chrono::milliseconds(kEndMs),
                                               [this]() REQUIRES(shared_->mutex) { return shared_->ended; });
  lock.unlock();
  if (ended) thread_.join();
  else thread_.detach();
}

void DescriptorCloser::close(OwnedDescriptor descriptor) {
  if (!descriptor) return;
  // Another process with a copy can set it again, so the thread closes it in any case.
  const linger no_wait{0, 0};
  ::setsockopt(descriptor.get(), SOL_SOCKET, SO_LINGER, &no_wait, sizeof no_wait);
  try {
    if (!thread_.joinable()) {
      shared_ = std::make_shared<Shared>();
      thread_ = std::thread([shared = shared_] { run(shared); });
    }
    MutexLock lock(shared_->mutex);
    if (shared_->waiting.size() < kWaitingMax) shared_->waiting.push_back(std::move(descriptor));
  } catch (const std::exception&) {  // no memory or no thread: close it here
    return;
  }
  shared_->changed.notify_all();
}

void DescriptorCloser::run(const std::shared_ptr<Shared>& shared) {
  MutexLock lock(shared->mutex);
  for (;;) {
    shared->changed.wait(lock.native(),
                         [&]() REQUIRES(shared->mutex) { return shared->ending || !shared->waiting.empty(); });
    if (shared->waiting.empty()) break;
    {
      OwnedDescriptor next = std::move(shared->waiting.front());
      shared->waiting.pop_front();
      lock.unlock();
      next.reset();
    }
    lock.lock();
  }
  shared->ended = true;
  shared->changed.notify_all();
}

}  // namespace gpuwire::server
