// Devices. The client answers all calls from the facts that the server reported at session start.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/process/process.hpp"
#include "protocol/cuda_abi/peer_code.hpp"

namespace gpuwire::client {
namespace {

// Returns the device's facts, or null with the call's result in `error`.
const DeviceFacts* facts_of(const Process& owner, CUdevice ordinal, CUresult& error) noexcept {
  const Device* device = owner.device(ordinal);
  error = device ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
  return device ? device->facts : nullptr;
}

// Returns whether the capability needs the device and the program on one machine. Such capabilities are not offered,
// whatever the device has at its server, because host memory there is not the program's (docs/differences.md).
bool needs_one_machine(int index) noexcept {
  switch (index) {
    case CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED: return true;
    default: return false;
  }
}

CUresult attribute(const DeviceFacts& facts, int index, int& value) noexcept {
  if (index <= 0 || size_t(index) >= facts.attributes.size()) return CUDA_ERROR_INVALID_VALUE;
  if (size_t(index) < facts.attribute_errors.size() && facts.attribute_errors[size_t(index)]) {
    return cuda_abi::from_peer(facts.attribute_errors[size_t(index)]);
  }
  value = needs_one_machine(index) ? 0 : facts.attributes[size_t(index)];
  return CUDA_SUCCESS;
}

int attribute_or_zero(const DeviceFacts& facts, CUdevice_attribute index) noexcept {
  int value = 0;
  attribute(facts, index, value);
  return value;
}

// Copies as much of the text as fits, and terminates it (CUDA driver API: cuDeviceGetName, cuDeviceGetPCIBusId).
// Precondition: `out_bytes` is not 0.
void copy_text(char* out, unsigned out_bytes, std::string_view text) noexcept {
  size_t length = std::min(text.size(), size_t(out_bytes) - 1);
  std::memcpy(out, text.data(), length);
  out[length] = 0;
}

// Parses domain:bus:device.function in hexadecimal. Domain and function are optional. Returns false if the text has
// another form.
bool parse_pci(const char* text, unsigned& domain, unsigned& bus, unsigned& device) noexcept {
  std::string_view rest = text;
  unsigned parts[3] = {};
  int count = 0;
  while (true) {
    size_t end = rest.find_first_of(":.");
    std::string_view digits = rest.substr(0, end);
    unsigned value = 0;
    auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    if (error != std::errc() || stop != digits.data() + digits.size()) return false;
    bool function = count > 0 && digits.data() != text && digits.data()[-1] == '.';
    if (!function) {
      if (count == 3) return false;
      parts[count++] = value;
    } else if (end != std::string_view::npos) {
      return false;
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  if (count < 2) return false;
  domain = count == 3 ? parts[0] : 0;
  bus = parts[count - 2];
  device = parts[count - 1];
  return true;
}

}  // namespace

CUresult hand::cuDeviceGetCount(const Process& owner, int* count) {
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = int(owner.devices.size());
  return CUDA_SUCCESS;
}

CUresult hand::cuDeviceGet(const Process& owner, CUdevice* device, int ordinal) {
  CUresult error;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!facts_of(owner, ordinal, error)) return error;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult hand::cuDeviceGetName(const Process& owner, char* name, int bytes, CUdevice device) {
  CUresult error;
  const DeviceFacts* facts = facts_of(owner, device, error);
  if (!facts) return error;
  if (!name || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  // A negative length counts as a large one (as measured on driver 580).
  copy_text(name, unsigned(bytes), facts->name.str());
  return CUDA_SUCCESS;
}

CUresult hand::cuDeviceGetUuid(const Process& owner, CUuuid* uuid, CUdevice device) {
  CUresult error;
  const DeviceFacts* facts = facts_of(owner, device, error);
  if (!facts) return error;
  if (!uuid) return CUDA_ERROR_INVALID_VALUE;
  *uuid = facts->uuid;
  return CUDA_SUCCESS;
}

CUresult hand::cuDeviceGetUuid_v2(const Process& owner, CUuuid* uuid, CUdevice device) {
  return hand::cuDeviceGetUuid(owner, uuid, device);
}

// Linux drivers have no LUID. The facts then contain zeros, and the call returns the driver's error.
CUresult hand::cuDeviceGetLuid(const Process& owner, char* luid, unsigned int* device_node_mask, CUdevice device) {
  CUresult error;
  const DeviceFacts* facts = facts_of(owner, device, error);
  if (!facts) return error;
  if (!luid || !device_node_mask) return CUDA_ERROR_INVALID_VALUE;
  if (std::all_of(std::begin(facts->luid), std::end(facts->luid), [](char byte) { return byte == 0; }))
    return CUDA_ERROR_NOT_SUPPORTED;
  std::memcpy(luid, facts->luid, sizeof facts->luid);
  *device_node_mask = 1;
  return CUDA_SUCCESS;
}

CUresult hand::cuDeviceTotalMem_v2(const Process& owner, size_t* bytes, CUdevice device) {
  CUresult error;
  const DeviceFacts* facts = facts_of(owner, device, error);
  if (!facts) return error;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  *bytes = facts->total_bytes;
  return CUDA_SUCCESS;
}

CUresult hand::cuDeviceGetAttribute(const Process& owner, int* value, CUdevice_attribute index, CUdevice device) {
  CUresult error;
  const DeviceFacts* facts = facts_of(owner, device, error);
  if (!facts) return error;
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  return attribute(*facts, index, *value);
}

CUresult hand::cuDeviceGetProperties(const Process& owner, CUdevprop* properties, CUdevice device) {
  CUresult error;
  const DeviceFacts* facts = facts_of(owner, device, error);
  if (!facts) return error;
  if (!properties) return CUDA_ERROR_INVALID_VALUE;
  auto get = [&](CUdevice_attribute index) { return attribute_or_zero(*facts, index); };
  properties->maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  properties->maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
  properties->maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
  properties->maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
  properties->maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
  properties->maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
  properties->maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
  properties->sharedMemPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
  properties->totalConstantMemory = get(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
  properties->SIMDWidth = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  properties->memPitch = get(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
  properties->regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
  properties->clockRate = get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  properties->textureAlign = get(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
  return CUDA_SUCCESS;
}

CUresult hand::cuDeviceComputeCapability(const Process& owner, int* major, int* minor, CUdevice device) {
  CUresult error;
  const DeviceFacts* facts = facts_of(owner, device, error);
  if (!facts) return error;
  if (!major || !minor) return CUDA_ERROR_INVALID_VALUE;
  *major = attribute_or_zero(*facts, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  *minor = attribute_or_zero(*facts, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  return CUDA_SUCCESS;
}

CUresult hand::cuDeviceGetPCIBusId(const Process& owner, char* text, int bytes, CUdevice device) {
  CUresult error;
  const DeviceFacts* facts = facts_of(owner, device, error);
  if (!facts) return error;
  // Unlike a name, the id is stored whole or not at all (as measured on driver 580).
  if (!text || bytes < 0 || size_t(bytes) <= facts->pci_bus_id.size()) return CUDA_ERROR_INVALID_VALUE;
  copy_text(text, unsigned(bytes), facts->pci_bus_id.str());
  return CUDA_SUCCESS;
}

CUresult hand::cuDeviceGetByPCIBusId(const Process& owner, CUdevice* device, const char* text) {
  unsigned domain = 0, bus = 0, slot = 0;
  if (!device || !text || !parse_pci(text, domain, bus, slot)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < owner.devices.size(); ++i) {
    const DeviceFacts& facts = *owner.devices[i].facts;
    if (unsigned(attribute_or_zero(facts, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)) != domain ||
        unsigned(attribute_or_zero(facts, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)) != bus ||
        unsigned(attribute_or_zero(facts, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)) != slot) {
      continue;
    }
    *device = CUdevice(i);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_DEVICE;
}

// Execution affinity is a feature of MPS, which the server's contexts do not have.
CUresult hand::cuDeviceGetExecAffinitySupport(const Process& owner, int* supported, CUexecAffinityType,
                                              CUdevice device) {
  CUresult error;
  if (!facts_of(owner, device, error)) return error;
  if (!supported) return CUDA_ERROR_INVALID_VALUE;
  // Unknown types are unsupported, too, and no error (as measured on driver 580).
  *supported = 0;
  return CUDA_SUCCESS;
}

// The server's driver checks the arguments. The capabilities are always none, whatever the driver reports for its own
// host, because no atomic operation reaches the program's memory over a network.
CUresult hand::cuDeviceGetHostAtomicCapabilities(const Caller& caller, unsigned int* capabilities,
                                                 const CUatomicOperation* operations, unsigned int count,
                                                 CUdevice device) {
  CUresult result = forward::cuDeviceGetHostAtomicCapabilities(caller, capabilities, operations, count, device);
  if (!result) std::fill_n(capabilities, count, 0u);
  return result;
}

CUresult hand::cuDeviceCanAccessPeer(const Process& owner, int* can_access, CUdevice device, CUdevice peer) {
  CUresult error;
  const DeviceFacts* facts = facts_of(owner, device, error);
  if (!facts || !facts_of(owner, peer, error)) return error;
  if (!can_access) return CUDA_ERROR_INVALID_VALUE;
  auto server_peer = size_t(owner.devices[size_t(peer)].server_ordinal);
  *can_access = device != peer && server_peer < facts->peers.size() && facts->peers[server_peer];
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::client
