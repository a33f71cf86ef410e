// The requests of the control socket, and their answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "server/control/client/metrics_json.hpp"
#include "server/control/sources.hpp"

namespace gpuwire::server {

// The peer, as the kernel identifies it.
struct ControlPeer {
  uid_t uid = 0;
  pid_t pid = 0;
  // Root and the server's own user.
  bool everything = false;
  // The tenants that it may see, if not everything.
  std::vector<std::string> tenants;
};

struct ControlAnswer {
  Json json;
  // Not zero: a watch; `json` is empty, and a snapshot follows at once and after each interval.
  uint32_t watch_interval_ms = 0;
  // Not empty: `json` is empty. The server calls it once with a function that takes the answer, now or later.
  std::function<void(std::function<void(Json)>)> later = {};
};

// `line` comes from any process of this host. Returns {"ok":true,...} or {"ok":false,"error":"one line"}.
ControlAnswer answer_request(std::string_view line, const ControlPeer& peer, const ControlSources& sources);

// Returns the part of the snapshot that these tenants may see: the devices, and their own tenants and sessions. `user`:
// the tenants' user, who does not see other users' budgets; empty: no particular user, who sees all budgets.
Snapshot own_snapshot(Snapshot snapshot, const std::vector<std::string>& tenants, const std::string& user = {});

// Returns an answer with the snapshot that this peer may see.
Json snapshot_answer(const ControlPeer& peer, const ControlSources& sources);
Json failed_answer(const std::string& error);

}  // namespace gpuwire::server
