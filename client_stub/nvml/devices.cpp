// The devices of the server, in the order of libcuda.so.1 (CUDA_VISIBLE_DEVICES does not affect NVML).
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "client_stub/nvml/local.hpp"
#include "client_stub/nvml/query.hpp"
#include "nvml/custom.hpp"

extern "C" GPUWIRE_NVML_EXPORT int nvmlDeviceGetSerial(nvmlDevice device, char* serial, unsigned int length) noexcept;

namespace gpuwire::nvml {

namespace {

constexpr size_t kSerialBytes = 30;  // NVML_DEVICE_SERIAL_BUFFER_SIZE

struct Address {
  unsigned domain = 0, bus = 0, device = 0;
  bool operator==(const Address&) const = default;
};

// [domain:]bus:device[.function], hexadecimal.
bool parse(const char* text, Address& address) {
  unsigned function = 0;
  int used = 0;
  auto whole = [&] { return text[used] == 0 || (std::sscanf(text + used, ".%x", &function) == 1); };
  if (std::sscanf(text, "%x:%x:%x%n", &address.domain, &address.bus, &address.device, &used) == 3) return whole();
  address.domain = 0;
  return std::sscanf(text, "%x:%x%n", &address.bus, &address.device, &used) == 2 && whole();
}

std::string uuid_text(const CUuuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%02x", unsigned(static_cast<unsigned char>(uuid.bytes[i])));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += byte;
  }
  return text;
}

template <class Matches>
int find_device(nvmlDevice* device, Matches&& matches) {
  int status = kSuccess;
  auto session = connection(status);
  if (status) return status;
  if (!device) return kInvalidArgument;
  const auto& devices = session->facts().devices;
  for (uint32_t i = 0; i < std::min<size_t>(devices.size(), kDevicesMax); ++i) {
    if (!matches(i, devices[i])) continue;
    *device = device_handle(i);
    return kSuccess;
  }
  return kNotFound;
}

}  // namespace

int custom::nvmlDeviceGetCount_v2(unsigned int* count) {
  int status = kSuccess;
  auto session = connection(status);
  if (status) return status;
  return put(unsigned(std::min<size_t>(session->facts().devices.size(), kDevicesMax)), count);
}

int custom::nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice* device) {
  int status = find_device(device, [&](uint32_t i, const client::DeviceFacts&) { return i == index; });
  return status == kNotFound ? int(kInvalidArgument) : status;
}

int custom::nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice* device) {
  if (!uuid) return initialised() ? initialised() : int(kInvalidArgument);
  return find_device(device, [&](uint32_t, const client::DeviceFacts& facts) { return uuid_text(facts.uuid) == uuid; });
}

int custom::nvmlDeviceGetHandleByUUIDV(void* uuid, nvmlDevice* device) {
  if (int status = initialised()) return status;
  if (!uuid) return kInvalidArgument;
  Uuid asked;
  std::memcpy(&asked, uuid, sizeof asked.version);
  if (asked.version != kUuidVersion1) return kArgumentVersionMismatch;
  std::memcpy(&asked, uuid, sizeof asked);
  constexpr uint32_t kAsText = 1, kAsBytes = 2;
  if (asked.type == kAsBytes)
    return find_device(device, [&](uint32_t, const client::DeviceFacts& facts) {
      return std::memcmp(facts.uuid.bytes, asked.value, 16) == 0;
    });
  if (asked.type != kAsText) return kInvalidArgument;
  asked.value[sizeof asked.value - 1] = 0;
  return custom::nvmlDeviceGetHandleByUUID(asked.value, device);
}

int custom::nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, nvmlDevice* device) {
  if (int status = initialised()) return status;
  Address asked;
  if (!bus_id || !parse(bus_id, asked)) return kInvalidArgument;
  return find_device(device, [&](uint32_t, const client::DeviceFacts& facts) {
    Address address;
    return parse(facts.pci_bus_id.c_str(), address) && address == asked;
  });
}

int custom::nvmlDeviceGetHandleBySerial(const char* serial, nvmlDevice* device) {
  if (int status = initialised()) return status;
  if (!serial) return kInvalidArgument;
  return find_device(device, [&](uint32_t i, const client::DeviceFacts&) {
    char text[kSerialBytes];
    return ::nvmlDeviceGetSerial(device_handle(i), text, sizeof text) == kSuccess && std::strcmp(text, serial) == 0;
  });
}

int custom::nvmlDeviceGetIndex(nvmlDevice device, unsigned int* out) {
  uint32_t index = 0;
  int status = kSuccess;
  if (!find(device, index, status)) return status;
  return put(index, out);
}

int custom::nvmlDeviceIsMigDeviceHandle(nvmlDevice device, unsigned int* is) { return put_for(device, 0u, is); }

int custom::nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice device, unsigned int, nvmlDevice* out) {
  uint32_t index = 0;
  int status = kSuccess;
  if (!find(device, index, status)) return status;
  return out ? kNotFound : kInvalidArgument;
}

}  // namespace gpuwire::nvml
