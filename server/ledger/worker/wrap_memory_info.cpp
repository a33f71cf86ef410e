// The program's view of a device's memory: its tenant's quota.
#include <algorithm>

#include "server/ledger/worker/charges.hpp"
#include "server/ledger/worker/graph_charges.hpp"

namespace gpuwire::server {
namespace {

CUresult mem_get_info(size_t* free_bytes, size_t* total_bytes) {
  LedgerParts& parts = ledger_parts();
  Place place;
  if (CUresult error = parts.here(place)) return error;
  parts.graphs->settle();
  size_t free_now = 0, total = 0;
  CUresult result = parts.driver.cuMemGetInfo_v2(&free_now, &total);
  if (result != CUDA_SUCCESS) return result;
  // A lowered limit may be less than the session already has.
  uint64_t shown = std::min<uint64_t>(total, parts.ledger.limit(place.column));
  if (total_bytes) *total_bytes = shown;
  if (free_bytes) *free_bytes = std::min<uint64_t>({free_now, parts.ledger.available(place.column), shown});
  return result;
}

CUresult device_total_mem(size_t* bytes, CUdevice device) {
  LedgerParts& parts = ledger_parts();
  CUresult result = parts.driver.cuDeviceTotalMem_v2(bytes, device);
  if (auto column = parts.column(device); result == CUDA_SUCCESS && column)
    *bytes = std::min<uint64_t>(*bytes, parts.ledger.limit(*column));
  return result;
}

}  // namespace

void wrap_memory_info(DriverTable& table) {
  wrap(table.cuMemGetInfo_v2, &mem_get_info);
  wrap(table.cuDeviceTotalMem_v2, &device_total_mem);
}

}  // namespace gpuwire::server
