// Answers a tenant's queries about its own sessions and places in the queue, the load of the GPUs, its usage by day,
// and the start of a program; and ends the tenant's own sessions.
#pragma once

#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "scheduler/run_times.hpp"
#include "server/broker/admission/admission.hpp"
#include "server/control/client/metrics.hpp"
#include "server/control/usage/usage.hpp"
#include "server/control/view/metrics_view.hpp"
#include "server/log/log.hpp"

namespace gpuwire::server {

// The server reads this many bytes from the end of an existing audit log when it starts.
inline constexpr uint64_t kUsageReadBytesMax = 64u << 20;
inline constexpr unsigned kAnswerColumnsMax = 400;
// The number of sessions that one query may end.
inline constexpr size_t kSessionsEndedMax = 32;

// The sources of the answers.
struct TenantSources {
  std::function<Snapshot()> snapshot;  // of everything, now
  std::function<AdmissionPreview(const LoginRequest& asking)> preview;
  // Ends a session of this tenant, or of this user if the caller is a user; false: the caller has no session of this
  // number.
  std::function<bool(const LoginRequest& asking, uint64_t session)> end_session;
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

  // `query`: as in schema/login.capnp. The error refuses.
  tl::expected<std::string, std::string> answer(const LoginRequest& asking, const std::string& query);

 private:
  // The present figures, which also begin or end an interval.
  Snapshot take_snapshot();
  const Snapshot& before() const { return before_ ? *before_ : *last_; }  // after take_snapshot()
  std::string usage(const LoginRequest& asking, UsageFormat format, const std::string& since, UsageBy by) const;
  std::string top(const LoginRequest& asking, bool json, unsigned columns, SortKey sort);
  std::string check(const LoginRequest& asking);
  tl::expected<std::string, std::string> end(const LoginRequest& asking, std::istream& words);

  const TenantSources sources_;
  UsageBook usage_;
  scheduler::RunTimes run_times_;          // of programs that this server has seen end
  std::optional<Snapshot> before_, last_;  // the basis of rates; no reader moves another's
};

}  // namespace gpuwire::server
