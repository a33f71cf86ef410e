// What gpuwire-web may ask of the server, and the answers: everything but a sign-in needs the ticket of one.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/control/client/metrics_json.hpp"
#include "server/control/sources.hpp"
#include "server/control/usage/use_history.hpp"
#include "server/control/web/sign_ins.hpp"

namespace gpuwire::server {

// The broker's thread only.
class WebAnswers {
 public:
  using Clock = SignIns::Clock;
  // `sources`: snapshot, end_session and audit are used.
  WebAnswers(ControlSources sources, SignIns::TenantOfToken tenant_of_token, SignIns::Counts counts,
             Clock clock = &std::chrono::steady_clock::now);

  // `line` comes from a process that strangers speak with. {"ok":true,...} or {"ok":false,"error":"one line"}; with
  // "signed_out" where the ticket does not count.
  Json answer(std::string_view line);

  // What the audit log has from before.
  void read_history(std::istream& audit_log) { history_.read(audit_log); }
  // A session has ended: the line that the audit log has of it.
  void ended(std::string_view audit_line);
  // For an administrator: a one-time code.
  tl::expected<std::string, std::string> make_code() { return sign_ins_.make_code(); }

 private:
  // GPU time of ended sessions in the last day and month, looked up seldom: it is a sum over many hours.
  struct Past {
    std::chrono::steady_clock::time_point made;
    double until_unix_s;
    GpuUse day, month;
  };
  Json sign_in(const Json& request);
  Json view(const Json& request, const WebVisitor& visitor);
  Json end(const Json& request, const WebVisitor& visitor);
  const Snapshot& snapshot();
  const Past& past();
  Json use(bool month, const WebVisitor& visitor);

  const ControlSources sources_;
  const Clock clock_;
  SignIns sign_ins_;
  UseHistory history_;
  std::optional<std::pair<std::chrono::steady_clock::time_point, Snapshot>> snapshot_;
  std::optional<Past> past_;
};

}  // namespace gpuwire::server
