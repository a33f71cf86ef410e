// Descriptors on their way to workers: sent, and not read yet.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "server/broker/limits.hpp"

namespace gpuwire::server {

// A message that a worker does not read keeps its descriptors open, in the broker or with the kernel, which counts them
// to the broker's user. How many of a pair's are still there cannot be asked for, but whether any message is: from the
// last moment at which there was none, all that were sent count. The broker's thread only.
class UnreadDescriptors {
 public:
  struct Limits {
    size_t per_worker = kUnreadPerWorkerMax, per_tenant = kUnreadPerTenantMax;
  };
  UnreadDescriptors() = default;
  explicit UnreadDescriptors(Limits limits) : limits_(limits) {}

  // For a worker, until forget(); `all_read`: whether it has read everything that it was sent.
  void watch(const void* worker, std::string tenant, std::function<bool()> all_read);
  void forget(const void* worker) { workers_.erase(worker); }
  // Whether the worker may be sent one more. The tenant's bound applies to workers with unread ones: a worker that
  // reads pays for no other.
  bool room(const void* worker);
  // It is sent one. False, and nothing is counted: there is no room.
  bool add(const void* worker);
  // As far as is known.
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
