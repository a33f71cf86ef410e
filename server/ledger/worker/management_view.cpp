#include "server/ledger/worker/management_view.hpp"

#include <algorithm>

#include "protocol/nvml/abi.hpp"

namespace gpuwire::server {
namespace {

ManagementView* the_view = nullptr;

int memory_info(nvmlDevice device, void* memory) {
  auto* out = static_cast<nvml::Memory*>(memory);
  int status = the_view->bare().nvmlDeviceGetMemoryInfo(device, out);
  if (status != nvml::kSuccess) return status;
  auto figures = the_view->of(device, {out->total, out->free, out->used});
  // All memory that is not free counts as used (nvml.h, nvmlMemory_t), including memory of other tenants and of the
  // driver.
  *out = {figures.total, figures.free, figures.total - figures.free};
  return status;
}

int memory_info_2(nvmlDevice device, void* memory) {
  auto* out = static_cast<nvml::Memory2*>(memory);
  int status = the_view->bare().nvmlDeviceGetMemoryInfo_v2(device, out);
  if (status != nvml::kSuccess) return status;
  auto figures = the_view->of(device, {out->total, out->free, out->used});
  out->total = figures.total, out->free = figures.free, out->used = figures.used;
  // The three figures add up to the total (nvml.h, nvmlMemory_v2_t).
  out->reserved = figures.total - figures.free - figures.used;
  return status;
}

}  // namespace

tl::expected<std::unique_ptr<ManagementView>, std::string> ManagementView::open(OwnedDescriptor page,
                                                                                OwnedDescriptor users,
                                                                                const SessionSpec& spec,
                                                                                std::span<const nvmlDevice> devices) {
  auto mapping = SharedPage<TenantPage>::map(std::move(page));
  if (!mapping) return tl::unexpected(mapping.error());
  auto of_users = SharedPage<UserPage>::map_if_any(std::move(users));
  if (!of_users) return tl::unexpected(of_users.error());
  return std::unique_ptr<ManagementView>(new ManagementView(std::move(*mapping), std::move(*of_users), spec, devices));
}

ManagementView::ManagementView(SharedPage<TenantPage> page, SharedPage<UserPage> users, const SessionSpec& spec,
                               std::span<const nvmlDevice> devices)
    : page_(std::move(page)),
      users_(std::move(users)),
      user_(spec.ledger_user),
      user_limit_bytes_(users_.get() ? spec.user_limit_bytes : 0) {
  for (size_t i = 0; i < devices.size() && i < spec.devices.size(); ++i) {
    if (spec.devices[i].index < kPageDevicesMax) columns_.emplace_back(devices[i], spec.devices[i].index);
  }
  the_view = this;
}

ManagementView::~ManagementView() { the_view = nullptr; }

void ManagementView::put_before(nvml::Table& table) {
  bare_ = table;
  if (table.nvmlDeviceGetMemoryInfo) table.nvmlDeviceGetMemoryInfo = memory_info;
  if (table.nvmlDeviceGetMemoryInfo_v2) table.nvmlDeviceGetMemoryInfo_v2 = memory_info_2;
}

ManagementView::Metrics ManagementView::of(nvmlDevice device, Metrics library) const {
  auto found = std::find_if(columns_.begin(), columns_.end(), [&](const auto& entry) { return entry.first == device; });
  // A device that the tenant may not use has no memory for it.
  if (found == columns_.end()) return {library.total, 0, 0};
  const PageColumn& column = page_->column[found->second];
  uint64_t used = used_by_all(*page_, found->second), held = held_by_all(*page_, found->second),
           reach = std::max(bounded(column.allowance.load()), bounded(column.reach.load()));
  uint64_t total = std::min<uint64_t>(library.total, bounded(column.limit.load()));
  uint64_t left = std::min(reach, total);
  left -= std::min(left, held);
  if (user_limit_bytes_) {
    used = used_by_user(*page_, *users_, found->second, user_);
    held = held_by_user(*page_, *users_, found->second, user_);
    total = std::min<uint64_t>(total, user_limit_bytes_);
    left = std::min(left, user_limit_bytes_ - std::min(user_limit_bytes_, held));
  }
  used = std::min(used, total);
  return {total, std::min<uint64_t>({library.free, left, total - used}), used};
}

}  // namespace gpuwire::server
