#include "server/management/library.hpp"

#include <array>

#include <cuda.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "protocol/nvml/abi.hpp"
#include "server/driver_table.hpp"
#include "server/management/software_library.hpp"
#include "server/driver/library/driver_library.hpp"

namespace gpuwire::server {
namespace {

constexpr const char* kNvidiaLibrary = "libnvidia-ml.so.1";
constexpr size_t kBusIdBytes = 32;

}  // namespace

tl::expected<void, std::string> ManagementLibrary::open_nvidia(const DriverLibrary& driver) {
  void* library = ::dlopen(kNvidiaLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = ::dlerror();
    return tl::unexpected(fmt::format("cannot open {}: {}", kNvidiaLibrary, why ? why : "unknown error"));
  }
  auto initialise = reinterpret_cast<int (*)()>(::dlsym(library, "nvmlInit_v2"));
  auto find = reinterpret_cast<int (*)(const char*, nvmlDevice*)>(::dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2"));
  if (!initialise || !find)
    return tl::unexpected(fmt::format("{} lacks nvmlInit_v2 or another basic function", kNvidiaLibrary));
  if (int status = initialise())
    return tl::unexpected(fmt::format("nvmlInit_v2 of {}: error {}", kNvidiaLibrary, status));
  // The driver's ordinals and the library's may differ: the place on the bus identifies a device.
  std::vector<nvmlDevice> devices;
  for (CUdevice ordinal = 0; ordinal < driver.device_count(); ++ordinal) {
    std::array<char, kBusIdBytes> bus_id{};
    nvmlDevice device = nullptr;
    CUresult told = driver.table().cuDeviceGetPCIBusId
                        ? driver.table().cuDeviceGetPCIBusId(bus_id.data(), int(bus_id.size()), ordinal)
                        : CUDA_ERROR_NOT_SUPPORTED;
    if (int status = told == CUDA_SUCCESS ? find(bus_id.data(), &device) : int(nvml::kNotFound))
      return tl::unexpected(
          fmt::format("{} does not know device {} at {}: error {}", kNvidiaLibrary, ordinal, bus_id.data(), status));
    devices.push_back(device);
  }
  nvml::load_table(library, table_);
  devices_ = std::move(devices);
  return {};
}

ManagementLibrary ManagementLibrary::open(const DriverLibrary& driver) {
  ManagementLibrary library;
  if (!driver.software()) {
    auto opened = library.open_nvidia(driver);
    if (opened) return library;
    library.note_ = opened.error();
  }
  library.devices_ = software_management(driver, library.table_);
  return library;
}

}  // namespace gpuwire::server
