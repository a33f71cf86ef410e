#include "server/confinement/front_process.hpp"

#include <csignal>
#include <cstdio>

#include <grp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/confinement/landlock.hpp"
#include "server/confinement/system_calls.hpp"

namespace gpuwire::server {
namespace {

constexpr uid_t kNobody = 65534;

}  // namespace

void ignore_signals() {
  for (int number : {SIGPIPE, SIGINT, SIGTERM, SIGHUP, SIGUSR2}) std::signal(number, SIG_IGN);
}

void allow_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

tl::expected<void, std::string> become_nobody() {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);  // a core file would hold the server's key, or visitors' tickets
  auto restricted = restrict_paths({});
  if (!restricted) return tl::unexpected(restricted.error());
  if (::geteuid() == 0 && (::setgroups(0, nullptr) != 0 || ::setresgid(kNobody, kNobody, kNobody) != 0 ||
                           ::setresuid(kNobody, kNobody, kNobody) != 0))
    return tl::unexpected(std::string("cannot become nobody"));
  drop_capabilities();
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);         // other processes of user nobody may not inspect this one
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  // last, because a change of credentials clears it
  return {};
}

tl::expected<void, std::string> limit_system_calls([[maybe_unused]] ProcessKind kind) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  return confine_system_calls(kind, Violation::kill);
#else
  return {};
#endif
}

int fail_to_start(const char* program, const std::string& reason) {
  std::fprintf(stderr, "%s: %s\n", program, reason.c_str());
  return 1;
}

}  // namespace gpuwire::server
