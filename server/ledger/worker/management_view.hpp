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

namespace gpuwire::server {

// One at a time in a process: NVML's functions have no room for an argument of ours. Executor thread only.
class ManagementView {
 public:
  // `devices`: the library's, as the session spec counts them.
  static tl::expected<std::unique_ptr<ManagementView>, std::string> open(OwnedDescriptor page, const SessionSpec& spec,
                                                                         std::span<const nvmlDevice> devices);
  ~ManagementView();
  ManagementView(const ManagementView&) = delete;
  ManagementView& operator=(const ManagementView&) = delete;

  // Wraps the functions that report memory. Outlives the table's use.
  void put_before(nvml::Table& table);

  struct Metrics {
    unsigned long long total, free, used;
  };
  // The library's figures, cut to the tenant's allowance; free and used are no more than the total.
  Metrics of(nvmlDevice device, Metrics library) const;
  const nvml::Table& bare() const { return bare_; }

 private:
  ManagementView(SharedPage<TenantPage> page, const SessionSpec& spec, std::span<const nvmlDevice> devices);

  SharedPage<TenantPage> page_;
  std::vector<std::pair<nvmlDevice, uint32_t>> columns_;
  nvml::Table bare_{};
};

}  // namespace gpuwire::server
