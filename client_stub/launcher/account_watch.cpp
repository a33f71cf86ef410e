#include "client_stub/launcher/account_watch.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client_stub/account/account_channel.hpp"
#include "client_stub/account/account_page.hpp"
#include "client_stub/account/account_text.hpp"

namespace gpuwire::launcher {

namespace {

using client::AccountPage;
using client::HandedAccount;
using client::OwnedDescriptor;

// The watch's descriptors after its exec.
constexpr int kListener = 3, kProgram = 4;
// The number of accounts that the watch holds, and of connections that have sent nothing yet. The watch ignores further
// processes.
constexpr size_t kAccountsMax = 256;
// A ready pipe accepts this many bytes at once without blocking (PIPE_BUF).
constexpr size_t kWrittenAtOnce = 4096;
constexpr int kWriteTimeoutMs = 10'000;  // a reader that reads nothing for this long gets no more

// Closes all descriptors except the two, so that the watch holds no pipe whose end a caller of the program waits for.
void keep_only(int listener, int program) noexcept {
  const int high = std::max({kProgram + 1, listener + 1, program + 1});
  listener = fcntl(listener, F_DUPFD, high);
  program = fcntl(program, F_DUPFD, high);
  dup2(listener, kListener);
  dup2(program, kProgram);
  const int nothing = open("/dev/null", O_RDWR);
  for (int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing, standard);
  std::vector<int> others;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error))
    if (const int number = std::atoi(entry.path().filename().c_str()); number > kProgram) others.push_back(number);
  for (int number : others) close(number);
}

[[noreturn]] void become_watch(int listener, int program) noexcept {
  keep_only(listener, program);
  // Signals to the program's group, and those of the terminal, must not end the watch, which has to print the account.
  setsid();
  for (int ignored : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGTTOU}) std::signal(ignored, SIG_IGN);
  if (rlimit limit{}; getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  char* arguments[] = {const_cast<char*>(kAccountWatchName), nullptr};
  char* environment[] = {nullptr};
  if (chdir("/") == 0) execve("/proc/self/exe", arguments, environment);
  _exit(1);
}

void write_all(int descriptor, const std::string& text) noexcept {
  for (size_t at = 0; at < text.size();) {
    pollfd ready{descriptor, POLLOUT, 0};
    if (poll(&ready, 1, kWriteTimeoutMs) <= 0) return;
    const ssize_t written = write(descriptor, text.data() + at, std::min(kWrittenAtOnce, text.size() - at));
    if (written < 0 && errno != EAGAIN && errno != EINTR) return;
    if (written > 0) at += size_t(written);
  }
}

// The process has ended. The counters are copied first, because its children may have the memory mapped, too.
void print(const HandedAccount& account) {
  auto page = std::make_unique<AccountPage>();
  if (pread(account.page.get(), page.get(), sizeof *page, 0) != ssize_t(sizeof *page)) return;
  if (page->magic != client::kAccountMagic || page->told) return;
  // CLOCK_MONOTONIC, as that of the process that has counted.
  const std::chrono::nanoseconds since_boot = std::chrono::steady_clock::now().time_since_epoch();
  const auto now = uint64_t(since_boot.count());
  client::AccountEnd end;
  end.cut_short = true;
  end.elapsed_ns = now - std::min(now, page->started_ns);
  write_all(account.error.get(), client::account_text(*page, end));
}

// Each account needs three descriptors, and the watch some more.
size_t accounts_max() noexcept {
  constexpr rlim_t kEach = 3, kForTheMoment = 32;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur <= kForTheMoment) return 0;
  return size_t(std::min<rlim_t>(kAccountsMax, (limit.rlim_cur - kForTheMoment) / kEach));
}

bool is_ready(const OwnedDescriptor& descriptor) noexcept {
  pollfd one{descriptor.get(), POLLIN, 0};
  return poll(&one, 1, 0) > 0;
}

class Watch {
 public:
  Watch() : listener_(kListener), program_(kProgram), accounts_max_(accounts_max()) {}

  void run() {
    while (program_ || !connections_.empty() || !accounts_.empty()) {
      wait();
      // Every process that handed over before the program's end is in the listener's queue by now.
      const bool ended = program_ && is_ready(program_);
      accept();
      receive();
      notify_ended();
      if (ended) program_ = OwnedDescriptor();
    }
  }

 private:
  void wait() {
    std::vector<pollfd> polled{{listener_.get(), POLLIN, 0}};
    if (program_) polled.push_back({program_.get(), POLLIN, 0});
    for (auto& connection : connections_) polled.push_back({connection.get(), POLLIN, 0});
    for (auto& account : accounts_) polled.push_back({account.process.get(), POLLIN, 0});
    while (poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {}
  }

  void accept() {
    while (OwnedDescriptor connection = client::accept_account(listener_)) {
      if (connections_.size() + accounts_.size() < accounts_max_) connections_.push_back(std::move(connection));
    }
  }

  void receive() {
    std::erase_if(connections_, [&](OwnedDescriptor& connection) {
      if (!is_ready(connection)) return false;
      if (auto account = client::receive_account(connection)) accounts_.push_back(std::move(*account));
      return true;
    });
  }

  void notify_ended() {
    std::erase_if(accounts_, [&](const HandedAccount& account) {
      if (!is_ready(account.process)) return false;
      print(account);
      return true;
    });
  }

  OwnedDescriptor listener_, program_;
  const size_t accounts_max_;
  std::vector<OwnedDescriptor> connections_;
  std::vector<HandedAccount> accounts_;
};

// fork() without a SIGCHLD at the child's end: a program whose caller has blocked the signal would find it pending.
pid_t fork_silently() noexcept { return pid_t(syscall(SYS_clone, 0, nullptr, nullptr, nullptr, 0)); }

}  // namespace

void start_account_watch() noexcept {
  // As a container's first process, the program would become the watch's parent, and could not outlive it.
  if (getpid() == 1) return;
  client::AccountListener listener = client::listen_for_accounts();
  OwnedDescriptor program = client::own_process();
  if (!listener.socket || !program) return;
  const pid_t between = fork_silently();
  if (between == 0) {
    // The intermediate process ends at once, so the watch is not a child of the program.
    if (fork_silently() != 0) _exit(0);
    become_watch(listener.socket.get(), program.get());
  }
  if (between < 0) return;
  while (waitpid(between, nullptr, __WALL) < 0 && errno == EINTR) {}
  setenv(client::kAccountsVariable, listener.name.c_str(), 1);
}

int watch_accounts() {
  prctl(PR_SET_NAME, kAccountWatchName);  // /proc/self/exe would be called "exe"
  Watch().run();
  return 0;
}

}  // namespace gpuwire::launcher
