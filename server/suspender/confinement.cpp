#include "server/suspender/confinement.hpp"

#include <csignal>

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/confinement/front_process.hpp"
#include "server/confinement/system_calls.hpp"
#include "server/ipc/channel.hpp"

namespace gpuwire::server {

void confine_suspender(bool keeps_rights) {
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::close_range(ipc::kDescriptor + 1, ~0u, 0);
  ignore_signals();
  if (!keeps_rights) drop_capabilities();
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);         // other processes of this user may not take its channel
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  // last: a change of credentials clears it
}

}  // namespace gpuwire::server
