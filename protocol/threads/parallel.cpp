#include "protocol/threads/parallel.hpp"

#include <pthread.h>

#include <algorithm>

#include "protocol/threads/cores.hpp"
#include "protocol/threads/helper_threads.hpp"
#include "protocol/threads/polling.hpp"

namespace gpuwire {

Parallel::~Parallel() {
  {
    MutexLock lock(mutex_);
    ending_ = true;
    left_.store(1, std::memory_order_relaxed);  // makes all helpers stop polling
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Parallel::take_pieces() {
  while (next_ < count_) {
    size_t piece = next_++;
    const auto* work = work_;
    left_.store(count_ - next_, std::memory_order_relaxed);
    mutex_.unlock();
    (*work)(piece);
    mutex_.lock();
    if (unfinished_.fetch_sub(1, std::memory_order_relaxed) == 1) done_.notify_all();
  }
}

template <class Done>
void Parallel::poll(Done&& done) {
  mutex_.unlock();
  const auto begun = std::chrono::steady_clock::now();
  while (!done()) {
    const auto spent = std::chrono::steady_clock::now() - begun;
    if (spent >= poll_) break;
    relax(spent);
  }
  mutex_.lock();
}

void Parallel::help() noexcept {
  pthread_setname_np(pthread_self(), "gpuwire-digest");
  MutexLock lock(mutex_);
  while (!ending_) {
    take_pieces();
    if (ending_) return;
    poll([this] { return left_.load(std::memory_order_relaxed) != 0; });
    if (!ending_ && next_ == count_) changed_.wait(lock.native());
  }
}

void Parallel::run(size_t count, const std::function<void(size_t)>& work) noexcept {
  if (count > 1 && threads_.empty() && helpers_) threads_ = start_helper_threads(helpers_, [this] { help(); });
  MutexLock lock(mutex_);
  work_ = &work;
  next_ = 0;
  count_ = count;
  unfinished_.store(count, std::memory_order_relaxed);
  left_.store(count, std::memory_order_relaxed);
  if (count > 1) changed_.notify_all();
  take_pieces();
  auto done = [this] { return unfinished_.load(std::memory_order_relaxed) == 0; };
  if (!done()) poll(done);
  done_.wait(lock.native(), done);
  work_ = nullptr;
  count_ = next_ = 0;
}

unsigned helpers_here(unsigned most) noexcept { return std::min(most, usable_cores() / 2); }

}  // namespace gpuwire
