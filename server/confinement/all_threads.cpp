#include "server/confinement/all_threads.hpp"

#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace gpuwire::server {
namespace {

constexpr int kSignal = 33;
constexpr size_t kSignalSetBytes = 8;  // of the kernel

// The kernel's structure, and the code that a handler returns to: sigaction(3) does not take this signal.
struct KernelAction {
  void (*handler)(int);
  unsigned long flags;
  void (*restorer)();
  uint64_t mask;
};
constexpr unsigned long kRestorer = 0x04000000;

#if defined(__x86_64__)
extern "C" void gpuwire_signal_return();
asm(R"(
  .text
  .hidden gpuwire_signal_return
  .global gpuwire_signal_return
  .type gpuwire_signal_return, @function
gpuwire_signal_return:
  mov $15, %eax
  syscall
  .size gpuwire_signal_return, . - gpuwire_signal_return
)");
#else
extern "C" inline void gpuwire_signal_return() {}  // on other processors the kernel's own page contains the return
#endif

// The handler's inputs and results. Released by the counters, which the caller acquires.
struct Request {
  long number = 0, first = 0, second = 0;
  std::atomic<unsigned> answered{0};
  std::atomic<int> failed{0};  // errno of a thread that failed
};
Request g_request;  // a handler has no argument

void handle(int) {
  int before = errno;
  if (::syscall(g_request.number, g_request.first, g_request.second, 0) != 0)
    g_request.failed.store(errno, std::memory_order_relaxed);
  g_request.answered.fetch_add(1, std::memory_order_release);
  errno = before;
}

std::set<pid_t> threads() {
  std::set<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::string name = entry.path().filename().string();
    pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc()) found.insert(thread);
  }
  return found;
}

bool gone(pid_t thread) { return ::syscall(SYS_tgkill, ::getpid(), thread, 0) != 0; }

// Waits until each has answered or has ended.
bool all_answered(const std::set<pid_t>& asked) {
  auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kAllThreadsMs);
  while (g_request.answered.load(std::memory_order_acquire) < asked.size()) {
    if (std::chrono::steady_clock::now() > until) {
      size_t ended = 0;
      for (pid_t thread : asked) ended += gone(thread);
      return g_request.answered.load(std::memory_order_acquire) + ended >= asked.size();
    }
    std::this_thread::yield();
  }
  return true;
}

}  // namespace

tl::expected<void, std::string> call_in_all_threads(long number, long first, long second) {
  g_request.number = number;
  g_request.first = first;
  g_request.second = second;
  g_request.failed = 0;
  if (::syscall(number, first, second, 0) != 0) return tl::unexpected(std::string(std::strerror(errno)));
  KernelAction action{&handle, SA_RESTART | kRestorer, &gpuwire_signal_return, ~uint64_t{0}}, before{};
  if (::syscall(SYS_rt_sigaction, kSignal, &action, &before, kSignalSetBytes) != 0)
    return tl::unexpected(fmt::format("rt_sigaction: {}", std::strerror(errno)));
  std::set<pid_t> done{pid_t(::syscall(SYS_gettid))};
  bool answered = true;
  // The next round finds a thread whose parent had not executed the call yet; a thread that starts later inherits its
  // parent's state.
  for (bool more = true; more && answered;) {
    std::set<pid_t> asked;
    g_request.answered = 0;
    for (pid_t thread : threads()) {
      if (!done.contains(thread) && ::syscall(SYS_tgkill, ::getpid(), thread, kSignal) == 0) asked.insert(thread);
    }
    answered = all_answered(asked);
    done.insert(asked.begin(), asked.end());
    more = !asked.empty();
  }
  // A thread that answers late must not run the C library's handler of this signal.
  if (!answered) return tl::unexpected(fmt::format("a thread has not answered within {} ms", kAllThreadsMs));
  ::syscall(SYS_rt_sigaction, kSignal, &before, nullptr, kSignalSetBytes);
  if (int error = g_request.failed) return tl::unexpected(std::string(std::strerror(error)));
  return {};
}

}  // namespace gpuwire::server
