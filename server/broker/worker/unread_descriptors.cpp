#include "server/broker/worker/unread_descriptors.hpp"

#include <utility>

namespace gpuwire::server {

void UnreadDescriptors::watch(const void* worker, std::string tenant, std::function<bool()> all_read) {
  workers_[worker] = {std::move(tenant), std::move(all_read), 0};
}

size_t UnreadDescriptors::poll(Worker& worker) {
  if (worker.unread != 0 && worker.all_read()) worker.unread = 0;
  return worker.unread;
}

size_t UnreadDescriptors::unread(const void* worker) {
  auto found = workers_.find(worker);
  return found == workers_.end() ? 0 : poll(found->second);
}

bool UnreadDescriptors::room(const void* worker) {
  auto found = workers_.find(worker);
  if (found == workers_.end()) return false;
  const size_t own = poll(found->second);
  if (own == 0) return true;
  if (own >= limits_.per_worker) return false;
  size_t all = 0;
  for (auto& [other, one] : workers_) {
    if (one.tenant == found->second.tenant) all += poll(one);
  }
  return all < limits_.per_tenant;
}

bool UnreadDescriptors::add(const void* worker) {
  if (!room(worker)) return false;
  ++workers_.at(worker).unread;
  return true;
}

}  // namespace gpuwire::server
