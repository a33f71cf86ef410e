// A session's ledger in front of the driver of two software devices.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <vector>

#include <dlfcn.h>
#include <doctest/doctest.h>

#include "server/driver_table.hpp"
#include "server/ledger/worker/ledgered_driver.hpp"

namespace gpuwire::test {

constexpr uint64_t kMiB = 1u << 20;
// The column of the page for each of the worker's devices: the server numbers devices differently.
inline const std::vector<uint32_t> kDeviceColumns{5, 2};

// Returns the driver without the ledger.
inline const server::DriverTable& software_driver() {
  static const server::DriverTable table = [] {
    ::setenv("GPUWIRE_SOFTWARE_DEVICES", "2", 1);
    void* library = ::dlopen(GPUWIRE_TEST_SOFTWARE_CUDA, RTLD_NOW | RTLD_LOCAL);
    REQUIRE(library);
    server::DriverTable loaded;
    REQUIRE(server::load_driver_table(library, loaded) > 400);
    REQUIRE(loaded.cuInit(0) == CUDA_SUCCESS);
    return loaded;
  }();
  return table;
}

class SoftwareLedger {
 public:
  // `device_bytes`, `host_bytes`: the tenant's limits on each device and in host memory.
  SoftwareLedger(uint64_t device_bytes, uint64_t host_bytes)
      : page(server::SharedPage<server::TenantPage>::create().value()),
        ledger(*page, kSlot, nullptr),
        ledgered(software_driver(), ledger, {kDeviceColumns, true}),
        cuda(ledgered.table()) {
    page->slots = kSlot + 1;
    for (uint32_t column : kDeviceColumns) page->column[column].allowance = page->column[column].limit = device_bytes;
    page->column[server::kHostColumn].allowance = page->column[server::kHostColumn].limit = host_bytes;
  }

  uint64_t used(int device = 0) const { return ledger.used(kDeviceColumns[size_t(device)]); }
  uint64_t host() const { return ledger.used(server::kHostColumn); }
  void check_that_nothing_is_left() const {
    for (uint32_t column = 0; column < server::kPageColumns; ++column) CHECK(ledger.used(column) == 0);
  }

  server::SharedPage<server::TenantPage> page;
  server::SessionLedger ledger;
  server::LedgeredDriver ledgered;
  const server::DriverTable& cuda;

 private:
  static constexpr uint32_t kSlot = 3;
};

}  // namespace gpuwire::test
