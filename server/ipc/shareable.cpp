#include "server/ipc/shareable.hpp"

#include <array>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

namespace gpuwire::server::ipc {
namespace {

// The name of a file without a path. A path cannot equal it, because the name does not begin with a slash.
constexpr std::string_view kEvent = "anon_inode:[eventfd]";
constexpr const char* kDriverDevice = "/dev/nvidiactl";

bool is_event(int descriptor) {
  std::array<char, 64> name{};
  const ssize_t bytes = ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), name.data(), name.size());
  return bytes > 0 && std::string_view(name.data(), size_t(bytes)) == kEvent;
}

// Compares the device number, because the path of a file depends on the mounts of the process that opened it.
bool is_driver_device(int descriptor) {
  struct stat device {};
  struct statx facts {};
  return ::stat(kDriverDevice, &device) == 0 && S_ISCHR(device.st_mode) &&
         ::statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &facts) == 0 &&
         S_ISCHR(facts.stx_mode) && makedev(facts.stx_rdev_major, facts.stx_rdev_minor) == device.st_rdev;
}

}  // namespace

bool is_shareable(int descriptor) {
  // Only files in memory have seals.
  return ::fcntl(descriptor, F_GET_SEALS) >= 0 || is_event(descriptor) || is_driver_device(descriptor);
}

}  // namespace gpuwire::server::ipc
