// Answers a tenant's queries about its own sessions and places in the queue, the load of the GPUs, its usage by day,
// and the start of a program; and ends, suspends and resumes the tenant's own sessions.
#pragma once

#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "scheduler/run_times.hpp"
#include "server/broker/admission/admission.hpp"
#include "server/broker/connection/query_answer.hpp"
#include "server/control/client/metrics.hpp"
#include "server/control/sources.hpp"
#include "server/control/usage/usage.hpp"
#include "server/control/view/metrics_view.hpp"
#include "server/log/log.hpp"

namespace gpuwire::server {

// The server reads this many bytes from the end of an existing audit log when it starts.
inline constexpr uint64_t kUsageReadBytesMax = 64u << 20;
inline constexpr unsigned kAnswerColumnsMax = 400;
// The number of sessions that one query may end, or suspend or resume.
inline constexpr size_t kSessionsNamedMax = 32;

// The sources of the answers.
struct TenantSources {
  std::function<Snapshot()> snapshot;  // of everything, now
  std::function<AdmissionPreview(const LoginRequest& asking)> preview;
  // Ends a session of this tenant, or of this user if the caller is a user; false: the caller has no session of this
  // number.
  std::function<bool(const LoginRequest& asking, uint64_t session)> end_session;
  // As ControlSources has them, for a session of the caller; false: the caller has no session of this number, and
  // `done` is not called.
  using Move = std::function<bool(const LoginRequest& asking, uint64_t session, ControlSources::Moved done)>;
  Move suspend, resume;
};

// Opens an audit log at its last kUsageReadBytesMax bytes; the first line may be incomplete. Not good(): the log cannot
// be read.
std::ifstream audit_tail(const std::string& audit_log);
// Returns the audit log's line about it.
std::string audit_line(std::string_view event, const LogFields& fields);

// The broker's thread only.
class TenantAnswers {
 public:
  explicit TenantAnswers(TenantSources sources) : sources_(std::move(sources)) {}

  // The audit log's lines from before.
  void read_usage(const std::string& audit_log);
  // A line of the audit log.
  void note(std::string_view event, const LogFields& fields);

  // Adds the estimated starts of waiting programs, as `check` estimates the start of a program that would wait; nothing
  // for unknown ones. `awaited_gpus`: Admission's.
  using AwaitedGpus = std::function<std::vector<scheduler::DeviceIndex>(uint64_t session)>;
  void add_starts(Snapshot& snapshot, const AwaitedGpus& awaited_gpus) const;

  // `query`: as in schema/login.capnp.
  QueryAnswer answer(const LoginRequest& asking, const std::string& query);

 private:
  // `words`: those of the query behind `format`.
  QueryResult answer_now(const LoginRequest& asking, const std::string& view, const std::string& format,
                         std::istream& words);
  // The present figures, which also begin or end an interval.
  Snapshot take_snapshot();
  const Snapshot& before() const { return before_ ? *before_ : *last_; }  // after take_snapshot()
  std::string usage(const LoginRequest& asking, UsageFormat format, const std::string& since, UsageBy by) const;
  std::string top(const LoginRequest& asking, bool json, unsigned columns, SortKey sort);
  std::string check(const LoginRequest& asking);
  QueryResult end(const LoginRequest& asking, std::istream& words);
  // The answer comes when all moves are over.
  static QueryAnswer move(const LoginRequest& asking, std::istream& words, const TenantSources::Move& move);

  const TenantSources sources_;
  UsageBook usage_;
  scheduler::RunTimes run_times_;          // of programs that this server has seen end
  std::optional<Snapshot> before_, last_;  // the basis of rates; no reader moves another's
};

}  // namespace gpuwire::server
