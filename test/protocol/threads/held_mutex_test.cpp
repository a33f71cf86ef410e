#include "protocol/threads/held_mutex.hpp"

#include <doctest/doctest.h>

#include <thread>
#include <utility>

using namespace gpuwire;

TEST_CASE("a mutex is seen free by who may take it, and not by who holds it") {
  std::mutex mutex;
  CHECK(is_seen_free(mutex));
  CHECK_FALSE(is_held_by_this_thread(mutex));
  mutex.lock();
  CHECK_FALSE(is_seen_free(mutex));
  bool elsewhere = true;
  std::thread([&] { elsewhere = is_seen_free(mutex); }).join();
  CHECK_FALSE(elsewhere);
  mutex.unlock();
  CHECK(is_seen_free(mutex));
}

#if defined(__GLIBC__)
TEST_CASE("a mutex whose owner is not noted yet, or not any more, is not seen free") {
  std::mutex mutex;
  mutex.lock();
  // As a signal handler finds it that interrupts lock() or unlock() in the middle.
  const int owner = std::exchange(mutex.native_handle()->__data.__owner, 0);
  CHECK_FALSE(is_held_by_this_thread(mutex));
  CHECK_FALSE(is_seen_free(mutex));
  mutex.native_handle()->__data.__owner = owner;
  mutex.unlock();
}
#endif
