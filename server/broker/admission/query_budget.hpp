// Bounds how often each tenant's queries are answered: `gpuwire queue`, `top` and `usage` at a server.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// A bucket for each tenant: kQueriesAtOnce of them, and one more every kQueryRefillMs. An answer costs the broker's one
// thread a look at all sessions, and waits in the login process until its client has taken it.
class QueryBudget {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  explicit QueryBudget(Clock clock = &std::chrono::steady_clock::now) : clock_(std::move(clock)) {}

  // False: the tenant has asked too often, and is not to be answered now.
  bool take(const std::string& tenant) {
    const auto now = clock_();
    // A tenant with a full bucket is forgotten, so that there are as many buckets as tenants with recent queries.
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
