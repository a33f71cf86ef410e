// Events of a session's process: fork, exit, close from any thread.
#include <doctest/doctest.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "test/client_stub/session/session_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

TEST_CASE("after a fork the session is the parent's alone") {
  for (int kind : {0, 1, 2, 4}) {
    Fixture fixture(pair_kinds()[size_t(kind)].make(1), answer_all);
    CHECK(fixture.post(1) == CUDA_SUCCESS);
    CHECK(fixture.call(1) == CUDA_SUCCESS);
    pid_t child = fork();
    if (child == 0) {
      // Only operations that a child may use after fork() in a process with threads.
      bool ok = fixture.session->state() == CUDA_ERROR_NOT_INITIALIZED &&
                fixture.post(1) == CUDA_ERROR_NOT_INITIALIZED && fixture.call(1) == CUDA_ERROR_NOT_INITIALIZED;
      fixture.session->flush();
      fixture.session->close();
      fixture.session->after_fork_in_child();
      _exit(ok ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    CHECK(fixture.session->state() == CUDA_SUCCESS);
    CHECK(fixture.post(1) == CUDA_SUCCESS);
    CHECK(fixture.call(1) == CUDA_SUCCESS);
  }
}

TEST_CASE("a fork in the middle of calls from other threads leaves a child that can go on") {
  size_t kind = 1;
  SUBCASE("unix") {}
  SUBCASE("tls") { kind = 2; }
  SUBCASE("shared memory") { kind = 4; }
  Fixture fixture(pair_kinds()[kind].make(1), answer_all);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] {
      while (!stop) {
        fixture.post(1);
        fixture.call(1);
      }
    });
  for (int round = 0; round < 20; ++round) {
    pid_t child = fork();
    if (child == 0)
      _exit(fixture.session->state() == CUDA_ERROR_NOT_INITIALIZED && fixture.call(1) == CUDA_ERROR_NOT_INITIALIZED
                ? 0
                : 1);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  CHECK(fixture.call(1) == CUDA_SUCCESS);
}

TEST_CASE("closing says goodbye, sends what is buffered and prints nothing") {
  on_every_transport([](const PairKind& kind) {
    bool goodbye = false;
    uint64_t frames = 0;
    std::string text = stderr_of([&] {
      Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
        while (server.next()) ++frames;
        goodbye = server.sent_goodbye();
      });
      for (int i = 0; i < 100; ++i) CHECK(fixture.post(1) == CUDA_SUCCESS);
      fixture.session->close();
      CHECK(fixture.session->state() == CUDA_ERROR_DEINITIALIZED);
      CHECK(fixture.post(1) == CUDA_ERROR_DEINITIALIZED);
      CHECK(fixture.call(1) == CUDA_ERROR_DEINITIALIZED);
      fixture.session->close();
      CHECK(fixture.handler.ends == 0);
    });
    CHECK(goodbye);
    CHECK(frames == 100);
    CHECK(text.empty());
  });
}

TEST_CASE("closing ends the calls of other threads") {
  on_every_transport([](const PairKind& kind) {
    std::atomic<int> waiting{0};
    Fixture fixture(kind.make(test_seed()), [&](FakeServer& server) {
      for (int i = 0; i < 3; ++i) {
        REQUIRE(server.next());
        ++waiting;
        waiting.notify_all();
      }
      while (server.next()) {}
    });
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { CHECK(fixture.call(1) == CUDA_ERROR_DEINITIALIZED); });
    for (int seen = waiting; seen != 3; seen = waiting) waiting.wait(seen);
    fixture.session->close();
    for (auto& thread : threads) thread.join();
  });
}

TEST_CASE("closing a session whose server takes nothing any more does not hang") {
  std::atomic<bool> done{false};
  Fixture fixture(pair_kinds()[2].make(1), [&](FakeServer&) { done.wait(false); });
  std::vector<std::byte> bytes(wire::kPostedBulkBytesMax);
  for (int i = 0; i < 40; ++i) CHECK(fixture.post(1, {bytes.data(), bytes.size()}) == CUDA_SUCCESS);
  fixture.session->close();
  CHECK(fixture.session->state() == CUDA_ERROR_DEINITIALIZED);
  done = true;
  done.notify_all();
}

TEST_CASE("the session thread takes no signals") {
  Fixture fixture(pair_kinds()[1].make(1), answer_all);
  CHECK(fixture.post(1) == CUDA_SUCCESS);
  CHECK(fixture.call(1) == CUDA_SUCCESS);
  int found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    FILE* status = fopen((task.path() / "status").c_str(), "r");
    if (!status) continue;
    char line[256], name[64] = {};
    unsigned long long blocked = 0;
    while (fgets(line, sizeof line, status)) {
      sscanf(line, "Name: %63s", name);
      sscanf(line, "SigBlk: %llx", &blocked);
    }
    fclose(status);
    if (std::string(name) != "gpuwire-session") continue;
    ++found;
    CHECK((blocked >> (SIGINT - 1) & 1));
    CHECK((blocked >> (SIGUSR1 - 1) & 1));
    CHECK((blocked >> (SIGALRM - 1) & 1));
  }
  CHECK(found == 1);
}

TEST_CASE("a process that just ends leaves no message and the server sees the end") {
  Ends ends = pair_kinds()[0].make(1);
  int errors[2];
  REQUIRE(pipe(errors) == 0);
  // The child is the client, with all its threads; it is killed during its calls.
  pid_t child = fork();
  if (child == 0) {
    dup2(errors[1], STDERR_FILENO);
    ends.second->abandon_after_fork();
    RecordingHandler handler;
    std::unique_ptr<client::Session> session;
    std::string error;
    client::ConnectedSession::start(std::move(ends.first), "test:1", handler, session, error);
    for (;;)
      if (client::post<schema::Source>(*session, 1, 0, 8, [](auto) {}) != CUDA_SUCCESS) _exit(1);
  }
  close(errors[1]);
  ends.first.reset();
  bool gone = false;
  uint64_t frames = 0;
  {
    FakeServer server(std::move(ends.second), [&](FakeServer& self) {
      while (self.next())
        if (++frames == 1000) kill(child, SIGKILL);
      gone = !self.sent_goodbye();
    });
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(gone);
  CHECK(frames >= 1000);
  char byte;
  CHECK(read(errors[0], &byte, 1) == 0);
  close(errors[0]);
}

namespace {

sigjmp_buf g_back;
std::atomic<bool> g_armed{false};

void jump(int) {
  if (g_armed.exchange(false)) siglongjmp(g_back, 1);
}

bool sleeps(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t name_end = text.rfind(") ");
  return name_end != std::string::npos && text[name_end + 2] == 'S';
}

// Makes the calling thread leave `body`, which sleeps for ever, by a jump.
template <class Body>
void leave_when_asleep(Body&& body) {
  struct sigaction action {};
  action.sa_handler = jump;
  sigaction(SIGUSR2, &action, nullptr);
  const pthread_t self = pthread_self();
  const auto id = pid_t(syscall(SYS_gettid));
  std::atomic<bool> over{false};
  std::thread signaller([&] {
    while (!over) {
      if (g_armed && sleeps(id)) pthread_kill(self, SIGUSR2);
      std::this_thread::yield();
    }
  });
  if (sigsetjmp(g_back, 1) == 0) {
    g_armed = true;
    body();
    CHECK_MESSAGE(!g_armed.exchange(false), "what does not come was waited for");
  }
  over = true;
  signaller.join();
}

}  // namespace

// The thread sanitizer does not support a jump over frames.
TEST_CASE("a thread that has jumped out of calls that wait gives back what it held, and the session goes on") {
#if defined(__SANITIZE_THREAD__)
  return;
#endif
#if defined(__SANITIZE_ADDRESS__)
  // The memory of a frame that was jumped over leaks.
  const __lsan::ScopedDisabler leaks;
#endif
  for (size_t kind : {0, 1, 2, 3, 4, 5}) {
    CAPTURE(pair_kinds()[kind].name);
    static std::atomic<unsigned> left;
    left = 0;
    constexpr unsigned kRounds = 5;
    Fixture fixture(pair_kinds()[kind].make(test_seed()), [&](FakeServer& server) {
      // The abandoned calls are answered between other calls, and with bulk.
      std::vector<std::byte> bulk(100'000, std::byte(7));
      while (server.next()) {
        const uint64_t sequence = server.header().sequence;
        if (number_in(server) != 1) {
          server.reply(sequence);
          continue;
        }
        for (unsigned seen = left; seen < (sequence + 1) / 2; seen = left) left.wait(seen);
        server.reply(sequence, 0, bulk);
      }
    });
    static std::byte sink[100'000];
    for (unsigned round = 1; round <= kRounds; ++round) {
      std::memset(sink, 0, sizeof sink);
      leave_when_asleep([&] { fixture.call(1, {}, {sink, sizeof sink}); });
      fixture.session->take_back_from_left_call();
      left = round;
      left.notify_all();
      CHECK(fixture.call(2) == CUDA_SUCCESS);
      CHECK(sink[50'000] == std::byte(0));
    }
    CHECK(fixture.handler.ends == 0);
  }
}

TEST_CASE("a thread that has jumped out while another one reads gives back its call, and the other one goes on") {
#if defined(__SANITIZE_THREAD__)
  return;
#endif
  for (size_t kind : {0, 1, 2, 3, 4, 5}) {
    CAPTURE(pair_kinds()[kind].name);
    static std::atomic<bool> left;
    static std::atomic<int> waiting;
    left = false;
    waiting = 0;
    Fixture fixture(pair_kinds()[kind].make(test_seed()), [&](FakeServer& server) {
      std::vector<uint64_t> sequences;
      while (sequences.size() < 2 && server.next()) {
        sequences.push_back(server.header().sequence);
        ++waiting;
        waiting.notify_all();
      }
      left.wait(false);
      for (uint64_t sequence : sequences) server.reply(sequence);
      answer_all(server);
    });
    std::thread other([&] { CHECK(fixture.call(1) == CUDA_SUCCESS); });
    for (int seen = waiting; seen < 1; seen = waiting) waiting.wait(seen);
    leave_when_asleep([&] { fixture.call(2); });
    fixture.session->take_back_from_left_call();
    left = true;
    left.notify_all();
    CHECK(fixture.call(3) == CUDA_SUCCESS);
    other.join();
    CHECK(fixture.handler.ends == 0);
  }
}

TEST_CASE("hanging up waits for nothing in the middle of a call, and says goodbye where nothing is in the way") {
  for (size_t kind : {0, 1, 2, 3, 4, 5}) {
    for (bool inside : {false, true}) {
      CAPTURE(pair_kinds()[kind].name);
      bool goodbye = false;
      {
        Fixture fixture(pair_kinds()[kind].make(test_seed()), [&](FakeServer& server) {
          while (server.next()) {}
          goodbye = server.sent_goodbye();
        });
        client::Session::Slot slot;
        constexpr auto kOrdinal = uint32_t(wire::SessionOrdinal::source);
        if (inside) REQUIRE(fixture.session->begin(wire::FrameKind::posted, kOrdinal, 0, 16, {}, slot) == CUDA_SUCCESS);
        fixture.session->hang_up();
        if (inside) fixture.session->abandon(slot);
      }
      CHECK(goodbye == !inside);
    }
  }
}
