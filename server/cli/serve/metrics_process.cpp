#include "server/cli/serve/metrics_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/config/listen_address.hpp"

extern char** environ;

namespace gpuwire::server {
namespace {

// Starts the process without standard input, with its output in the server's log, without other descriptors of the
// server, and with the default signals. Returns an errno, or 0.
int spawn(const std::string& program, const std::vector<std::string>& arguments, pid_t& pid) {
  std::vector<char*> words{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) words.push_back(const_cast<char*>(argument.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  ::posix_spawnattr_init(&attributes);
  sigset_t none, all;
  ::sigemptyset(&none);
  ::sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  int error = ::posix_spawn(&pid, program.c_str(), &actions, &attributes, words.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  return error;
}

}  // namespace

// The process of the previous server may be about to end.
tl::expected<void, std::string> MetricsProcess::await_address(const std::string& text) {
  auto address = parse_listen(text);
  if (!address) return tl::unexpected("metrics_listen: " + address.error());
  if (!address->tcp) return {};
  boost::asio::io_context io;
  for (unsigned waited_ms = 0;; waited_ms += kMetricsAddressStepMs) {
    boost::asio::ip::tcp::acceptor acceptor(io);
    boost::system::error_code error;
    acceptor.open(address->tcp->protocol(), error);
    if (!error) acceptor.set_option(boost::asio::ip::tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(*address->tcp, error);
    if (!error) acceptor.listen(1, error);
    if (!error) return {};
    if (error != boost::asio::error::address_in_use || waited_ms >= kMetricsAddressWaitMs)
      return tl::unexpected(fmt::format("metrics_listen: cannot listen on {}: {}", text, error.message()));
    std::this_thread::sleep_for(std::chrono::milliseconds(kMetricsAddressStepMs));
  }
}

MetricsProcess::MetricsProcess(boost::asio::io_context& io, std::string program, std::vector<std::string> arguments)
    : program_(std::move(program)), arguments_(std::move(arguments)), process_(io), again_timer_(io) {
  start();
}

MetricsProcess::~MetricsProcess() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);  // it has no state to clean up
  ::waitpid(pid_, nullptr, 0);
}

void MetricsProcess::start() {
  if (int error = spawn(program_, arguments_, pid_)) {
    pid_ = -1;
    return again(fmt::format("cannot start {}: {}", program_, std::strerror(error)));
  }
  int descriptor = int(::syscall(SYS_pidfd_open, pid_, 0));
  if (descriptor < 0) {
    spdlog::warn("metrics: pidfd_open: {}; the process is not started again when it ends", std::strerror(errno));
    return;
  }
  process_.assign(descriptor);
  process_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      lifetime_.guard([this](boost::system::error_code error) {
                        if (!error) ended();
                      }));
}

void MetricsProcess::ended() {
  int status = 0;
  if (::waitpid(std::exchange(pid_, -1), &status, 0) < 0) status = 0;
  process_.close();
  again(WIFSIGNALED(status) ? fmt::format("ended with signal {}", WTERMSIG(status))
                            : fmt::format("ended with exit code {}", WEXITSTATUS(status)));
}

void MetricsProcess::again(const std::string& why) {
  spdlog::error("metrics: {}; again in {} ms", why, delay_ms_);
  again_timer_.expires_after(std::chrono::milliseconds(delay_ms_));
  again_timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    if (!error) start();
  }));
  delay_ms_ = std::min(delay_ms_ * 2, kMetricsRestartMaxMs);
}

}  // namespace gpuwire::server
