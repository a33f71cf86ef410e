// Managed memory: advice, prefetching, and attributes of ranges. Host and device share one memory here, so advice and
// prefetches are checked and stored, and have no other effect.
#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/managed_memory/managed_advice.hpp"

using namespace gpuwire::software_device;

namespace {

constexpr int kHost = CU_DEVICE_CPU;  // the number of the host in results

// A range inside one managed allocation.
struct ManagedPart {
  std::shared_ptr<ManagedAdvice> advice;
  uint64_t offset = 0, bytes = 0;
};

std::optional<ManagedPart> managed_part(CUdeviceptr address, size_t bytes) {
  const auto range = driver().memory.find(address);
  const bool inside = range && range->kind == MemoryKind::managed && bytes != 0 && bytes <= range->end() - address;
  if (!inside) {
    return std::nullopt;
  }
  return ManagedPart{range->advice, address - range->begin, bytes};
}

bool is_known(const CUmemLocation& location) {
  return location.type == CU_MEM_LOCATION_TYPE_HOST || location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT ||
         (location.type == CU_MEM_LOCATION_TYPE_DEVICE && driver().device(location.id) != nullptr);
}

// Returns the location in the reported form: the host has a number unless the location is one of its NUMA nodes.
PageAdvice::Location told(const CUmemLocation& location) {
  return {location.type, location.type == CU_MEM_LOCATION_TYPE_HOST ? kHost : location.id};
}

CUmemLocation location_of(CUdevice device) {
  return {.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

void advise(PageAdvice& page, CUmem_advise advice, const CUmemLocation& location) {
  const bool set = advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY: page.read_mostly = true; break;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY: page.read_mostly = false; break;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION: page.preferred = told(location); break;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: page.preferred = {}; break;
    default:
      if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        page.accessed_by_host = set;
      } else {
        const uint32_t bit = 1u << location.id;
        page.accessed_by = set ? page.accessed_by | bit : page.accessed_by & ~bit;
      }
  }
}

// Returns the host for any of its nodes, and CU_DEVICE_INVALID for no location.
int device_of(const PageAdvice::Location& location) {
  return location.type == CU_MEM_LOCATION_TYPE_INVALID  ? CU_DEVICE_INVALID
         : location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id
                                                        : kHost;
}

// Lists the devices by number, then the host, and fills the rest with CU_DEVICE_INVALID.
void list_accessing(const PageAdvice& all, std::span<int> out) {
  std::vector<int> found;
  for (int device = 0; device < kDevicesMax; ++device) {
    if ((all.accessed_by >> device & 1) != 0) {
      found.push_back(device);
    }
  }
  if (all.accessed_by_host) {
    found.push_back(kHost);
  }
  found.resize(out.size(), CU_DEVICE_INVALID);
  std::copy(found.begin(), found.end(), out.begin());
}

CUresult range_attribute(void* data, size_t bytes, CUmem_range_attribute attribute, const ManagedPart& part) {
  const PageAdvice all = part.advice->common(part.offset, part.bytes);
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    if (bytes == 0 || bytes % sizeof(int) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    list_accessing(all, {static_cast<int*>(data), bytes / sizeof(int)});
    return CUDA_SUCCESS;
  }
  int value = 0;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: value = all.read_mostly ? 1 : 0; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION: value = device_of(all.preferred); break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE: value = all.preferred.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID: value = all.preferred.id; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION: value = device_of(all.prefetched); break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: value = all.prefetched.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: value = all.prefetched.id; break;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes != sizeof value) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                               CUstream stream) {
  const CUresult missing = with_context_or_none([&](Context* current) -> CUresult {
    if (current != nullptr) {
      return CUDA_SUCCESS;
    }
    return flags != 0 || !managed_part(address, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
  });
  return missing != CUDA_SUCCESS ? missing : with_stream(stream, [&](Context&, Stream&) -> CUresult {
    const auto part = managed_part(address, bytes);
    if (flags != 0 || !part) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!is_known(location)) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    part->advice->change(part->offset, part->bytes, [&](PageAdvice& page) { page.prefetched = told(location); });
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return cuMemPrefetchAsync_v2(address, bytes, location_of(device), 0, stream);
}

CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return with_context([&](Context&) -> CUresult {
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    const bool known = advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY;
    // The place of read-mostly copies does not matter.
    const bool placed = advice != CU_MEM_ADVISE_SET_READ_MOSTLY && advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY;
    const auto part = managed_part(address, bytes);
    if (!known || !part || (placed && !is_known(location))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    part->advice->change(part->offset, part->bytes, [&](PageAdvice& page) { advise(page, advice, location); });
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return cuMemAdvise_v2(address, bytes, advice, location_of(device));
}

CUresult cuMemRangeGetAttribute(void* data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr address,
                                size_t bytes) {
  return with_context([&](Context&) -> CUresult {
    const auto part = managed_part(address, bytes);
    return data == nullptr || !part ? CUDA_ERROR_INVALID_VALUE : range_attribute(data, data_bytes, attribute, *part);
  });
}

CUresult cuMemRangeGetAttributes(void** data, size_t* data_bytes, CUmem_range_attribute* attributes, size_t count,
                                 CUdeviceptr address, size_t bytes) {
  return with_context([&](Context&) -> CUresult {
    const auto part = managed_part(address, bytes);
    if (data == nullptr || data_bytes == nullptr || attributes == nullptr || count == 0 || !part) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; ++i) {
      const CUresult result =
          data[i] == nullptr ? CUDA_ERROR_INVALID_VALUE : range_attribute(data[i], data_bytes[i], attributes[i], *part);
      if (result != CUDA_SUCCESS) {
        return result;
      }
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t, unsigned long long,
                                 CUstream) {
  return not_offered_in_a_context();
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr*, size_t*, size_t, unsigned long long, CUstream) {
  return not_offered_in_a_context();
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr*, size_t*, size_t, CUmemLocation*, size_t*, size_t,
                                           unsigned long long, CUstream) {
  return not_offered_in_a_context();
}
