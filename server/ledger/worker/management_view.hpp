// What NVML tells a tenant about a device's memory: its quota, and what its own sessions have.
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

  // Puts itself before the functions that tell of memory. Outlives the table's use.
  void put_before(nvml::Table& table);

  struct Metrics {
    unsigned long long total, free, used;
  };
  // What the library says, cut to what the tenant may have; free and used are no more than the total.
  Metrics of(nvmlDevice device, Metrics library) const;
  const nvml::Table& bare() const { return bare_; }

 private:
  ManagementView(SharedPage<TenantPage> page, const SessionSpec& spec, std::span<const nvmlDevice> devices);

  SharedPage<TenantPage> page_;
  std::vector<std::pair<nvmlDevice, uint32_t>> columns_;
  nvml::Table bare_{};
};

}  // namespace gpuwire::server
