// Why sessions have ended, for clients that come back to them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// The newest of each tenant; as long as this broker runs. A cause is told to a client that shows the session's
// identity, 128 random bits that its own client alone was told, and that is of the same tenant: the session's secret
// was its worker's, and is gone with it. The broker's thread only.
class EndedSessions {
 public:
  using WireId = std::array<uint8_t, 16>;
  struct Limits {
    size_t per_tenant = kEndedPerTenantMax, all = kEndedMax;
  };
  EndedSessions() = default;
  explicit EndedSessions(Limits limits) : limits_(limits) {}

  // Of `why` kEndedCauseBytesMax are kept.
  void add(const std::string& tenant, const WireId& session, std::string why);
  // Empty: it is not known.
  std::string why(const std::string& tenant, const std::string& session) const;
  // As why(), of each tenant of which `told` says that its causes may be told.
  std::string why(const std::function<bool(const std::string& tenant)>& told, const std::string& session) const;
  size_t size() const { return size_; }

 private:
  struct Ended {
    WireId session;
    std::string why;
  };
  void drop_oldest(const std::string& tenant);

  const Limits limits_;
  std::map<std::string, std::deque<Ended>> tenants_;  // each oldest first, and none empty
  size_t size_ = 0;
};

}  // namespace gpuwire::server
