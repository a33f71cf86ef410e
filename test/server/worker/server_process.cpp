#include "test/server/worker/server_process.hpp"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "test/server/worker/wire_client.hpp"

extern char** environ;

namespace gpuwire::test {
namespace {

// Returns one line, or its part at the deadline or the end.
std::string read_line(int descriptor) {
  std::string line;
  for (uint64_t started = now_ms(); !deadline_passed(started);) {
    pollfd ready{descriptor, POLLIN, 0};
    if (::poll(&ready, 1, 100) <= 0) continue;
    char c;
    if (::read(descriptor, &c, 1) <= 0 || c == '\n') break;
    line += c;
  }
  return line;
}

}  // namespace

uint64_t now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return uint64_t(now.tv_sec) * 1000 + uint64_t(now.tv_nsec) / 1'000'000;
}
bool deadline_passed(uint64_t started_ms) {
  return now_ms() - started_ms > uint64_t(std::chrono::milliseconds(kDeadline).count());
}
void pause_briefly() { ::poll(nullptr, 0, 5); }

bool process_exists(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return false;
  size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] != 'Z';
}

ServerProcess::ServerProcess(std::vector<std::string> arguments, std::string listen) {
  std::vector<std::string> all{GPUWIRE_TEST_SERVE, "--listen", std::move(listen)};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& argument : all) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  server::OwnedDescriptor read_end(ends[0]), write_end(ends[1]);
  log_.reset(::memfd_create("server log", MFD_CLOEXEC));
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, log_.get(), STDERR_FILENO);
  int failed = ::posix_spawn(&pid_, all[0].c_str(), &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed) {
    pid_ = -1;
    return;
  }
  write_end.reset();
  line_ = read_line(read_end.get());
  unsigned port = 0;
  if (std::sscanf(line_.c_str(), "listening on 127.0.0.1:%u", &port) == 1) port_ = uint16_t(port);
}

ServerProcess::~ServerProcess() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  wait();
}

void ServerProcess::signal(int number) const { ::kill(pid_, number); }

std::set<pid_t> ServerProcess::workers() const {
  std::set<pid_t> found;
  std::ifstream file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) + "/children");
  for (pid_t pid; file >> pid;) {
    std::string name;
    std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/comm"), name);
    if (name == "gpuwire-worker" && process_exists(pid)) found.insert(pid);
  }
  return found;
}

int ServerProcess::wait() {
  if (pid_ < 0) return -1000;
  int status = 0;
  bool ended = eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
  if (!ended) return -1000;
  pid_ = -1;
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

std::string ServerProcess::log() const {
  std::string text;
  char piece[4096];
  off_t at = 0;
  for (ssize_t got; (got = ::pread(log_.get(), piece, sizeof piece, at)) > 0; at += got)
    text.append(piece, size_t(got));
  return text;
}

bool ServerProcess::log_gets(const std::string& text) const {
  return eventually([&] { return log().find(text) != std::string::npos; });
}

}  // namespace gpuwire::test
