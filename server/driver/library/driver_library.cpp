#include "server/driver/library/driver_library.hpp"

#include <cstdlib>
#include <fstream>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "server/driver_table.hpp"

namespace gpuwire::server {
namespace {

constexpr const char* kNvidiaLibrary = "libcuda.so.1";
// What the software device reads when it is initialised.
constexpr const char* kSoftwareDevicesVariable = "GPUWIRE_SOFTWARE_DEVICES";
constexpr const char* kSoftwareMemoryVariable = "GPUWIRE_SOFTWARE_MEMORY_BYTES";

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue ..." -> "NVIDIA 580.159.04"
std::string nvidia_name(int version) {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string word;
  while (file >> word) {
    size_t dots = 0, digits = 0;
    for (char c : word) {
      dots += c == '.';
      digits += c >= '0' && c <= '9';
    }
    if (dots >= 1 && digits >= 4 && dots + digits == word.size()) return "NVIDIA " + word;
  }
  return fmt::format("NVIDIA driver {}", version);
}

}  // namespace

DriverLibrary::DriverLibrary() : table_(std::make_unique<DriverTable>()) {}
DriverLibrary::DriverLibrary(DriverLibrary&&) noexcept = default;
DriverLibrary::~DriverLibrary() = default;

void* DriverLibrary::symbol(const char* name) const { return ::dlsym(handle_, name); }

std::string describe_result(const DriverTable& driver, CUresult result) {
  const char* name = nullptr;
  if (driver.cuGetErrorName && driver.cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
    return fmt::format("{} ({})", name, int(result));
  return fmt::format("CUDA error {}", int(result));
}

std::string uuid_text(const DriverTable& driver, CUdevice device) {
  CUuuid uuid{};
  auto get_uuid = driver.cuDeviceGetUuid_v2 ? driver.cuDeviceGetUuid_v2 : driver.cuDeviceGetUuid;
  if (get_uuid) get_uuid(&uuid, device);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i)
    text += fmt::format(fmt::runtime(i == 4 || i == 6 || i == 8 || i == 10 ? "-{:02x}" : "{:02x}"),
                        static_cast<unsigned char>(uuid.bytes[i]));
  return text;
}

tl::expected<DriverLibrary, std::string> DriverLibrary::open_one(const std::string& library, bool software,
                                                                 bool contexts) {
  DriverLibrary driver;
  driver.software_ = software;
  driver.handle_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!driver.handle_) {
    const char* why = ::dlerror();
    return tl::unexpected(fmt::format("cannot open {}: {}", library, why ? why : "unknown error"));
  }
  DriverTable& table = *driver.table_;
  load_driver_table(driver.handle_, table);
  auto failed = [&](const char* call, CUresult result) {
    return tl::unexpected(fmt::format("{} of {}: {}", call, library, describe_result(table, result)));
  };
  if (!table.cuInit || !table.cuDeviceGetCount || !table.cuDriverGetVersion || !table.cuDevicePrimaryCtxRetain ||
      !table.cuCtxSetCurrent)
    return tl::unexpected(fmt::format("{} is no CUDA driver: it lacks cuInit or another basic function", library));
  if (CUresult result = table.cuInit(0)) return failed("cuInit", result);
  if (CUresult result = table.cuDriverGetVersion(&driver.version_)) return failed("cuDriverGetVersion", result);
  if (CUresult result = table.cuDeviceGetCount(&driver.device_count_)) return failed("cuDeviceGetCount", result);
  if (driver.device_count_ < 1) return failed("cuDeviceGetCount", CUDA_ERROR_NO_DEVICE);
  if (CUresult result = contexts ? table.cuDevicePrimaryCtxRetain(&driver.primary_, 0) : CUDA_SUCCESS)
    return failed("cuDevicePrimaryCtxRetain of device 0", result);
  driver.name_ = software ? "software device" : nvidia_name(driver.version_);
  return driver;
}

tl::expected<DriverLibrary, std::string> DriverLibrary::open(const DriverOptions& options) {
  ::setenv(kSoftwareDevicesVariable, std::to_string(options.software_devices).c_str(), 1);
  if (options.software_memory_bytes)
    ::setenv(kSoftwareMemoryVariable, std::to_string(options.software_memory_bytes).c_str(), 1);
  if (options.device == DeviceChoice::software) return open_one(options.software_library, true, options.contexts);
  auto driver = open_one(kNvidiaLibrary, false, options.contexts);
  if (driver || options.device == DeviceChoice::cuda) return driver;
  auto software = open_one(options.software_library, true, options.contexts);
  if (!software) return tl::unexpected(fmt::format("{}; {}", driver.error(), software.error()));
  return software;
}

}  // namespace gpuwire::server
