// gpuwire-login: who connects to a server. Started by the broker, which hands it connections; it holds the server's
// key, and no files, GPUs or rights.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <span>
#include <string>

#include <CLI/CLI.hpp>
#include <boost/asio/io_context.hpp>
#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "command_line/command_line.hpp"
#include "protocol/tls/openssl.hpp"
#include "protocol/wire/ordinals.hpp"
#include "server/confinement/landlock.hpp"
#include "server/confinement/system_calls.hpp"
#include "server/ipc/part_of_server.hpp"
#include "server/login/auth_server.hpp"
#include "server/login/login_frame.hpp"

namespace gpuwire::server {
namespace {

constexpr uid_t kNobody = 65534;

// Memory, its sockets, its timer, random numbers and the clock; descriptors that the broker sends are read. Nothing
// opens, connects or executes. What newer C libraries ask on the way (getrandom counts processors) is among them.
constexpr const char* kSystemCalls[] = {
    "mmap",
    "munmap",
    "mremap",
    "madvise",
    "brk",
    "read",
    "write",
    "readv",
    "writev",
    "pread64",
    "close",
    "fcntl",
    "ioctl",
    "fstat",
    "newfstatat",
    "lseek",
    "recvfrom",
    "recvmsg",
    "sendto",
    "sendmsg",
    "shutdown",
    "getsockopt",
    "setsockopt",
    "epoll_ctl",
    "epoll_wait",
    "epoll_pwait",
    "timerfd_settime",
    "poll",
    "ppoll",
    "futex",
    "sched_yield",
    "sched_getaffinity",
    "sysinfo",
    "getpid",
    "gettid",
    "getrandom",
    "clock_gettime",
    "gettimeofday",
    "time",
    "rt_sigreturn",
    "rt_sigaction",
    "rt_sigprocmask",
    "sigaltstack",
    "restart_syscall",
    "exit",
    "exit_group",
};

int fail(const std::string& reason) {
  std::fprintf(stderr, "gpuwire-login: %s\n", reason.c_str());
  return 1;
}

// What opens files the first time that it happens: the C library reads the time zone for any calendar date, and Cap'n
// Proto has a stack trace made, by a library that is loaded for it, when a message cannot be read.
void rehearse() {
  ::tzset();
  LoginFrameReader reader;
  wire::FrameHeader header{
      .kind = uint8_t(wire::FrameKind::control), .ordinal = uint32_t(wire::ControlOrdinal::login), .message_words = 1};
  const uint64_t bad_message = ~uint64_t(0);
  for (auto bytes : {std::as_bytes(std::span(&header, 1)), std::as_bytes(std::span(&bad_message, 1))}) {
    auto space = reader.space().first(bytes.size());
    std::copy(bytes.begin(), bytes.end(), space.begin());
    reader.filled(bytes.size());
  }
}

// A connection is a descriptor, and there may be as many as the limits say.
void allow_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

// Everything but system calls, which come last because what is set up until then needs more of them.
tl::expected<void, std::string> give_up_rights() {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);  // a core file would hold the server's key
  ::close_range(ipc::kDescriptor + 1, ~0u, 0);
  allow_descriptors();
  auto restricted = restrict_paths({});
  if (!restricted) return tl::unexpected(restricted.error());
  if (::geteuid() == 0 && (::setgroups(0, nullptr) != 0 || ::setresgid(kNobody, kNobody, kNobody) != 0 ||
                           ::setresuid(kNobody, kNobody, kNobody) != 0))
    return tl::unexpected(std::string("cannot become nobody"));
  drop_capabilities();
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);         // nobody's other processes may not look in
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  // last: a change of credentials clears it
  return {};
}

int run() {
  for (int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_IGN);
  tls::start_openssl();
  rehearse();
  if (auto confined = give_up_rights(); !confined) return fail(confined.error());
  boost::asio::io_context io(1);
  AuthServer desk(
      io, OwnedDescriptor(ipc::kDescriptor), [] { return std::chrono::system_clock::now(); }, [&io] { io.stop(); });
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // whose runtimes make calls of their own
  if (auto confined = allow_system_calls(kSystemCalls, Violation::kill); !confined) return fail(confined.error());
#endif
  io.run();
  return 0;
}

}  // namespace
}  // namespace gpuwire::server

#if defined(__SANITIZE_ADDRESS__)
// What looks for leaks at the end reads /proc, which is out of reach by then.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() { return "detect_leaks=0"; }
#endif

int main(int argc, char** argv) {
  CLI::App app(gpuwire::server::part_of_server("Finds out who connects to a server."), "gpuwire login");
  if (auto code = gpuwire::parse_command_line(app, argc, argv)) return *code;
  if (auto code = gpuwire::server::started_by_hand("login")) return *code;
  return gpuwire::server::run();
}
