#include "server/base/unexpected_error.hpp"

#include <new>
#include <string>
#include <thread>

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace gpuwire::server;

namespace {

// Reports its destruction.
struct Witness {
  explicit Witness(int where) : where(where) {}
  ~Witness() { [[maybe_unused]] ssize_t written = ::write(where, "left", 4); }
  int where;
};

struct Odd {};

// Returns the exit status of a process with this error, and its output without its log.
template <class Throw>
std::pair<int, std::string> meets(Throw&& error) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(STDOUT_FILENO);
    ::close(STDERR_FILENO);
    end_at_unexpected_errors();
    // A test's stack has exception handlers; a new thread has none, like the server's loop.
    std::thread([&] {
      Witness outer(ends[1]);
      [&]() noexcept(false) {
        Witness inner(ends[1]);
        error();
      }();
    }).join();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string written;
  char piece[64];
  for (ssize_t got; (got = ::read(ends[0], piece, sizeof piece)) > 0;) written.append(piece, size_t(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), written};
}

}  // namespace

TEST_CASE("an error that nobody catches ends the process at once, and no frame is left") {
  CHECK(meets([] { throw std::bad_alloc(); }) == std::pair(kUnexpectedErrorExit, std::string()));
  CHECK(meets([] { throw Odd(); }) == std::pair(kUnexpectedErrorExit, std::string()));
  CHECK(meets([] { std::terminate(); }) == std::pair(kUnexpectedErrorExit, std::string()));
}

TEST_CASE("an error that somebody catches goes on as ever") {
  auto caught = meets([] {
    try {
      throw std::bad_alloc();
    } catch (const std::exception&) {}
  });
  CHECK(caught == std::pair(0, std::string("leftleft")));
}
