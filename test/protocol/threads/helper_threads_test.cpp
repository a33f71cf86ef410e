#include "protocol/threads/helper_threads.hpp"

#include <doctest/doctest.h>
#include <pthread.h>

#include <atomic>
#include <csignal>

using gpuwire::start_helper_threads;

TEST_CASE("Helper threads take the signals of faults alone, and who starts them keeps his own") {
  sigset_t before, after;
  REQUIRE(pthread_sigmask(SIG_SETMASK, nullptr, &before) == 0);
  std::atomic<int> ran{0}, right{0};
  auto threads = start_helper_threads(3, [&] {
    sigset_t mine;
    pthread_sigmask(SIG_SETMASK, nullptr, &mine);
    ++ran;
    right += !sigismember(&mine, SIGSEGV) && !sigismember(&mine, SIGBUS) && sigismember(&mine, SIGTERM) &&
             sigismember(&mine, SIGPROF);
  });
  for (std::thread& thread : threads) thread.join();
  CHECK(ran == int(threads.size()));
  CHECK(right == ran);
  REQUIRE(pthread_sigmask(SIG_SETMASK, nullptr, &after) == 0);
  for (int number : {SIGTERM, SIGPROF, SIGSEGV}) CHECK(sigismember(&after, number) == sigismember(&before, number));
}
