// The driver that a worker replays calls on, opened by name at run time.
#pragma once

#include <cuda.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

struct DriverTable;

// automatic: the software device, if NVIDIA's library or device file is missing. An installed driver that does not work
// is an error.
enum class DeviceChoice : uint8_t { automatic, cuda, software };

struct DriverOptions {
  DeviceChoice device = DeviceChoice::automatic;
  std::string software_library;  // path of the software device's library
  unsigned software_devices = 1;
  uint64_t software_memory_bytes = 0;  // of each; 0: the device's own default
  std::string nvidia_library = "libcuda.so.1";
  // The device files of Linux, and of Linux inside Windows. If one exists, the kernel has an NVIDIA driver.
  std::vector<std::string> nvidia_device_files = {"/dev/nvidiactl", "/dev/dxg"};
  bool contexts = true;  // false: no device memory is allocated, and only facts can be queried
  // Called with the functions of an opened library before the first of them is called, to put others before them.
  std::function<void(DriverTable&)> loaded;
};

// An opened, initialised driver with at least one device. It retains the primary context of device 0 (unless
// DriverOptions forbids this), so that a session starts quickly. The object exists as long as the process: a driver
// library is never closed.
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
  // Returns a symbol of the library that is not in cuda.h; null: the library does not have it.
  void* symbol(const char* name) const;

 private:
  DriverLibrary();
  struct OpenError {
    std::string text;
    bool no_library = false;  // the library's file does not exist
  };
  static tl::expected<DriverLibrary, OpenError> open_one(const std::string& library, bool software,
                                                         const DriverOptions& options);

  void* handle_ = nullptr;
  std::unique_ptr<DriverTable> table_;
  bool software_ = false;
  int version_ = 0;
  int device_count_ = 0;
  std::string name_;
  CUcontext primary_ = nullptr;
};

// Returns for example "CUDA_ERROR_NO_DEVICE (100)", by the driver's own table of names.
std::string describe_result(const DriverTable& driver, CUresult result);
// "GPU-6770...", as nvidia-smi writes it.
std::string uuid_text(const DriverTable& driver, CUdevice device);

}  // namespace gpuwire::server
