#include "client_stub/session/session_thread.hpp"

#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <ctime>

#include "client_stub/session/connected_session.hpp"

namespace gpuwire::client {

namespace {

// The time for which a posted frame waits for further ones.
constexpr long kTickNs = 25'000;
// Idle ticks before the thread sleeps; the next posted call then costs a wake-up.
constexpr unsigned kQuietTicksMax = 40;
constexpr size_t kStackBytes = 1024 * 1024;

}  // namespace

bool SessionThread::start() noexcept {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return false;
  pthread_attr_setstacksize(&attributes, kStackBytes);
  // The program's threads handle the program's signals. Faults are the exception: the thread copies from and to memory
  // of the program, whose handler may repair it. The mask is inherited from the creating thread.
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool created = pthread_create(&thread_, &attributes, enter, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (created) pthread_setname_np(thread_, "gpuwire-session");
  started_.store(created, std::memory_order_release);
  return created;
}

bool SessionThread::stop(int wait_ms) noexcept {
  if (!started_.load(std::memory_order_acquire)) return true;
  if (pthread_equal(thread_, pthread_self())) return true;
  stopping_.store(true, std::memory_order_release);
  session_.link_.wake();
  if (wait_ms >= 0) {
    MutexLock lock(mutex_);
    if (!changed_.wait_for(lock.native(), std::chrono::milliseconds(wait_ms),
                           [&]() REQUIRES(mutex_) { return finished_; }))
      return false;
  }
  pthread_join(thread_, nullptr);
  started_.store(false, std::memory_order_release);
  return true;
}

void* SessionThread::enter(void* self) {
  // Without this slack the kernel rounds a tick of 25 us up to 75 us.
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  auto& thread = *static_cast<SessionThread*>(self);
  thread.run();
  MutexLock lock(thread.mutex_);
  thread.finished_ = true;
  thread.changed_.notify_all();
  return nullptr;
}

void SessionThread::run() {
  unsigned quiet = 0;
  while (!stopping_.load(std::memory_order_acquire) && !session_.ended()) {
    uint64_t before = session_.link_.bytes_sent();
    session_.link_.pump();
    bool received = session_.receive_if_free();
    bool busy = received || session_.link_.bytes_sent() != before;
    quiet = busy ? 0 : quiet + 1;
    session_.poll_heartbeat();
    session_.poll_progress();
    const std::chrono::nanoseconds rest = session_.notices_.upkeep(std::chrono::steady_clock::now());
    if (quiet < kQuietTicksMax) {
      timespec tick{0, kTickNs};
      clock_nanosleep(CLOCK_MONOTONIC, 0, &tick, nullptr);
    } else {
      session_.thread_sleep(rest);
    }
  }
}

}  // namespace gpuwire::client
