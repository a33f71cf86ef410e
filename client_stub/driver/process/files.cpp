#include "client_stub/driver/process/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>

#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

CUresult read_program_file(const char* path, std::vector<uint8_t>& contents) {
  struct File {
    int descriptor;
    ~File() {
      if (descriptor >= 0) close(descriptor);
    }
  } file{open(path, O_RDONLY | O_CLOEXEC)};
  if (file.descriptor < 0) return CUDA_ERROR_FILE_NOT_FOUND;
  struct stat status;
  if (fstat(file.descriptor, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size <= 0)
    return CUDA_ERROR_INVALID_IMAGE;
  if (uint64_t(status.st_size) > wire::kModuleBytesMax) return CUDA_ERROR_INVALID_IMAGE;
  try {
    contents.resize(size_t(status.st_size));
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  size_t filled = 0;
  while (filled < contents.size()) {
    ssize_t got = read(file.descriptor, contents.data() + filled, contents.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    filled += size_t(got);
  }
  contents.resize(filled);
  return contents.empty() ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

}  // namespace gpuwire::client
