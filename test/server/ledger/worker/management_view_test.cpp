// NVML's memory values for a tenant on a shared GPU.
#include "server/ledger/worker/management_view.hpp"

#include <algorithm>
#include <array>

#include <doctest/doctest.h>
#include <unistd.h>

#include "protocol/nvml/abi.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kGiB = 1u << 30;
constexpr uint64_t kTotal = 100 * kGiB, kFree = 30 * kGiB, kReserved = 1 * kGiB;

int memory_info(nvmlDevice, void* out) {
  *static_cast<nvml::Memory*>(out) = {kTotal, kFree, kTotal - kFree};
  return nvml::kSuccess;
}
int memory_info_2(nvmlDevice, void* out) {
  auto* memory = static_cast<nvml::Memory2*>(out);
  memory->total = kTotal, memory->reserved = kReserved, memory->free = kFree, memory->used = kTotal - kFree - kReserved;
  return nvml::kSuccess;
}

struct Shown {
  nvml::Memory first{};
  nvml::Memory2 second{};
};

struct OfUser {
  uint64_t used = 0, limit = 0;  // of `used`; 0: no bound
};

// A tenant that has `used` and may have `limit`, and one of its users.
Shown shown_to_tenant(uint64_t used, uint64_t limit, OfUser user = {}) {
  auto page = SharedPage<TenantPage>::create();
  REQUIRE(page);
  (*page)->slots = 3;
  (*page)->column[0].limit = limit;
  (*page)->column[0].allowance = used;
  (*page)->column[0].reach = limit;
  (*page)->column[0].used[1] = used - user.used;
  (*page)->column[0].used[2] = user.used;
  auto users = SharedPage<UserPage>::create();
  REQUIRE(users);
  (*users)->user[2] = user_key("anna");
  const std::array<nvmlDevice, 1> devices{};
  const SessionSpec spec{.devices = {{.index = 0}}, .ledger_user = user_key("anna"), .user_limit_bytes = user.limit};
  auto view = ManagementView::open(OwnedDescriptor(::dup(page->descriptor())),
                                   OwnedDescriptor(::dup(users->descriptor())), spec, devices);
  REQUIRE(view);
  nvml::Table table{};
  table.nvmlDeviceGetMemoryInfo = memory_info;
  table.nvmlDeviceGetMemoryInfo_v2 = memory_info_2;
  (*view)->put_before(table);
  Shown shown;
  CHECK(table.nvmlDeviceGetMemoryInfo(devices[0], &shown.first) == nvml::kSuccess);
  CHECK(table.nvmlDeviceGetMemoryInfo_v2(devices[0], &shown.second) == nvml::kSuccess);
  return shown;
}

TEST_CASE("the memory figures of NVML for a tenant add up, whoever has the rest of the device") {
  for (uint64_t used : {uint64_t{0}, 4 * kGiB, 50 * kGiB}) {
    for (uint64_t limit : {8 * kGiB, 60 * kGiB, kPageBytesMax}) {
      CAPTURE(used / kGiB);
      CAPTURE(limit / kGiB);
      Shown shown = shown_to_tenant(used, limit);
      CHECK(shown.first.total == std::min<uint64_t>(limit, kTotal));
      CHECK(shown.first.free <= kFree);
      CHECK(shown.first.free + shown.first.used == shown.first.total);
      CHECK(shown.second.total == shown.first.total);
      CHECK(shown.second.free == shown.first.free);
      CHECK(shown.second.used == std::min<uint64_t>(used, shown.second.total));
      CHECK(shown.second.reserved + shown.second.free + shown.second.used == shown.second.total);
    }
  }
}

TEST_CASE("the memory figures of NVML for a user are the user's part of the tenant's") {
  const Shown shown = shown_to_tenant(20 * kGiB, 60 * kGiB, {.used = 5 * kGiB, .limit = 8 * kGiB});
  CHECK(shown.second.total == 8 * kGiB);
  CHECK(shown.second.used == 5 * kGiB);
  CHECK(shown.second.free == 3 * kGiB);
  const Shown short_of = shown_to_tenant(59 * kGiB, 60 * kGiB, {.used = 5 * kGiB, .limit = 8 * kGiB});
  CHECK(short_of.second.free == 1 * kGiB);  // the tenant's remaining memory
  CHECK(shown_to_tenant(20 * kGiB, 60 * kGiB, {.used = 5 * kGiB}).second.total == 60 * kGiB);
}

}  // namespace
}  // namespace gpuwire::server
