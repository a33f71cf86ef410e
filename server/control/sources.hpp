// What the control socket needs of the server behind it.
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

// Signs an administrator in to the web page, once.
struct WebCode {
  std::string code, url;
  uint64_t seconds = 0;  // for so long
};

struct ReloadRefused {
  std::string why;                 // one phrase
  std::vector<std::string> lines;  // more of it
};

// All are called on the thread that runs the control socket's io_context, and must not block. One that is not set: the
// command is not offered.
struct ControlSources {
  std::function<Snapshot()> snapshot;
  // Reads the configuration again. What has changed, in one line; or why nothing has, and every mistake, one line each.
  // `confirmed`: also when sessions would be lost.
  std::function<tl::expected<std::string, ReloadRefused>(bool confirmed)> reload;
  // False: there is no such session. `reason` is shown on the client.
  std::function<bool(uint64_t session, const std::string& reason)> end_session;
  // How many sessions, waiting ones included, were told to end. Nothing: there is no such tenant.
  std::function<std::optional<size_t>(const std::string& tenant, const std::string& reason)> end_tenant;
  // A certificate or token of the identity in `directory` was revoked: how many sessions end with it. Nothing: the
  // server uses another identity.
  std::function<std::optional<size_t>(const std::string& directory, const std::string& identity)> revoked;
  std::function<tl::expected<WebCode, std::string>()> web_code;
  // The tenants that this user may be on a Unix socket, and may see here.
  std::function<std::vector<std::string>(uid_t)> tenants_of_user;
  // What an administrator has done, for the audit log.
  std::function<void(std::string_view event, const LogFields& fields)> audit;
};

}  // namespace gpuwire::server
