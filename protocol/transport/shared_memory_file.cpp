#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "protocol/transport/shared_memory.hpp"

namespace gpuwire::transport {

using namespace shared_memory;

namespace {

tl::unexpected<std::string> failed(const char* what, int error) {
  return tl::unexpected(std::string(what) + ": " + std::system_category().message(error));
}

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

}  // namespace

SharedMemoryFile::~SharedMemoryFile() {
  close_descriptor();
  if (memory_) munmap(memory_, file_bytes(ring_bytes_));
}

void SharedMemoryFile::close_descriptor() {
  if (descriptor_ >= 0) close(std::exchange(descriptor_, -1));
}

bool SharedMemoryFile::map() {
  void* memory = mmap(nullptr, file_bytes(ring_bytes_), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) return false;
  memory_ = static_cast<std::byte*>(memory);
  // A child of the program must not use its parent's connection, which it could only damage.
  madvise(memory_, file_bytes(ring_bytes_), MADV_DONTFORK);
  return true;
}

tl::expected<SharedMemoryFile, std::string> SharedMemoryFile::create(uint32_t ring_bytes) {
  if (!std::has_single_bit(ring_bytes) || ring_bytes < kRingBytesMin || ring_bytes > kRingBytesMax)
    return tl::unexpected(std::string("no size for a ring"));
  SharedMemoryFile file;
  file.ring_bytes_ = ring_bytes;
  file.descriptor_ = memfd_create("gpuwire-connection", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file.descriptor_ < 0) return failed("memfd_create", errno);
  // Allocates the pages now, so that a system without memory returns an error here and sends no SIGBUS later. Before
  // the seals, only the owner of the descriptor can resize the file.
  if (fallocate(file.descriptor_, 0, 0, off_t(file_bytes(ring_bytes))) != 0) return failed("fallocate", errno);
  if (fcntl(file.descriptor_, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) return failed("sealing", errno);
  if (!file.map()) return failed("mmap", errno);
  Header header;
  header.ring_bytes = ring_bytes;
  std::memcpy(file.memory_, &header, sizeof header);
  for (size_t ring = 0; ring < 2; ++ring)
    new (file.memory_ + kIndicesOffset + ring * sizeof(RingIndices)) RingIndices{};
  return file;
}

tl::expected<SharedMemoryFile, std::string> SharedMemoryFile::open(int descriptor) {
  SharedMemoryFile file;
  file.descriptor_ = descriptor;
  int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0) return failed("the server's shared memory is of another kind", errno);
  if ((seals & kSizeSeals) != kSizeSeals)
    return tl::unexpected(std::string("the server's shared memory can be resized"));
  struct stat facts {};
  if (fstat(descriptor, &facts) != 0) return failed("fstat", errno);
  Header header;
  if (pread(descriptor, &header, sizeof header, 0) != ssize_t(sizeof header) || header.magic != kMagic)
    return tl::unexpected(std::string("the server's shared memory is something else"));
  if (header.version != kVersion)
    return tl::unexpected("the server's shared memory is of version " + std::to_string(header.version) + ", not " +
                          std::to_string(kVersion));
  if (!std::has_single_bit(header.ring_bytes) || header.ring_bytes < kRingBytesMin ||
      header.ring_bytes > kRingBytesMax || uint64_t(facts.st_size) != file_bytes(header.ring_bytes))
    return tl::unexpected(std::string("the server's shared memory has an impossible size"));
  file.ring_bytes_ = header.ring_bytes;
  if (!file.map()) return failed("mmap", errno);
  return file;
}

}  // namespace gpuwire::transport
