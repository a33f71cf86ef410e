#include "server/management/software_library.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <cuda.h>
#include <fmt/format.h>

#include "protocol/nvml/abi.hpp"
#include "server/driver_table.hpp"
#include "server/driver/library/driver_library.hpp"

namespace gpuwire::server {
namespace {

using namespace nvml;

struct Device {
  std::string name, uuid;
  unsigned index = 0;
  unsigned domain = 0, bus = 0, slot = 0;
  uint64_t total_bytes = 0;
  std::array<int, CU_DEVICE_ATTRIBUTE_MAX> attributes{};
};

// The data of the functions below, whose signatures are the library's and have no parameter for it.
struct Facts {
  std::string driver_version;
  int cuda_version = 0;
  std::vector<std::unique_ptr<Device>> devices;
};
Facts& facts() {
  static Facts object;
  return object;
}

Device& of(nvmlDevice device) { return *reinterpret_cast<Device*>(device); }

int put_text(const std::string& text, char* out, unsigned room) {
  if (text.size() >= room) return kInsufficientSize;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return kSuccess;
}

// --- the system

int driver_version(char* out, unsigned room) { return put_text(facts().driver_version, out, room); }
int library_version(char* out, unsigned room) {
  return put_text(fmt::format("{}.{}", facts().cuda_version / 1000, facts().driver_version), out, room);
}
int cuda_version(int* out) {
  *out = facts().cuda_version;
  return kSuccess;
}

// --- a device

int name(nvmlDevice device, char* out, unsigned room) { return put_text(of(device).name, out, room); }
int uuid(nvmlDevice device, char* out, unsigned room) { return put_text(of(device).uuid, out, room); }
int minor_number(nvmlDevice device, unsigned* out) {
  *out = of(device).index;
  return kSuccess;
}

int pci_info(nvmlDevice device, void* out) {
  const Device& own = of(device);
  PciInfo info{};
  info.domain = own.domain;
  info.bus = own.bus;
  info.device = own.slot;
  std::snprintf(info.bus_id_legacy, sizeof info.bus_id_legacy, "%04X:%02X:%02X.0", own.domain & 0xffff, own.bus & 0xff,
                own.slot & 0xff);
  std::snprintf(info.bus_id, sizeof info.bus_id, "%08X:%02X:%02X.0", own.domain, own.bus & 0xff, own.slot & 0xff);
  std::memcpy(out, &info, sizeof info);
  return kSuccess;
}

// The memory that a session may use. Each program of the software device has its own memory, so other programs never
// use it.
int memory(nvmlDevice device, void* out) {
  const Memory info{of(device).total_bytes, of(device).total_bytes, 0};
  std::memcpy(out, &info, sizeof info);
  return kSuccess;
}
int memory_2(nvmlDevice device, void* out) {
  const Memory2 info{sizes::nvmlMemory_v2, of(device).total_bytes, 0, of(device).total_bytes, 0};
  std::memcpy(out, &info, sizeof info);
  return kSuccess;
}

int compute_capability(nvmlDevice device, int* major, int* minor) {
  *major = of(device).attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
  *minor = of(device).attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
  return kSuccess;
}
int compute_mode(nvmlDevice device, unsigned* out) {
  *out = unsigned(of(device).attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE]);
  return kSuccess;
}
int memory_bus_width(nvmlDevice device, unsigned* out) {
  *out = unsigned(of(device).attributes[CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH]);
  return kSuccess;
}
int multi_gpu_board(nvmlDevice device, unsigned* out) {
  *out = unsigned(of(device).attributes[CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD]);
  return kSuccess;
}

// nvmlClockType_t: graphics, SM, memory, video. The driver reports kilohertz.
int max_clock(nvmlDevice device, unsigned type, unsigned* out) {
  constexpr unsigned kSm = 1, kMemory = 2, kTypes = 4;
  if (type >= kTypes) return kInvalidArgument;
  if (type > kMemory) return kNotSupported;
  int khz = of(device).attributes[type <= kSm ? CU_DEVICE_ATTRIBUTE_CLOCK_RATE : CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE];
  *out = unsigned(khz / 1000);
  return khz > 0 ? kSuccess : kNotSupported;
}

Device describe(const DriverTable& cuda, CUdevice ordinal) {
  Device out;
  out.index = unsigned(ordinal);
  char text[256] = {};
  if (cuda.cuDeviceGetName && cuda.cuDeviceGetName(text, sizeof text - 1, ordinal) == CUDA_SUCCESS) out.name = text;
  out.uuid = uuid_text(cuda, ordinal);
  size_t bytes = 0;
  if (cuda.cuDeviceTotalMem_v2 && cuda.cuDeviceTotalMem_v2(&bytes, ordinal) == CUDA_SUCCESS) out.total_bytes = bytes;
  for (size_t i = 1; i < out.attributes.size(); ++i) {
    int value = 0;
    if (cuda.cuDeviceGetAttribute && cuda.cuDeviceGetAttribute(&value, CUdevice_attribute(i), ordinal) == CUDA_SUCCESS)
      out.attributes[i] = value;
  }
  char bus_id[32] = {};
  if (cuda.cuDeviceGetPCIBusId) cuda.cuDeviceGetPCIBusId(bus_id, int(sizeof bus_id) - 1, ordinal);
  std::sscanf(bus_id, "%x:%x:%x", &out.domain, &out.bus, &out.slot);
  return out;
}

}  // namespace

std::vector<nvmlDevice> software_management(const DriverLibrary& driver, Table& table) {
  facts().driver_version = driver.software() ? GPUWIRE_VERSION : driver.name().substr(driver.name().rfind(' ') + 1);
  facts().cuda_version = driver.version();
  std::vector<nvmlDevice> devices;
  for (CUdevice ordinal = 0; ordinal < driver.device_count(); ++ordinal) {
    facts().devices.push_back(std::make_unique<Device>(describe(driver.table(), ordinal)));
    devices.push_back(reinterpret_cast<nvmlDevice>(facts().devices.back().get()));
  }
  table = {};
  table.missing = kNotSupported;
  table.nvmlSystemGetDriverVersion = driver_version;
  table.nvmlSystemGetNVMLVersion = library_version;
  table.nvmlSystemGetCudaDriverVersion = cuda_version;
  table.nvmlSystemGetCudaDriverVersion_v2 = cuda_version;
  table.nvmlDeviceGetName = name;
  table.nvmlDeviceGetUUID = uuid;
  table.nvmlDeviceGetMinorNumber = minor_number;
  table.nvmlDeviceGetPciInfo = pci_info;
  table.nvmlDeviceGetPciInfo_v2 = pci_info;
  table.nvmlDeviceGetPciInfo_v3 = pci_info;
  table.nvmlDeviceGetMemoryInfo = memory;
  table.nvmlDeviceGetMemoryInfo_v2 = memory_2;
  table.nvmlDeviceGetCudaComputeCapability = compute_capability;
  table.nvmlDeviceGetComputeMode = compute_mode;
  table.nvmlDeviceGetMemoryBusWidth = memory_bus_width;
  table.nvmlDeviceGetMultiGpuBoard = multi_gpu_board;
  table.nvmlDeviceGetMaxClockInfo = max_clock;
  return devices;
}

}  // namespace gpuwire::server
