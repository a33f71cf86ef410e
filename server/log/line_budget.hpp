// Limits the log lines that a client can cause: each tenant or address has its own budget, and omitted lines are
// counted.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace gpuwire::server {

// A bucket of lines for each key: `at_once` of them, and one more every `refill`. One thread.
class LineBudget {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Limits {
    double at_once = 0;
    std::chrono::milliseconds refill{1};
    // The largest number of keys with a bucket that is not full. Further keys share one bucket, that of the empty key.
    size_t keys_max = 4096;
  };
  explicit LineBudget(Limits limits) : limits_(limits) {}

  // Decides about a line: returns the number of omitted lines of the key before it; none: this line is omitted, too.
  // The report of the number also costs a line. `kept`: the number of lines in the bucket that are reserved for more
  // important lines. `tells`: the number may be reported before this line.
  std::optional<uint64_t> take(std::string key, Time now, double kept = 0, bool tells = true) {
    forget_full(now);
    if (!buckets_.contains(key) && buckets_.size() >= limits_.keys_max) key.clear();
    Bucket& bucket = buckets_.try_emplace(std::move(key), Bucket{limits_.at_once, now, 0}).first->second;
    bucket.left = refilled(bucket, now);
    bucket.since = now;
    const double costs = tells && bucket.left_out != 0 ? 2 : 1;
    if (bucket.left - kept < costs) {
      ++bucket.left_out;
      return std::nullopt;
    }
    bucket.left -= costs;
    return tells ? std::exchange(bucket.left_out, 0) : 0;
  }
  // Calls told(key, left_out) for each key with omitted lines whose bucket is full again.
  template <class Told>
  void settle(Time now, Told&& told) {
    for (auto& [key, bucket] : buckets_) {
      if (bucket.left_out != 0 && refilled(bucket, now) >= limits_.at_once)
        told(key, std::exchange(bucket.left_out, 0));
    }
  }
  size_t keys() const { return buckets_.size(); }

 private:
  struct Bucket {
    double left;
    Time since;
    uint64_t left_out;
  };
  double refilled(const Bucket& bucket, Time now) const {
    const std::chrono::duration<double, std::milli> past = now - bucket.since;
    return std::min(bucket.left + past.count() / double(limits_.refill.count()), limits_.at_once);
  }
  void forget_full(Time now) {
    std::erase_if(buckets_, [&](const auto& one) {
      return one.second.left_out == 0 && refilled(one.second, now) >= limits_.at_once;
    });
  }

  Limits limits_;
  std::map<std::string, Bucket> buckets_;
};

}  // namespace gpuwire::server
