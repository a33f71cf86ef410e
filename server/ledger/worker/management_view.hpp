// NVML's view of a device's memory for a tenant: its quota, and the memory of its own sessions.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "nvml/table.hpp"
#include "server/ipc/session_spec.hpp"
#include "server/ledger/page/tenant_page.hpp"
#include "server/ledger/page/user_page.hpp"

namespace gpuwire::server {

// At most one instance in a process, because NVML's functions have no argument to pass it in. Executor thread only.
class ManagementView {
 public:
  // `users`: the page of the tenant's users, may be empty. `devices`: the library's devices, in the order of the
  // session spec.
  static tl::expected<std::unique_ptr<ManagementView>, std::string> open(OwnedDescriptor page, OwnedDescriptor users,
                                                                         const SessionSpec& spec,
                                                                         std::span<const nvmlDevice> devices);
  ~ManagementView();
  ManagementView(const ManagementView&) = delete;
  ManagementView& operator=(const ManagementView&) = delete;

  // Wraps the table's functions that report memory. This object outlives the table's use.
  void put_before(nvml::Table& table);

  struct Metrics {
    unsigned long long total, free, used;
  };
  // The library's figures, cut to the tenant's allowance, or to the user's bound; free and used are no more than the
  // total.
  Metrics of(nvmlDevice device, Metrics library) const;
  const nvml::Table& bare() const { return bare_; }

 private:
  ManagementView(SharedPage<TenantPage> page, SharedPage<UserPage> users, const SessionSpec& spec,
                 std::span<const nvmlDevice> devices);

  SharedPage<TenantPage> page_;
  SharedPage<UserPage> users_;
  // Limit 0: there is none.
  const uint64_t user_, user_limit_bytes_;
  std::vector<std::pair<nvmlDevice, uint32_t>> columns_;
  nvml::Table bare_{};
};

}  // namespace gpuwire::server
