// The driver that a worker replays on, opened by name at run time.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

struct DriverTable;

// automatic: the software device where there is nothing of NVIDIA's: no library, or no device file. A driver that is
// there and does not work is an error.
enum class DeviceChoice : uint8_t { automatic, cuda, software };

struct DriverOptions {
  DeviceChoice device = DeviceChoice::automatic;
  std::string software_library;  // path of the software device's library
  unsigned software_devices = 1;
  uint64_t software_memory_bytes = 0;  // of each; 0: the device's own default
  std::string nvidia_library = "libcuda.so.1";
  // Of Linux, and of Linux inside Windows. One that exists shows that the kernel has an NVIDIA driver.
  std::vector<std::string> nvidia_device_files = {"/dev/nvidiactl", "/dev/dxg"};
  bool contexts = true;  // false: no memory of a device is taken, and nothing but facts can be asked
};

// An opened, initialised driver with at least one device, and the primary context of device 0 retained (unless
// DriverOptions says not to), so that a session finds it warm. Lives as long as the process: a driver library is never
// closed.
class DriverLibrary {
 public:
  // The error is one line that names the library, the call and the driver's answer, and the remedy.
  static tl::expected<DriverLibrary, std::string> open(const DriverOptions& options);

  DriverLibrary(DriverLibrary&&) noexcept;
  ~DriverLibrary();

  const DriverTable& table() const { return *table_; }
  bool software() const { return software_; }
  int version() const { return version_; }
  int device_count() const { return device_count_; }
  // "NVIDIA 580.159.04" or "software device".
  const std::string& name() const { return name_; }
  CUcontext primary() const { return primary_; }
  // A symbol of the library that is not in cuda.h; null: it has none.
  void* symbol(const char* name) const;

 private:
  DriverLibrary();
  struct OpenError {
    std::string text;
    bool no_library = false;  // there is no file of this name
  };
  static tl::expected<DriverLibrary, OpenError> open_one(const std::string& library, bool software, bool contexts);

  void* handle_ = nullptr;
  std::unique_ptr<DriverTable> table_;
  bool software_ = false;
  int version_ = 0;
  int device_count_ = 0;
  std::string name_;
  CUcontext primary_ = nullptr;
};

// "CUDA_ERROR_NO_DEVICE (100)", by the driver's own table of names.
std::string describe_result(const DriverTable& driver, CUresult result);
// "GPU-6770...", as nvidia-smi writes it.
std::string uuid_text(const DriverTable& driver, CUdevice device);

}  // namespace gpuwire::server
