// The file of a profile has whole events of any number of threads and processes, however they end.
#include "client_stub/driver/process/profile_file.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "client_stub/driver/state/profile/gpu_spans.hpp"

namespace gpuwire::client {
namespace {

struct File {
  char path[64] = "/tmp/gpuwire_profile_XXXXXX";
  File() {
    const int file = mkstemp(path);
    REQUIRE(file >= 0);
    close(file);
    unlink(path);
  }
  ~File() { unlink(path); }
  std::vector<std::string> lines() const {
    std::ifstream in(path);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  }
};

size_t count(const std::vector<std::string>& lines, const std::string& part) {
  size_t found = 0;
  for (const std::string& line : lines) found += line.find(part) != std::string::npos;
  return found;
}

}  // namespace

TEST_CASE("names of whatever origin stand between the quotes of JSON") {
  CHECK(json_text("add(float*, int)") == "add(float*, int)");
  CHECK(json_text("a\"b\\c") == "a\\\"b\\\\c");
  CHECK(json_text("a\nb\x7f\x01") == "a?b??");
  CHECK(json_text("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") == "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  // Cut, overlong, a surrogate's half, past the last character.
  CHECK(json_text("\xc3") == "?");
  CHECK(json_text("\xc0\xaf") == "??");
  CHECK(json_text("\xe0\x80\xaf") == "???");
  CHECK(json_text("\xed\xa0\x80") == "???");
  CHECK(json_text("\xf4\x90\x80\x80") == "????");
}

TEST_CASE("a new file begins an array, and one that is there is gone on with") {
  File file;
  std::string error;
  for (int i = 0; i < 2; ++i) {
    ProfileFile profile;
    REQUIRE(profile.open(file.path, error));
    profile.event(R"("name":"one")");
  }
  const auto lines = file.lines();
  REQUIRE(!lines.empty());
  CHECK(lines.front() == "[");
  CHECK(count(lines, "[") == 1);
  CHECK(lines.back() == "]");
  CHECK(count(lines, R"({"name":"one"})") == 2);
  CHECK(count(lines, "process_name") == 4);
}

TEST_CASE("a file that cannot be opened is told with the reason") {
  ProfileFile profile;
  std::string error;
  CHECK(!profile.open("/nowhere/profile", error));
  CHECK(error == "cannot write the profile /nowhere/profile: No such file or directory");
  CHECK(!profile.is_open());
  profile.event(R"("name":"nobody sees it")");
}

TEST_CASE("events of several threads are whole lines") {
  File file;
  std::string error;
  constexpr int kThreads = 4, kEvents = 3000;
  {
    ProfileFile profile;
    REQUIRE(profile.open(file.path, error));
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([&] {
        for (int j = 0; j < kEvents; ++j) profile.event(R"("name":"an event of some length, so that pieces meet")");
      });
    for (std::thread& thread : threads) thread.join();
  }
  CHECK(count(file.lines(), R"({"name":"an event of some length, so that pieces meet"})") == kThreads * kEvents);
}

TEST_CASE("Spans that a process has not written when it forks stay its own, and its child is named") {
  File file;
  std::string error;
  ProfileFile profile;
  REQUIRE(profile.open(file.path, error));
  profile.event(R"("name":"parent")");
  const pid_t child = fork();
  if (child == 0) {
    profile.after_fork_in_child();
    profile.event(R"("name":"child")");
    profile.flush();
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  profile.flush();
  const auto lines = file.lines();
  CHECK(count(lines, R"("name":"parent")") == 1);
  CHECK(count(lines, R"("name":"child")") == 1);
  CHECK(count(lines, R"("pid":)" + std::to_string(child) + ",") == 1);
}

TEST_CASE("at the end of the program each event is written at once") {
  File file;
  std::string error;
  ProfileFile profile;
  REQUIRE(profile.open(file.path, error));
  profile.write_through();
  profile.event(R"("name":"the last one")");
  CHECK(count(file.lines(), "the last one") == 1);
}

TEST_CASE("a file that takes no more ends the profile, in one line") {
  int said[2];
  REQUIRE(pipe(said) == 0);
  const int kept = dup(STDERR_FILENO);
  dup2(said[1], STDERR_FILENO);
  std::string error;
  bool opened = false;
  {
    ProfileFile profile;
    opened = profile.open("/dev/full", error);
    for (int i = 0; i < 3; ++i) {
      profile.event(R"("name":"lost")");
      profile.flush();
    }
  }
  dup2(kept, STDERR_FILENO);
  close(kept);
  close(said[1]);
  char text[1024] = {};
  const ssize_t length = read(said[0], text, sizeof text - 1);
  close(said[0]);
  CHECK(opened);
  REQUIRE(length > 0);
  CHECK(std::string(text) == "gpuwire: the profile ends here: its file cannot be written\n");
}

TEST_CASE("an event that is too long is left out") {
  File file;
  std::string error;
  ProfileFile profile;
  REQUIRE(profile.open(file.path, error));
  profile.event(std::string(ProfileFile::kEventBytesMax + 1, 'x'));
  profile.flush();
  CHECK(count(file.lines(), "xxx") == 0);
}

TEST_CASE("the server's clock is as far from ours as the middle of a round trip says") {
  const ClockOffset ahead = clock_offset(1000, 5100, 1200, false);
  CHECK(ahead.ns == -4000);
  CHECK(ahead.error_ns == 100);
  const ClockOffset behind = clock_offset(5000, 100, 5200, false);
  CHECK(behind.ns == 5000);
  SUBCASE("one machine has one clock, as far as a round trip tells") {
    const ClockOffset one = clock_offset(1000, 1150, 1200, true);
    CHECK(one.ns == 0);
    CHECK(one.error_ns == 0);
    CHECK(clock_offset(1000, 9000, 1200, true).ns == -7900);
  }
}

}  // namespace gpuwire::client
