#include "client_stub/session/file_limit.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

namespace gpuwire::client {

bool may_grow_to(uint64_t bytes) noexcept {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

bool may_write(int descriptor, size_t bytes) noexcept {
  if (may_grow_to(~uint64_t{0})) return true;
  struct stat found {};
  if (fstat(descriptor, &found) != 0 || !S_ISREG(found.st_mode)) return true;
  const int flags = fcntl(descriptor, F_GETFL);
  const off_t at = flags >= 0 && (flags & O_APPEND) ? found.st_size : lseek(descriptor, 0, SEEK_CUR);
  return at < 0 || may_grow_to(uint64_t(at) + bytes);
}

}  // namespace gpuwire::client
