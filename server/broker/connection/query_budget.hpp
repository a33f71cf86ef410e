// QueryBudget bounds the rate of answers to each tenant's queries: `gpuwire queue`, `top` and `usage` at a server.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// Each tenant has a bucket of kQueriesAtOnce answers, refilled by one every kQueryRefillMs. An answer costs the
// broker's one thread a pass over all sessions, and waits in the login process until its client has read it.
class QueryBudget {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  explicit QueryBudget(Clock clock = &std::chrono::steady_clock::now) : clock_(std::move(clock)) {}

  // Returns false if the tenant has asked too often: it must not be answered now.
  bool take(const std::string& tenant) {
    const auto now = clock_();
    // A full bucket is erased, so that only tenants with recent queries have one.
    std::erase_if(buckets_, [&](const auto& one) { return one.second.refilled(now) >= kQueriesAtOnce; });
    auto [at, added] = buckets_.try_emplace(tenant, Bucket{kQueriesAtOnce, now});
    Bucket& bucket = at->second;
    bucket = {bucket.refilled(now), now};
    if (bucket.left < 1) return false;
    bucket.left -= 1;
    return true;
  }
  size_t tenants() const { return buckets_.size(); }

 private:
  struct Bucket {
    double left;
    std::chrono::steady_clock::time_point since;
    double refilled(std::chrono::steady_clock::time_point now) const {
      const std::chrono::duration<double, std::milli> past = now - since;
      return std::min(left + past.count() / kQueryRefillMs, double(kQueriesAtOnce));
    }
  };
  Clock clock_;
  std::map<std::string, Bucket> buckets_;
};

}  // namespace gpuwire::server
