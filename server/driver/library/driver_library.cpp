#include "server/driver/library/driver_library.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string_view>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include "server/driver_table.hpp"

namespace gpuwire::server {
namespace {

// The variables that the software device reads when it is initialised.
constexpr const char* kSoftwareDevicesVariable = "GPUWIRE_SOFTWARE_DEVICES";
constexpr const char* kSoftwareMemoryVariable = "GPUWIRE_SOFTWARE_MEMORY_BYTES";

// The software device's function that makes it refuse calls that crash NVIDIA's driver
// (../../software_device/README.md).
constexpr const char* kSoftwareSetStrict = "gpuwire_software_set_strict";

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

// The administrator's remedy for an error of NVIDIA's driver; "Error handling" of the driver API names the causes.
const char* what_to_do(CUresult result) {
  switch (result) {
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "the driver's library and its kernel module are of different versions, as after an upgrade: restart the "
             "machine";
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "a library for forward compatibility (cuda-compat) is found before the driver's own: take it out of the "
             "library path";
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "the GPUs wait for a service of NVIDIA's: systemctl status nvidia-fabricmanager";
    case CUDA_ERROR_NO_DEVICE:
      return "nvidia-smi says whether the driver has a GPU, and CUDA_VISIBLE_DEVICES may hide it";
    case CUDA_ERROR_OUT_OF_MEMORY: return "other processes have the GPU's memory: nvidia-smi lists them";
    default:
      return "nvidia-smi and the kernel's log (dmesg | grep NVRM) say more; a restart of the machine loads the driver "
             "anew";
  }
}

// The dynamic loader's text for a library whose own file is missing, not one of its dependencies.
bool says_there_is_no_file(std::string_view loader_says, std::string_view library) {
  return loader_says.starts_with(library) && loader_says.find("No such file or directory") != std::string_view::npos;
}

bool any_exists(const std::vector<std::string>& files) {
  return std::any_of(files.begin(), files.end(), [](const auto& file) { return ::access(file.c_str(), F_OK) == 0; });
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

tl::expected<DriverLibrary, DriverLibrary::OpenError> DriverLibrary::open_one(const std::string& library, bool software,
                                                                              const DriverOptions& options) {
  DriverLibrary driver;
  driver.software_ = software;
  driver.handle_ = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!driver.handle_) {
    const char* said = ::dlerror();
    const std::string why = said ? said : "unknown error";
    return tl::unexpected(
        OpenError{fmt::format("cannot open {}: {}", library, why), says_there_is_no_file(why, library)});
  }
  DriverTable& table = *driver.table_;
  load_driver_table(driver.handle_, table);
  if (options.loaded) options.loaded(table);
  auto failed = [&](const char* call, CUresult result) {
    std::string text = fmt::format("{} of {}: {}", call, library, describe_result(table, result));
    if (!software) text += fmt::format("; {}", what_to_do(result));
    return tl::unexpected(OpenError{std::move(text)});
  };
  if (!table.cuInit || !table.cuDeviceGetCount || !table.cuDriverGetVersion || !table.cuDevicePrimaryCtxRetain ||
      !table.cuCtxSetCurrent)
    return tl::unexpected(
        OpenError{fmt::format("{} is no CUDA driver: it lacks cuInit or another basic function", library)});
  if (software) {
    if (void* set_strict = driver.symbol(kSoftwareSetStrict)) reinterpret_cast<void (*)(int)>(set_strict)(1);
  }
  if (CUresult result = table.cuInit(0)) return failed("cuInit", result);
  if (CUresult result = table.cuDriverGetVersion(&driver.version_)) return failed("cuDriverGetVersion", result);
  if (CUresult result = table.cuDeviceGetCount(&driver.device_count_)) return failed("cuDeviceGetCount", result);
  if (driver.device_count_ < 1) return failed("cuDeviceGetCount", CUDA_ERROR_NO_DEVICE);
  if (CUresult result = options.contexts ? table.cuDevicePrimaryCtxRetain(&driver.primary_, 0) : CUDA_SUCCESS)
    return failed("cuDevicePrimaryCtxRetain of device 0", result);
  driver.name_ = software ? "software device" : nvidia_name(driver.version_);
  return driver;
}

tl::expected<DriverLibrary, std::string> DriverLibrary::open(const DriverOptions& options) {
  ::setenv(kSoftwareDevicesVariable, std::to_string(options.software_devices).c_str(), 1);
  if (options.software_memory_bytes)
    ::setenv(kSoftwareMemoryVariable, std::to_string(options.software_memory_bytes).c_str(), 1);
  auto text_of = [](const OpenError& error) { return error.text; };
  auto software = [&] { return open_one(options.software_library, true, options); };
  if (options.device == DeviceChoice::software) return software().map_error(text_of);
  auto driver = open_one(options.nvidia_library, false, options);
  if (driver || options.device == DeviceChoice::cuda) return std::move(driver).map_error(text_of);
  // With the software device programs would run a hundred times slower, without a visible reason.
  if (!driver.error().no_library && any_exists(options.nvidia_device_files))
    return tl::unexpected(driver.error().text + "; --device software computes on the CPU");
  auto second = software();
  if (!second) return tl::unexpected(fmt::format("{}; {}", driver.error().text, second.error().text));
  return std::move(*second);
}

}  // namespace gpuwire::server
