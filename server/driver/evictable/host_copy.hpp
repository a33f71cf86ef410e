// HostCopy: the host memory with the contents of device memory.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace gpuwire::server {

// Unmapped by the destructor: the kernel clears the pages before it gives them to anybody.
//
// The mapping is shared with no process. It is MAP_SHARED because RLIMIT_DATA bounds a worker's private memory by its
// tenant's host memory, and a suspended session's memory is bounded by itself (`[server] suspend_memory`); the tenant's
// control group and the host guard count both.
class HostCopy {
 public:
  HostCopy() = default;
  ~HostCopy() {
    if (memory_) ::munmap(memory_, bytes_);
  }
  HostCopy(HostCopy&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  HostCopy& operator=(HostCopy&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  // False: the host has no room.
  bool allocate(uint64_t bytes) {
    void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    *this = HostCopy(memory, bytes);
    // Large pages where the machine permits them: there are fewer page faults.
    ::madvise(memory_, bytes_, MADV_HUGEPAGE);
    // The contents of a tenant's device memory are in no core file.
    ::madvise(memory_, bytes_, MADV_DONTDUMP);
    return true;
  }
  std::byte* data() const { return static_cast<std::byte*>(memory_); }
  uint64_t bytes() const { return bytes_; }

 private:
  HostCopy(void* memory, uint64_t bytes) : memory_(memory), bytes_(bytes) {}

  void* memory_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace gpuwire::server
