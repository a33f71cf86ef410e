#include "protocol/transport/connecting.hpp"

#include <doctest/doctest.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

namespace gpuwire::test {
namespace {

std::atomic<unsigned> g_signals{0};  // counted by the handler, awaited by the test

// Waits until the thread stands in connect(2), as the kernel tells it, or has returned from there.
void await_connect(pid_t thread, const std::atomic<bool>& returned) {
  const std::string path = "/proc/self/task/" + std::to_string(thread) + "/syscall";
  for (long number = -1; number != SYS_connect && !returned; std::this_thread::yield()) std::ifstream(path) >> number;
}

}  // namespace

TEST_CASE("a signal does not end an attempt to connect to a peer whose queue is full") {
  struct sigaction count {};
  count.sa_handler = [](int) { ++g_signals; };  // without SA_RESTART
  struct sigaction before {};
  REQUIRE(sigaction(SIGUSR1, &count, &before) == 0);

  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "gpuwire-connecting-" + std::to_string(getpid());
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // an abstract name: no file is left
  const auto* where = reinterpret_cast<const sockaddr*>(&address);
  const auto bytes = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(bind(listener, where, bytes) == 0);
  REQUIRE(listen(listener, 0) == 0);
  const int first = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(connect(first, where, bytes) == 0);  // it fills the queue

  const int second = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::atomic<pid_t> connecting{0};  // stored by the thread, loaded by the test
  std::atomic<bool> returned{false};
  int result = -1;
  std::thread thread([&] {
    connecting = gettid();
    result = transport::connect_through_signals(second, where, bytes);
    returned = true;
  });
  while (connecting == 0) std::this_thread::yield();
  for (unsigned i = 0; i < 3 && !returned; ++i) {
    await_connect(connecting, returned);
    pthread_kill(thread.native_handle(), SIGUSR1);
    while (g_signals == i) std::this_thread::yield();
  }
  await_connect(connecting, returned);
  CHECK_FALSE(returned);
  int accepted[2] = {-1, -1};
  if (!returned)
    for (int& one : accepted) one = accept(listener, nullptr, nullptr);
  thread.join();
  CHECK(result == 0);

  for (int socket : {listener, first, second, accepted[0], accepted[1]}) close(socket);
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace gpuwire::test
