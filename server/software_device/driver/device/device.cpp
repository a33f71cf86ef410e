// cuInit, versions and devices.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/device/device_attributes.hpp"

using namespace gpuwire::software_device;

namespace {

constexpr const char kDeviceName[] = "gpuwire software device";
constexpr size_t kUnlimitedTexels = 134217728;

template <typename Body>
CUresult with_device(CUdevice ordinal, Body&& body) noexcept {
  return with_driver([&]() -> CUresult {
    Device* const device = driver().device(ordinal);
    return device == nullptr ? CUDA_ERROR_INVALID_DEVICE : body(*device);
  });
}

int attribute_of(const Device& device, CUdevice_attribute attribute) {
  return device_attribute(device, attribute).value_or(0);
}

}  // namespace

CUresult cuInit(unsigned int flags) {
  if (flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  try {
    return initialise_driver();
  } catch (const std::exception&) {
    return CUDA_ERROR_UNKNOWN;
  }
}

CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *version = driver_version();
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  return with_driver([&]() -> CUresult {
    if (count == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *count = static_cast<int>(driver().devices.size());
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return with_driver([&]() -> CUresult {
    if (device == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (driver().device(ordinal) == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  return with_device(ordinal, [&](Device&) -> CUresult {
    if (name == nullptr || length == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::string_view whole = kDeviceName;  // a negative length counts as a large one (measured on driver 580)
    const size_t bytes = std::min(whole.size(), size_t{static_cast<unsigned>(length)} - 1);
    std::memcpy(name, whole.data(), bytes);
    name[bytes] = 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& device) -> CUresult {
    if (uuid == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *uuid = device.uuid;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice ordinal) { return cuDeviceGetUuid(uuid, ordinal); }

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& device) -> CUresult {
    if (bytes == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *bytes = device.total_bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& device) -> CUresult {
    const auto found = device_attribute(device, attribute);
    if (value == nullptr || !found) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *value = *found;
    return CUDA_SUCCESS;
  });
}

// Only Windows supports this. cudart calls it at every start, so no refusal is logged.
CUresult cuDeviceGetLuid(char*, unsigned*, CUdevice) { return CUDA_ERROR_NOT_SUPPORTED; }

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& device) -> CUresult {
    // Written completely or not at all (measured on driver 580).
    if (text == nullptr || length < static_cast<int>(sizeof "0000:00:00.0")) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", static_cast<unsigned>(device.pci_bus));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetByPCIBusId(CUdevice* out, const char* text) {
  return with_driver([&]() -> CUresult {
    unsigned domain = 0, bus = 0, slot = 0, function = 0;
    if (out == nullptr || text == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (std::sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
      domain = 0;
      if (std::sscanf(text, "%x:%x.%x", &bus, &slot, &function) < 2) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    for (const auto& device : driver().devices) {
      if (domain == 0 && slot == 0 && static_cast<unsigned>(device->pci_bus) == bus) {
        *out = device->ordinal;
        return CUDA_SUCCESS;
      }
    }
    return CUDA_ERROR_INVALID_DEVICE;
  });
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  return with_device(ordinal, [&](Device&) -> CUresult {
    if (major == nullptr || minor == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *major = kComputeMajor;
    *minor = kComputeMinor;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetProperties(CUdevprop* properties, CUdevice ordinal) {
  return with_device(ordinal, [&](Device& device) -> CUresult {
    if (properties == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *properties = {
        .maxThreadsPerBlock = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        .maxThreadsDim = {attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                          attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                          attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)},
        .maxGridSize = {attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                        attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                        attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)},
        .sharedMemPerBlock = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        .totalConstantMemory = attribute_of(device, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
        .SIMDWidth = attribute_of(device, CU_DEVICE_ATTRIBUTE_WARP_SIZE),
        .memPitch = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_PITCH),
        .regsPerBlock = attribute_of(device, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
        .clockRate = attribute_of(device, CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
        .textureAlign = attribute_of(device, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
    };
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* width, CUarray_format, unsigned channels, CUdevice ordinal) {
  return with_device(ordinal, [&](Device&) -> CUresult {
    if (width == nullptr || channels == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *width = kUnlimitedTexels / channels;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType, CUdevice ordinal) {
  return with_device(ordinal, [&](Device&) -> CUresult {
    if (supported == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *supported = 0;  // also for unknown types (measured on driver 580)
    return CUDA_SUCCESS;
  });
}

CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget, CUflushGPUDirectRDMAWritesScope) {
  return not_offered_in_a_context();
}
