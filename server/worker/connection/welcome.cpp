#include "server/worker/connection/welcome.hpp"

#include <cstring>
#include <map>
#include <vector>

#include <cuda.h>
#include <fmt/format.h>

#include "protocol/wire/limits.hpp"
#include "schema/handshake.capnp.h"
#include "server/driver_table.hpp"
#include "server/driver/library/driver_library.hpp"

namespace gpuwire::server {
namespace {

constexpr size_t kDeviceNameBytes = 256;
constexpr uint64_t kNoLimit = ~uint64_t(0);

std::string device_name(const DriverTable& cuda, CUdevice device) {
  char name[kDeviceNameBytes] = {};
  if (!cuda.cuDeviceGetName || cuda.cuDeviceGetName(name, sizeof name - 1, device) != CUDA_SUCCESS)
    return "unknown device";
  return name;
}

void identify(const DriverTable& cuda, CUdevice device, schema::Device::Builder out) {
  out.setName(device_name(cuda, device));
  CUuuid uuid{};
  auto get_uuid = cuda.cuDeviceGetUuid_v2 ? cuda.cuDeviceGetUuid_v2 : cuda.cuDeviceGetUuid;
  if (get_uuid) get_uuid(&uuid, device);
  out.setUuid(kj::arrayPtr(reinterpret_cast<const kj::byte*>(uuid.bytes), sizeof uuid.bytes));
  char luid[8] = {};
  unsigned node_mask = 0;
  if (cuda.cuDeviceGetLuid) cuda.cuDeviceGetLuid(luid, &node_mask, device);
  out.setLuid(kj::arrayPtr(reinterpret_cast<const kj::byte*>(luid), sizeof luid));
  char bus_id[64] = {};
  if (cuda.cuDeviceGetPCIBusId) cuda.cuDeviceGetPCIBusId(bus_id, sizeof bus_id - 1, device);
  out.setPciBusId(bus_id);
  size_t total = 0;
  if (cuda.cuDeviceTotalMem_v2) cuda.cuDeviceTotalMem_v2(&total, device);
  out.setTotalBytes(total);
}

void describe_attributes(const DriverTable& cuda, CUdevice device, schema::Device::Builder out) {
  auto values = out.initAttributes(CU_DEVICE_ATTRIBUTE_MAX);
  auto errors = out.initAttributeErrors(CU_DEVICE_ATTRIBUTE_MAX);
  for (unsigned i = 0; i < CU_DEVICE_ATTRIBUTE_MAX; ++i) {
    int value = 0;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (i != 0 && cuda.cuDeviceGetAttribute) result = cuda.cuDeviceGetAttribute(&value, CUdevice_attribute(i), device);
    values.set(i, result == CUDA_SUCCESS ? value : 0);
    errors.set(i, result);
  }
  int supported = 0;
  if (cuda.cuDeviceGetExecAffinitySupport)
    cuda.cuDeviceGetExecAffinitySupport(&supported, CU_EXEC_AFFINITY_TYPE_SM_COUNT, device);
  out.setExecAffinitySupport(supported);
}

void describe_peers(const DriverTable& cuda, CUdevice device, int device_count, schema::Device::Builder out) {
  auto peers = out.initPeers(unsigned(device_count));
  for (int peer = 0; peer < device_count; ++peer) {
    int can = 0;
    if (peer != device && cuda.cuDeviceCanAccessPeer) cuda.cuDeviceCanAccessPeer(&can, device, peer);
    peers.set(unsigned(peer), can != 0);
  }
}

// The facts that need a context. The values of a new context depend only on the device's model, so one device of each
// model is queried.
struct ContextFacts {
  std::vector<uint64_t> limits;
  int priority_least = 0, priority_greatest = 0;
};

ContextFacts ask_context(const DriverTable& cuda, CUcontext context) {
  ContextFacts facts;
  facts.limits.assign(CU_LIMIT_MAX, kNoLimit);
  if (cuda.cuCtxSetCurrent(context) != CUDA_SUCCESS) return facts;
  for (unsigned i = 0; i < CU_LIMIT_MAX; ++i) {
    size_t value = 0;
    if (cuda.cuCtxGetLimit && cuda.cuCtxGetLimit(&value, CUlimit(i)) == CUDA_SUCCESS) facts.limits[i] = value;
  }
  if (cuda.cuCtxGetStreamPriorityRange)
    cuda.cuCtxGetStreamPriorityRange(&facts.priority_least, &facts.priority_greatest);
  return facts;
}

ContextFacts context_facts(const DriverLibrary& driver, CUdevice device) {
  const DriverTable& cuda = driver.table();
  if (!driver.primary()) return {std::vector<uint64_t>(CU_LIMIT_MAX, kNoLimit)};
  if (device == 0) return ask_context(cuda, driver.primary());
  CUcontext context = nullptr;
  if (cuda.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
    return {std::vector<uint64_t>(CU_LIMIT_MAX, kNoLimit)};
  ContextFacts facts = ask_context(cuda, context);
  cuda.cuCtxSetCurrent(driver.primary());
  if (cuda.cuDevicePrimaryCtxRelease_v2) cuda.cuDevicePrimaryCtxRelease_v2(device);
  return facts;
}

}  // namespace

std::unique_ptr<capnp::MallocMessageBuilder> build_welcome(const DriverLibrary& driver,
                                                           std::span<const ReplayEntry* const> calls) {
  const DriverTable& cuda = driver.table();
  auto message = std::make_unique<capnp::MallocMessageBuilder>(8 * 1024);
  auto welcome = message->initRoot<schema::Welcome>();
  welcome.setRelease(GPUWIRE_VERSION);
  welcome.setDriverVersion(driver.version());
  welcome.setDriverName(driver.name());
  welcome.setSoftware(driver.software());
  welcome.initSessionId(16);
  auto ordinals = welcome.initOrdinals(unsigned(calls.size() + 7) / 8);
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i]) ordinals[i / 8] = kj::byte(ordinals[i / 8] | 1u << i % 8);
  }
  auto devices = welcome.initDevices(unsigned(driver.device_count()));
  std::map<std::string, ContextFacts> by_model;
  for (CUdevice device = 0; device < driver.device_count(); ++device) {
    auto out = devices[unsigned(device)];
    identify(cuda, device, out);
    describe_attributes(cuda, device, out);
    describe_peers(cuda, device, driver.device_count(), out);
    std::string model = device_name(cuda, device);
    if (!by_model.contains(model)) by_model[model] = context_facts(driver, device);
    const ContextFacts& facts = by_model[model];
    auto limits = out.initLimits(unsigned(facts.limits.size()));
    for (unsigned i = 0; i < limits.size(); ++i) limits.set(i, facts.limits[i]);
    out.setStreamPriorityLeast(facts.priority_least);
    out.setStreamPriorityGreatest(facts.priority_greatest);
  }
  return message;
}

namespace {

// Returns the used memory of device 0: that of the prewarmed context and of all other users.
uint64_t taken_bytes(const DriverLibrary& driver) {
  size_t free_now = 0, total = 0;
  const DriverTable& cuda = driver.table();
  if (!driver.primary() || !cuda.cuMemGetInfo_v2 || cuda.cuCtxSetCurrent(driver.primary()) != CUDA_SUCCESS) return 0;
  return cuda.cuMemGetInfo_v2(&free_now, &total) == CUDA_SUCCESS && free_now < total ? total - free_now : 0;
}

}  // namespace

Inventory inventory_of(const DriverLibrary& driver) {
  Inventory inventory;
  // cuDriverGetVersion gives 1000 * major + 10 * minor.
  inventory.summary = fmt::format("{} x {}, {}, CUDA {}.{}", driver.device_count(), device_name(driver.table(), 0),
                                  driver.name(), driver.version() / 1000, driver.version() % 1000 / 10);
  for (CUdevice device = 0; device < driver.device_count(); ++device) {
    size_t bytes = 0;
    if (driver.table().cuDeviceTotalMem_v2) driver.table().cuDeviceTotalMem_v2(&bytes, device);
    inventory.devices.push_back({.index = uint32_t(device),
                                 .bytes = bytes,
                                 .taken_bytes = device == 0 ? taken_bytes(driver) : 0,
                                 .name = device_name(driver.table(), device),
                                 .uuid = uuid_text(driver.table(), device)});
  }
  return inventory;
}

void show_limits(capnp::MallocMessageBuilder& welcome, const SessionSpec& spec) {
  auto devices = welcome.getRoot<schema::Welcome>().getDevices();
  for (unsigned i = 0; i < devices.size() && i < spec.devices.size(); ++i) {
    uint64_t limit = spec.devices[i].limit_bytes;
    if (limit != 0 && limit < devices[i].getTotalBytes()) devices[i].setTotalBytes(limit);
  }
}

}  // namespace gpuwire::server
