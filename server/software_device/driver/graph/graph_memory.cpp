#include "server/software_device/driver/graph/graph_memory.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "server/software_device/driver/memory/allocation.hpp"
#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/graph/graph_lookup.hpp"

namespace gpuwire::software_device {
namespace {

struct Account {
  uint64_t bytes = 0, bytes_high = 0;
};

// Never destroyed, because graphs live as long as the process.
struct Table {
  std::mutex mutex;
  std::map<uint64_t, std::weak_ptr<GraphAllocation>> allocations;  // by address
  std::map<int, Account> accounts;                                 // by device
};

Table& table() noexcept {
  static auto* const all = new Table;
  return *all;
}

}  // namespace

GraphAllocation::~GraphAllocation() {
  driver().memory.remove_buffer(address, buffer_id);
  const std::lock_guard lock(table().mutex);
  // Another allocation may have the address by now.
  const auto here = table().allocations.find(address);
  if (here != table().allocations.end() && here->second.expired()) {
    table().allocations.erase(here);
  }
  table().accounts[device].bytes -= bytes;
}

tl::expected<std::shared_ptr<GraphAllocation>, CUresult> allocate_for_graph(Device& device, CUcontext context,
                                                                            uint64_t bytes) {
  const auto address = allocate_range(
      {.bytes = bytes, .kind = MemoryKind::device, .device = device.ordinal, .context = context, .of_graph = true},
      device);
  if (!address) {
    return tl::unexpected(address.error());
  }
  auto allocation = std::make_shared<GraphAllocation>();
  const auto range = driver().memory.find(*address);
  allocation->address = *address;
  allocation->bytes = bytes;
  allocation->buffer_id = range ? range->buffer_id : 0;
  allocation->device = device.ordinal;
  const std::lock_guard lock(table().mutex);
  table().allocations[*address] = allocation;
  Account& account = table().accounts[device.ordinal];
  account.bytes += bytes;
  account.bytes_high = std::max(account.bytes_high, account.bytes);
  return allocation;
}

std::shared_ptr<GraphAllocation> find_graph_allocation(uint64_t address) {
  std::shared_ptr<GraphAllocation> allocation;
  {
    const std::lock_guard lock(table().mutex);
    const auto found = table().allocations.find(address);
    allocation = found == table().allocations.end() ? nullptr : found->second.lock();
  }
  // The memory ends with its context, which graphs outlive, and another range may have its address now.
  const auto range = allocation == nullptr ? std::nullopt : driver().memory.find(address);
  return range && range->buffer_id == allocation->buffer_id ? allocation : nullptr;
}

void note_allocated(const std::shared_ptr<GraphAllocation>& allocation) {
  const std::lock_guard lock(table().mutex);
  allocation->kept = allocation;
}

bool is_allocated(const GraphAllocation& allocation) {
  const std::lock_guard lock(table().mutex);
  return allocation.kept != nullptr;
}

bool note_freed(GraphAllocation& allocation) {
  // Possibly the last reference, which is released after the lock.
  std::shared_ptr<GraphAllocation> last;
  const std::lock_guard lock(table().mutex);
  last.swap(allocation.kept);
  return last != nullptr;
}

}  // namespace gpuwire::software_device

using namespace gpuwire::software_device;

// Memory is released with the last graph that refers to it, so there is never anything to trim.
CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
  return with_driver(
      [&]() -> CUresult { return driver().device(ordinal) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS; });
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void* value) {
  return with_driver([&]() -> CUresult {
    if (driver().device(ordinal) == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    if (value == nullptr || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(table().mutex);
    const Account& account = table().accounts[ordinal];
    const bool current =
        attribute == CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
    *static_cast<cuuint64_t*>(value) = current ? account.bytes : account.bytes_high;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void* value) {
  return with_driver([&]() -> CUresult {
    if (driver().device(ordinal) == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    const bool high = attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    if (value == nullptr || !high || *static_cast<const cuuint64_t*>(value) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::lock_guard lock(table().mutex);
    table().accounts[ordinal].bytes_high = table().accounts[ordinal].bytes;
    return CUDA_SUCCESS;
  });
}
