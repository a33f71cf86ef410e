// UnreadDescriptors counts the descriptors that were sent to workers and that they have not read.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// An unread message keeps its descriptors open, in the broker or in the kernel, which charges them to the broker's
// user. The kernel does not tell how many descriptors a pair holds, only whether it holds a message: so all descriptors
// sent since the pair was last empty count. The broker's thread only.
class UnreadDescriptors {
 public:
  struct Limits {
    size_t per_worker = kUnreadPerWorkerMax, per_tenant = kUnreadPerTenantMax;
  };
  UnreadDescriptors() = default;
  explicit UnreadDescriptors(Limits limits) : limits_(limits) {}

  // Counts for a worker until forget(); `all_read`: whether it has read all its messages.
  void watch(const void* worker, std::string tenant, std::function<bool()> all_read);
  void forget(const void* worker) { workers_.erase(worker); }
  // Whether the worker may be sent one more. The tenant's bound applies only to workers with unread descriptors: a
  // worker that reads is not held up by others.
  bool room(const void* worker);
  // Counts one more sent descriptor. Returns false, and counts nothing, if there is no room.
  bool add(const void* worker);
  // Returns the upper bound of the worker's unread descriptors.
  size_t unread(const void* worker);

 private:
  struct Worker {
    std::string tenant;
    std::function<bool()> all_read;
    size_t unread = 0;
  };
  static size_t poll(Worker& worker);

  const Limits limits_;
  std::map<const void*, Worker> workers_;
};

}  // namespace gpuwire::server
