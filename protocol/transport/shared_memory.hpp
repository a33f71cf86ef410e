// A connection of two rings in memory that both processes have mapped, with the Unix socket that brought them together
// beside it: for bells, for descriptors, and to find out when the other process has gone. shared_memory_layout.hpp
// specifies the memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <tl/expected.hpp>

#include "protocol/transport/shared_memory_layout.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::transport {

enum class SharedMemorySide : uint8_t { server, client };

// The file of a connection, mapped. Closed and unmapped when it goes; not there in a child after fork().
class SharedMemoryFile {
 public:
  // A new one, whose pages the system has and which nobody can resize. The server's.
  static tl::expected<SharedMemoryFile, std::string> create(uint32_t ring_bytes = shared_memory::kRingBytes);
  // A file that the server has sent; takes `descriptor` over. The error describes what is wrong with it.
  static tl::expected<SharedMemoryFile, std::string> open(int descriptor);

  SharedMemoryFile(SharedMemoryFile&& other) noexcept { *this = std::move(other); }
  SharedMemoryFile& operator=(SharedMemoryFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(memory_, other.memory_);
    std::swap(ring_bytes_, other.ring_bytes_);
    return *this;
  }
  ~SharedMemoryFile();

  int descriptor() const { return descriptor_; }
  // The mapping is enough from here on.
  void close_descriptor();
  std::byte* memory() const { return memory_; }
  uint32_t ring_bytes() const { return ring_bytes_; }

 private:
  SharedMemoryFile() = default;
  bool map();

  int descriptor_ = -1;
  std::byte* memory_ = nullptr;
  uint32_t ring_bytes_ = 0;
};

// Takes `socket` over, a connected Unix stream socket on which nothing else is said any more. Null: too many open
// files; the socket is then still the caller's.
std::unique_ptr<Transport> adopt_shared_memory(SharedMemoryFile file, int socket, SharedMemorySide side,
                                               std::string peer = {});

// Two connected ends in this process. Error: why not.
tl::expected<std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>>, std::string> shared_memory_pair(
    uint32_t ring_bytes = shared_memory::kRingBytes);

}  // namespace gpuwire::transport
