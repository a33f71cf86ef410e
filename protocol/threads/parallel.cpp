#include "protocol/threads/parallel.hpp"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <exception>

#include "protocol/threads/cores.hpp"

namespace gpuwire {

Parallel::~Parallel() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Parallel::start() noexcept {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // inherited from the creating thread
  try {
    threads_.reserve(helpers_);
    while (threads_.size() < helpers_) threads_.emplace_back([this] { help(); });
  } catch (const std::exception&) {  // those that there are
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Parallel::take_pieces(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    size_t piece = next_++;
    const auto* work = work_;
    lock.unlock();
    (*work)(piece);
    lock.lock();
    if (--unfinished_ == 0) done_.notify_all();
  }
}

void Parallel::help() noexcept {
  pthread_setname_np(pthread_self(), "gpuwire-digest");
  std::unique_lock lock(mutex_);
  while (!ending_) {
    take_pieces(lock);
    if (!ending_) changed_.wait(lock);
  }
}

void Parallel::run(size_t count, const std::function<void(size_t)>& work) noexcept {
  if (count > 1 && threads_.empty() && helpers_) start();
  std::unique_lock lock(mutex_);
  work_ = &work;
  next_ = 0;
  count_ = unfinished_ = count;
  if (count > 1) changed_.notify_all();
  take_pieces(lock);
  done_.wait(lock, [this] { return unfinished_ == 0; });
  work_ = nullptr;
  count_ = next_ = 0;
}

unsigned helpers_here(unsigned most) noexcept { return std::min(most, usable_cores() / 2); }

}  // namespace gpuwire
