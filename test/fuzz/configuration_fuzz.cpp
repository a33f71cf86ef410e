// The input is a configuration file. An accepted configuration is consistent; every mistake has one line.
#include <cstdlib>
#include <string>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/base/owned_descriptor.hpp"
#include "server/config/configuration.hpp"
#include "test/fuzz/frame_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gpuwire::server;
  if (size == 0) return 0;
  // Uses a file in memory, because a file system would take most of the time.
  OwnedDescriptor file(::memfd_create("configuration", MFD_CLOEXEC));
  if (!file || ::write(file.get(), data + 1, size - 1) != ssize_t(size - 1)) std::abort();
  auto read = read_configuration("/proc/self/fd/" + std::to_string(file.get()));
  if (read) {
    check_devices(*read, {uint64_t{80} << 30, uint64_t{80} << 30});
    for (const TenantConfiguration& tenant : read->tenants) memory_on(tenant, 0);
    return 0;
  }
  if (read.error().empty()) std::abort();
  for (const std::string& mistake : read.error()) {
    if (mistake.empty() || mistake.find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
