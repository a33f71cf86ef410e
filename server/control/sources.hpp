// ControlSources has the functions of the server that the control socket uses.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>
#include <tl/expected.hpp>

#include "server/control/client/metrics.hpp"
#include "server/log/log.hpp"

namespace gpuwire::server {

// A code that signs an administrator in to the web page, once.
struct WebCode {
  std::string code, url;
  uint64_t seconds = 0;  // the code's lifetime
};

// A GPU that is drained, or not any more.
struct GpuDrain {
  struct Session {
    uint64_t id = 0;
    bool away = false;  // its memory is with the host
    std::string text;   // its state, or why it is not away yet
  };
  bool drained = false;
  bool changed = false;           // by this request
  std::vector<Session> sessions;  // that have the GPU
};

struct ReloadRefused {
  std::string why;                 // the cause, in one phrase
  std::vector<std::string> lines;  // details
};

// All are called on the thread of the control socket's io_context, and must not block. A command whose function is not
// set is not offered.
struct ControlSources {
  std::function<Snapshot()> snapshot;
  // Reads the configuration again. Returns the changes, in one line; the error says why nothing has changed, with one
  // line for each mistake. `confirmed`: also if sessions would be lost.
  std::function<tl::expected<std::string, ReloadRefused>(bool confirmed)> reload;
  // Returns false if there is no such session. The client shows `reason`.
  std::function<bool(uint64_t session, const std::string& reason)> end_session;
  // Returns the number of sessions, waiting ones included, that were told to end; nothing: there is no such tenant.
  std::function<std::optional<size_t>(const std::string& tenant, const std::string& reason)> end_tenant;
  // A certificate or token of the identity in `directory` was revoked. Returns the number of sessions that end with it;
  // nothing: the server uses another identity.
  std::function<std::optional<size_t>(const std::string& directory, const std::string& identity)> revoked;
  // Suspends the session, or resumes it, and answers once with the result in words, or with the reason why not; perhaps
  // before it returns.
  using Moved = std::function<void(const tl::expected<std::string, std::string>&)>;
  std::function<void(uint64_t session, Moved)> suspend, resume;
  // As suspend(), for the session's own user.
  std::function<void(uint64_t session, Moved)> suspend_for_user;
  // Returns the tenant's sessions; nothing: there is no such tenant.
  std::function<std::optional<std::vector<uint64_t>>(const std::string& tenant)> sessions_of;
  // Drains the GPU, ends that, or changes nothing; all return the present state. The error: there is no such GPU.
  std::function<tl::expected<GpuDrain, std::string>(uint64_t gpu)> drain, undrain, drain_of;
  std::function<tl::expected<WebCode, std::string>()> web_code;
  // Returns the tenants that this user may be on a Unix socket, and may see here.
  std::function<std::vector<std::string>(uid_t)> tenants_of_user;
  // Writes an administrator's action to the audit log.
  std::function<void(std::string_view event, const LogFields& fields)> audit;
};

}  // namespace gpuwire::server
