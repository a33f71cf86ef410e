// Attempts bounds the rate of an address's sign-in attempts.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "server/web/limits.hpp"

namespace gpuwire::server::web {

// Each address has a bucket. Tokens cannot be guessed; the bound limits the cost of guesses for the server, and the
// audit log's lines. Addresses beyond kAttemptAddressesMax share one bucket.
class Attempts {
 public:
  using Clock = std::function<std::chrono::steady_clock::time_point()>;
  explicit Attempts(Clock clock = &std::chrono::steady_clock::now) : clock_(std::move(clock)) {}

  // Returns false if the address has no attempt left now.
  bool take(const std::string& address) {
    const auto now = clock_();
    std::erase_if(buckets_, [&](const auto& one) { return one.second.refilled(now) >= kAttemptsAtOnce; });
    Bucket& bucket = bucket_of(address);
    bucket = {bucket.refilled(now), now};
    if (bucket.left < 1) return false;
    bucket.left -= 1;
    return true;
  }
  // Returns the attempt to the bucket: it has succeeded.
  void give_back(const std::string& address) {
    Bucket& bucket = bucket_of(address);
    bucket.left = std::min(bucket.left + 1, double(kAttemptsAtOnce));
  }

 private:
  struct Bucket {
    double left;
    std::chrono::steady_clock::time_point since;
    double refilled(std::chrono::steady_clock::time_point now) const {
      const std::chrono::duration<double> past = now - since;
      return std::min(left + past.count() / double(kAttemptRefill.count()), double(kAttemptsAtOnce));
    }
  };
  Bucket& bucket_of(const std::string& address) {
    const bool room = buckets_.size() < kAttemptAddressesMax || buckets_.contains(address);
    return buckets_.try_emplace(room ? address : std::string(), Bucket{kAttemptsAtOnce, clock_()}).first->second;
  }
  const Clock clock_;
  std::map<std::string, Bucket> buckets_;
};

}  // namespace gpuwire::server::web
