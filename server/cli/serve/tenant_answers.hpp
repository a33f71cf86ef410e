// The answers to a tenant about its own: its sessions and places in the queue, the load of the GPUs, its use by day,
// whether a program would start now; and the ends of its own sessions.
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

// This many bytes of the end of an existing audit log are read when the server starts.
inline constexpr uint64_t kUsageReadBytesMax = 64u << 20;
inline constexpr unsigned kAnswerColumnsMax = 400;
// Sessions that one question may end.
inline constexpr size_t kSessionsEndedMax = 32;

// The sources of the answers.
struct TenantSources {
  std::function<Snapshot()> snapshot;  // of everything, now
  std::function<AdmissionPreview(const LoginRequest& asking)> preview;
  // Ends a session of this tenant, or of this user if the caller is one; false: there is none of this number.
  std::function<bool(const LoginRequest& asking, uint64_t session)> end_session;
};

// An audit log from where its last kUsageReadBytesMax bytes begin; the first line may be a part of one. Not good(): it
// cannot be read.
std::ifstream audit_tail(const std::string& audit_log);
// The line that the audit log has of it.
std::string audit_line(std::string_view event, const LogFields& fields);

// The broker's thread only.
class TenantAnswers {
 public:
  explicit TenantAnswers(TenantSources sources) : sources_(std::move(sources)) {}

  // The audit log's lines from before.
  void read_usage(const std::string& audit_log);
  // A line of the audit log.
  void note(std::string_view event, const LogFields& fields);

  // Adds when those who wait may expect to start, as `check` says it of one that would wait; nothing where nothing is
  // known. `awaited_gpus`: Admission's.
  using AwaitedGpus = std::function<std::vector<scheduler::DeviceIndex>(uint64_t session)>;
  void add_starts(Snapshot& snapshot, const AwaitedGpus& awaited_gpus) const;

  // `query`: as in schema/login.capnp. The error refuses.
  tl::expected<std::string, std::string> answer(const LoginRequest& asking, const std::string& query);

 private:
  // Now, which is also one end of an interval.
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
