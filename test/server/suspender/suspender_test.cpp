// gpuwire-suspender itself, with the software device: the victim is a second process of this program.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <cuda.h>
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/driver_table.hpp"
#include "server/ipc/channel.hpp"

extern char** environ;

using namespace gpuwire::server;
using ipc::MoveResult;

namespace {

constexpr const char* kVictimCase = "the victim of the moves";
constexpr size_t kBytes = size_t{1} << 20;

// A process that has device memory with a pattern, and checks the pattern for each line that it reads.
class Victim {
 public:
  Victim() {
    int to[2], from[2];
    REQUIRE(::pipe(to) == 0);
    REQUIRE(::pipe(from) == 0);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    const std::string only = std::string("--test-case=") + kVictimCase;
    char* arguments[] = {const_cast<char*>("/proc/self/exe"), const_cast<char*>("--no-skip"),
                         const_cast<char*>(only.c_str()), nullptr};
    ::setenv("GPUWIRE_SOFTWARE_CHECKPOINTS", "1", 1);
    REQUIRE(::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments, environ) == 0);
    ::unsetenv("GPUWIRE_SOFTWARE_CHECKPOINTS");
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(to[0]);
    ::close(from[1]);
    in_ = ::fdopen(to[1], "w");
    out_ = ::fdopen(from[0], "r");
    process.reset(int(::syscall(SYS_pidfd_open, pid, 0)));
    CHECK(answer() == "ready");
  }
  ~Victim() { end(); }
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;

  std::string check() {
    std::fputs("check\n", in_);
    std::fflush(in_);
    return answer();
  }
  void end() {
    if (pid < 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = -1;
    std::fclose(in_);
    std::fclose(out_);
  }

  pid_t pid = -1;
  OwnedDescriptor process;

 private:
  // The victim's lines begin with "= "; others are the test framework's.
  std::string answer() {
    char line[256];
    while (std::fgets(line, sizeof line, out_)) {
      std::string text = line;
      if (text.starts_with("= ")) return text.substr(2, text.size() - 3);
    }
    return "no answer";
  }

  FILE* in_ = nullptr;
  FILE* out_ = nullptr;
};

struct Suspender {
  pid_t pid = -1;
  std::optional<ipc::Channel> channel;
  uint64_t order = 0;

  Suspender() {
    OwnedDescriptor ours, theirs;
    REQUIRE(ipc::open_pair(ours, theirs));
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), ipc::kDescriptor);
    ::posix_spawn_file_actions_addclosefrom_np(&actions, ipc::kDescriptor + 1);
    std::vector<const char*> arguments{GPUWIRE_TEST_SUSPENDER,        "--device", "software", "--software-library",
                                       GPUWIRE_TEST_SOFTWARE_LIBRARY, nullptr};
    REQUIRE(::posix_spawn(&pid, GPUWIRE_TEST_SUSPENDER, &actions, nullptr, const_cast<char**>(arguments.data()),
                          environ) == 0);
    ::posix_spawn_file_actions_destroy(&actions);
    channel.emplace(std::move(ours), ipc::Speaker::suspender, 8);
    const auto ready = channel->await();
    REQUIRE(ready);
    REQUIRE(std::holds_alternative<ipc::SuspenderReady>(*ready));
    CHECK(std::get<ipc::SuspenderReady>(*ready).why == "");
  }
  ~Suspender() {
    channel.reset();  // its order to end
    int status = 0;
    ::waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status));
  }

  void send(const Victim& victim, pid_t process, bool resume) {
    channel->send(ipc::Move{++order, uint32_t(process), resume, OwnedDescriptor(::dup(victim.process.get()))});
  }
  ipc::Moved answer() {
    auto said = channel->await();
    REQUIRE(said);
    REQUIRE(std::holds_alternative<ipc::Moved>(*said));
    return std::get<ipc::Moved>(*said);
  }
  MoveResult move(const Victim& victim, bool resume) {
    send(victim, victim.pid, resume);
    const ipc::Moved moved = answer();
    CHECK(moved.order == order);
    return moved.result;
  }
};

}  // namespace

TEST_CASE("the victim of the moves" * doctest::skip()) {
  void* library = ::dlopen(GPUWIRE_TEST_SOFTWARE_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library);
  DriverTable driver;
  load_driver_table(library, driver);
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  REQUIRE(driver.cuInit(0) == CUDA_SUCCESS);
  REQUIRE(driver.cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(driver.cuCtxSetCurrent(context) == CUDA_SUCCESS);
  REQUIRE(driver.cuMemAlloc_v2(&memory, kBytes) == CUDA_SUCCESS);
  std::vector<unsigned> pattern(kBytes / sizeof(unsigned)), found(pattern.size());
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = unsigned(i * 2654435761u + 17);
  REQUIRE(driver.cuMemcpyHtoD_v2(memory, pattern.data(), kBytes) == CUDA_SUCCESS);
  std::puts("= ready");
  std::fflush(stdout);
  for (char line[64]; std::fgets(line, sizeof line, stdin);) {
    const bool same = driver.cuMemcpyDtoH_v2(found.data(), memory, kBytes) == CUDA_SUCCESS && found == pattern;
    std::puts(same ? "= same" : "= different");
    std::fflush(stdout);
  }
}

TEST_CASE("the confined suspender moves another process's device memory to the host and back, again and again") {
  Victim victim;
  Suspender suspender;
  for (int round = 0; round < 5; ++round) {
    CHECK(suspender.move(victim, false) == MoveResult::done);
    CHECK(suspender.move(victim, true) == MoveResult::done);
    CHECK(victim.check() == "same");
  }
}

TEST_CASE("memory that one suspender has moved comes back by another one") {
  Victim victim;
  {
    Suspender first;
    CHECK(first.move(victim, false) == MoveResult::done);
  }
  Suspender second;
  CHECK(second.move(victim, false) == MoveResult::done);
  CHECK(second.move(victim, true) == MoveResult::done);
  CHECK(victim.check() == "same");
}

TEST_CASE("a process that has ended is not reached, nor the one that has its number now") {
  Victim ended, other;
  Suspender suspender;
  ended.end();
  suspender.send(ended, other.pid, false);
  CHECK(suspender.answer().result == MoveResult::gone);
  CHECK(other.check() == "same");
}
