// What the process around a session does to it: fork, exit, close from anywhere.
#include <doctest/doctest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
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
      // Only what a child may do after fork() in a process with threads.
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
        goodbye = server.said_goodbye();
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
  // The child is the client, with all its threads; it is killed in the middle.
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
      gone = !self.said_goodbye();
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
