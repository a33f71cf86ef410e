// The C library's thread calls, for fibers. Definitions in the program replace the library's, for libstdc++ too.
// Mutexes have the library's own layout, so that its initialisers work.
#include <cerrno>
#include <cstdarg>
#include <cstdint>

#include <dlfcn.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "test/simulation/fibers.hpp"

namespace fibers = gpuwire::simulation::fibers;

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

uint64_t ns_of(const timespec& time) { return uint64_t(time.tv_sec) * kSecondNs + uint64_t(time.tv_nsec); }
fibers::Fiber* fiber_of(pthread_t thread) { return reinterpret_cast<fibers::Fiber*>(thread); }

template <class Function>
Function* next_definition(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

bool recursive(const pthread_mutex_t* mutex) { return (mutex->__data.__kind & 3) == PTHREAD_MUTEX_RECURSIVE; }

int owner_number() { return int(reinterpret_cast<uintptr_t>(fibers::current()) >> 4); }

bool try_lock(pthread_mutex_t* mutex) {
  auto& data = mutex->__data;
  if (data.__lock != 0 && !(recursive(mutex) && data.__owner == owner_number())) return false;
  data.__lock = 1;
  data.__owner = owner_number();
  ++data.__count;
  return true;
}

void lock(pthread_mutex_t* mutex) {
  while (!try_lock(mutex)) fibers::wait(mutex, fibers::kNever);
}

void unlock(pthread_mutex_t* mutex) {
  auto& data = mutex->__data;
  if (--data.__count != 0) return;
  data.__lock = data.__owner = 0;
  fibers::wake(mutex, ~0u);
}

int wait(pthread_cond_t* condition, pthread_mutex_t* mutex, uint64_t deadline) {
  unlock(mutex);
  bool woken = fibers::wait(condition, deadline);
  lock(mutex);
  return woken ? 0 : ETIMEDOUT;
}

void sleep_until(uint64_t deadline) {
  while (fibers::now_ns() < deadline) {
    int nobody;
    fibers::wait(&nobody, deadline);
  }
}

}  // namespace

// libstdc++ uses these definitions, too.
#pragma GCC visibility push(default)

extern "C" {

// --- threads -------------------------------------------------------------------------------------------------------

int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*run)(void*), void* argument) {
  fibers::Fiber* fiber = fibers::create(run, argument);
  *thread = reinterpret_cast<pthread_t>(fiber);
  return fiber ? 0 : EAGAIN;
}
int pthread_join(pthread_t thread, void** result) {
  void* got = fibers::join(fiber_of(thread));
  if (result) *result = got;
  return 0;
}
int pthread_detach(pthread_t thread) {
  fibers::detach(fiber_of(thread));
  return 0;
}
pthread_t pthread_self() noexcept { return reinterpret_cast<pthread_t>(fibers::current()); }
int pthread_setname_np(pthread_t, const char*) noexcept { return 0; }
// Fibers share the process's mask: one fiber would restore another one's setting.
int pthread_sigmask(int, const sigset_t*, sigset_t* before) noexcept {
  if (before) sigemptyset(before);
  return 0;
}
// Returns the same on each machine.
int sched_getaffinity(pid_t, size_t bytes, cpu_set_t* cores) noexcept {
  CPU_ZERO_S(bytes, cores);
  CPU_SET_S(0, bytes, cores);
  CPU_SET_S(1, bytes, cores);
  return 0;
}
int sched_yield() noexcept {
  fibers::yield();
  return 0;
}

// --- locks ---------------------------------------------------------------------------------------------------------

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  fibers::step();
  lock(mutex);
  return 0;
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  fibers::step();
  return try_lock(mutex) ? 0 : EBUSY;
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  unlock(mutex);
  fibers::step();
  return 0;
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  fibers::step();
  while (lock->__data.__cur_writer != 0) fibers::wait(lock, fibers::kNever);
  ++lock->__data.__readers;
  return 0;
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  fibers::step();
  while (lock->__data.__cur_writer != 0 || lock->__data.__readers != 0) fibers::wait(lock, fibers::kNever);
  lock->__data.__cur_writer = 1;
  return 0;
}
int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  if (lock->__data.__cur_writer != 0) lock->__data.__cur_writer = 0;
  else --lock->__data.__readers;
  fibers::wake(lock, ~0u);
  fibers::step();
  return 0;
}

int pthread_once(pthread_once_t* once, void (*run)()) {
  constexpr int kNone = 0, kRuns = 1, kDone = 2;
  while (*once == kRuns) fibers::wait(once, fibers::kNever);
  if (*once != kNone) return 0;
  *once = kRuns;
  run();
  *once = kDone;
  fibers::wake(once, ~0u);
  return 0;
}

// --- libraries' thread-specific values -----------------------------------------------------------------

int pthread_key_create(pthread_key_t* key, void (*destroy)(void*)) noexcept {
  *key = pthread_key_t(fibers::make_key(destroy));
  return 0;
}
int pthread_key_delete(pthread_key_t key) noexcept {
  fibers::forget_key(key);
  return 0;
}
void* pthread_getspecific(pthread_key_t key) noexcept { return fibers::value_of(key); }
int pthread_setspecific(pthread_key_t key, const void* value) noexcept {
  fibers::set_value_of(key, const_cast<void*>(value));
  return 0;
}

// --- conditions ----------------------------------------------------------------------------------------------------

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  return wait(condition, mutex, fibers::kNever);
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  return wait(condition, mutex, ns_of(*until));
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t, const timespec* until) {
  return wait(condition, mutex, ns_of(*until));
}
int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  fibers::wake(condition, 1);
  fibers::step();
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  fibers::wake(condition, ~0u);
  fibers::step();
  return 0;
}

// futex(): waits for an atomic's value, and for a static variable's initialisation.
long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& one : a) one = va_arg(list, long);
  va_end(list);
  if (number != SYS_futex) {
    static const auto next = next_definition<long(long, ...)>("syscall");
    return next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  }
  auto* word = reinterpret_cast<volatile int*>(a[0]);
  const int operation = int(a[1]) & FUTEX_CMD_MASK;
  if (operation == FUTEX_WAKE || operation == FUTEX_WAKE_BITSET) {
    unsigned woken = fibers::wake(const_cast<int*>(word), unsigned(a[2]));
    fibers::step();
    return woken;
  }
  fibers::step();
  if (*word != int(a[2])) {
    errno = EAGAIN;
    return -1;
  }
  const auto* time = reinterpret_cast<const timespec*>(a[3]);
  uint64_t deadline = !time ? fibers::kNever : ns_of(*time) + (operation == FUTEX_WAIT ? fibers::now_ns() : 0);
  if (fibers::wait(const_cast<int*>(word), deadline)) return 0;
  errno = ETIMEDOUT;
  return -1;
}

// --- time ----------------------------------------------------------------------------------------------------------

int clock_gettime(clockid_t, timespec* out) noexcept {
  uint64_t now = fibers::read_clock();
  *out = {.tv_sec = time_t(now / kSecondNs), .tv_nsec = long(now % kSecondNs)};
  return 0;
}
int clock_nanosleep(clockid_t, int flags, const timespec* time, timespec*) {
  sleep_until(ns_of(*time) + (flags & TIMER_ABSTIME ? 0 : fibers::now_ns()));
  return 0;
}
int nanosleep(const timespec* time, timespec*) {
  sleep_until(fibers::now_ns() + ns_of(*time));
  return 0;
}

// --- descriptors ---------------------------------------------------------------------------------------------------

// The other end belongs to a fiber, which has to run before anything can arrive.
int poll(pollfd* descriptors, nfds_t count, int timeout_ms) {
  static const auto next = next_definition<int(pollfd*, nfds_t, int)>("poll");
  uint64_t deadline = timeout_ms < 0 ? fibers::kNever : fibers::now_ns() + uint64_t(timeout_ms) * 1'000'000;
  fibers::step();
  for (;;) {
    int ready = next(descriptors, count, 0);
    if (ready != 0) fibers::found_something();
    if (ready != 0 || timeout_ms == 0 || fibers::now_ns() >= deadline) return ready;
    fibers::wait_for_others(deadline);
  }
}
int ppoll(pollfd* descriptors, nfds_t count, const timespec* timeout, const sigset_t*) {
  if (!timeout) return poll(descriptors, count, -1);
  return poll(descriptors, count, int((ns_of(*timeout) + 999'999) / 1'000'000));
}
// A call that would block in the system waits for the other fibers instead.
ssize_t recv(int socket, void* out, size_t bytes, int flags) {
  static const auto next = next_definition<ssize_t(int, void*, size_t, int)>("recv");
  const bool waits = !(flags & MSG_DONTWAIT), whole = flags & MSG_WAITALL;
  size_t done = 0;
  for (;;) {
    ssize_t got = next(socket, static_cast<char*>(out) + done, bytes - done, (flags & ~MSG_WAITALL) | MSG_DONTWAIT);
    if (got > 0) done += size_t(got);
    if (got > 0 && whole && done < bytes) continue;
    if (got >= 0 || !waits || (errno != EAGAIN && errno != EWOULDBLOCK)) return done ? ssize_t(done) : got;
    pollfd polled{socket, POLLIN, 0};
    poll(&polled, 1, -1);
  }
}

}  // extern "C"

#pragma GCC visibility pop
