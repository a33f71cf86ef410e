// WebAnswers answers gpuwire-web's requests: each but a sign-in needs a ticket.
#pragma once

#include <chrono>
#include <functional>
#include <iosfwd>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "server/base/lifetime.hpp"
#include "server/control/client/metrics_json.hpp"
#include "server/control/sources.hpp"
#include "server/control/usage/recent_sessions.hpp"
#include "server/control/usage/use_history.hpp"
#include "server/control/web/sign_ins.hpp"

namespace gpuwire::server {

// The broker's thread only.
class WebAnswers {
 public:
  using Clock = SignIns::Clock;
  // `sources`: snapshot, end_session, suspend, suspend_for_user, resume and audit are used.
  WebAnswers(ControlSources sources, WebCredentials credentials, Clock clock = &std::chrono::steady_clock::now);

  // `line` comes from a process that talks to strangers. Returns {"ok":true,...} or {"ok":false,"error":"one line"};
  // with "signed_out" if the ticket is invalid.
  Json answer(std::string_view line);
  // `line` comes from the process that speaks TLS with visitors: a certificate that one of them has shown, with a proof
  // of its key. Returns {"ok":true,"grant":TEXT,"holder":TEXT}, or why the certificate does not count.
  Json answer_certificate(std::string_view line);

  // Reads the audit log of earlier servers.
  void read_history(std::istream& audit_log);
  // A session was admitted or has ended: `audit_line` is its line of the audit log.
  void note(std::string_view audit_line);
  // Returns a one-time code for an administrator.
  tl::expected<std::string, std::string> make_code() { return sign_ins_.make_code(); }

 private:
  // GPU time of ended sessions in the last day and month; cached, because it is a sum over many hours.
  struct Past {
    std::chrono::steady_clock::time_point made;
    double until_unix_s;
    GpuUse day, month;
  };
  Json sign_in(const Json& request);
  Json view(const Json& request, const WebVisitor& visitor);
  Json end(const Json& request, const WebVisitor& visitor);
  struct Move {
    const char *word, *event;
    const std::function<void(uint64_t, ControlSources::Moved)>& begin;
  };
  Json move(const Json& request, const WebVisitor& visitor, const Move& move);
  void note_move_failure(uint64_t session, std::string why);
  // Adds them to the sessions that the visitor may move.
  void add_move_failures(Snapshot& shown, const WebVisitor& visitor) const;
  const Snapshot& snapshot();
  const Past& past();
  Json use(bool month, const WebVisitor& visitor);
  Json ended(const WebVisitor& visitor) const;

  const ControlSources sources_;
  const Clock clock_;
  SignIns sign_ins_;
  UseHistory history_;
  RecentSessions recent_;
  std::optional<std::pair<std::chrono::steady_clock::time_point, Snapshot>> snapshot_;
  std::optional<Past> past_;
  // Why sessions were not suspended or resumed on the page, for kWebMoveFailureTime.
  std::map<uint64_t, std::pair<std::chrono::steady_clock::time_point, std::string>> move_failures_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
