// What a tenant hears of its own: its sessions and places in the queue, the load of the GPUs, what it has used by day.
#pragma once

#include <functional>
#include <istream>
#include <optional>
#include <string>
#include <string_view>

#include <tl/expected.hpp>

#include "server/control/client/metrics.hpp"
#include "server/control/usage/usage.hpp"
#include "server/control/view/metrics_view.hpp"
#include "server/log/log.hpp"

namespace gpuwire::server {

// Of an audit log that is there when the server starts, so many bytes of its end are read.
inline constexpr uint64_t kUsageReadBytesMax = 64u << 20;
inline constexpr unsigned kAnswerColumnsMax = 400;

// The broker's thread only.
class TenantAnswers {
 public:
  // `snapshot`: of everything, now.
  explicit TenantAnswers(std::function<Snapshot()> snapshot) : take_snapshot_(std::move(snapshot)) {}

  // What the audit log has from before.
  void read_usage(const std::string& audit_log);
  // A line of the audit log.
  void note(std::string_view event, const LogFields& fields);

  // `query`: as in schema/login.capnp. The error refuses.
  tl::expected<std::string, std::string> answer(const std::string& tenant, const std::string& query);

 private:
  std::string top(const std::string& tenant, bool json, unsigned columns, SortKey sort);

  const std::function<Snapshot()> take_snapshot_;
  UsageBook usage_;
  std::optional<Snapshot> before_, last_;  // what a rate is made of; nobody's reading moves another's
};

}  // namespace gpuwire::server
