// EndedSessions has the reasons of ended sessions, for clients that reconnect to them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// It has the newest ones of each tenant, for as long as this broker runs. A client gets the reason if it is of the same
// tenant and shows the session's identity, 128 random bits that only the session's own client was told; the session's
// secret was its worker's, and is gone with the worker. The broker's thread only.
class EndedSessions {
 public:
  using WireId = std::array<uint8_t, 16>;
  struct Limits {
    size_t per_tenant = kEndedPerTenantMax, all = kEndedMax;
  };
  EndedSessions() = default;
  explicit EndedSessions(Limits limits) : limits_(limits) {}

  // Stores the first kEndedCauseBytesMax bytes of `why`.
  void add(const std::string& tenant, const WireId& session, std::string why);
  // Returns the reason; empty: unknown.
  std::string why(const std::string& tenant, const std::string& session) const;
  // As why(), over the tenants for which `told` returns true.
  std::string why(const std::function<bool(const std::string& tenant)>& told, const std::string& session) const;
  size_t size() const { return size_; }

 private:
  struct Ended {
    WireId session;
    std::string why;
  };
  void drop_oldest(const std::string& tenant);

  const Limits limits_;
  // Each list oldest first, none empty.
  std::map<std::string, std::deque<Ended>> tenants_;
  size_t size_ = 0;
};

}  // namespace gpuwire::server
