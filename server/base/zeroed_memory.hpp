// Zeroed memory, of which the system provides pages as they are touched.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include <sys/mman.h>

namespace gpuwire::server {

// Reading unwritten pages takes no memory, so a copy of zeroes costs nothing. Empty if the system has no memory.
class ZeroedMemory {
 public:
  ZeroedMemory() = default;
  explicit ZeroedMemory(size_t bytes) : bytes_(bytes) {
    void* memory =
        bytes ? ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
              : MAP_FAILED;
    if (memory != MAP_FAILED) data_ = static_cast<std::byte*>(memory);
    else bytes_ = 0;
  }
  ZeroedMemory(ZeroedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ZeroedMemory& operator=(ZeroedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~ZeroedMemory() {
    if (data_) ::munmap(data_, bytes_);
  }

  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace gpuwire::server
