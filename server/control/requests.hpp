// What a peer of the control socket may ask, and the answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "server/control/client/metrics_json.hpp"
#include "server/control/sources.hpp"

namespace gpuwire::server {

// Who is at the other end, by the kernel's word.
struct ControlPeer {
  uid_t uid = 0;
  pid_t pid = 0;
  bool everything = false;           // root and the server's own user
  std::vector<std::string> tenants;  // the only ones that it may see, when not everything
};

struct ControlAnswer {
  Json json;
  uint32_t watch_interval_ms =
      0;  // not zero: `json` is empty, and a snapshot follows each time this has passed, from now on
};

// `line` comes from anybody on this host. The answer is {"ok":true,...} or {"ok":false,"error":"one line"}.
ControlAnswer answer_request(std::string_view line, const ControlPeer& peer, const ControlSources& sources);

// What these tenants see: the devices, and of tenants and sessions their own. `user`: who of the tenants sees it, and
// learns of other users' budgets nothing; empty: nobody in particular, who sees all of them.
Snapshot own_snapshot(Snapshot snapshot, const std::vector<std::string>& tenants, const std::string& user = {});

// The snapshot as this peer may see it, in an answer.
Json snapshot_answer(const ControlPeer& peer, const ControlSources& sources);
Json failed_answer(const std::string& error);

}  // namespace gpuwire::server
