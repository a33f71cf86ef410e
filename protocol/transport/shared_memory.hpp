// A connection of two rings in memory that both processes have mapped. The Unix socket over which it was negotiated
// carries bells and descriptors, and shows when the other process has gone. shared_memory_layout.hpp specifies the
// memory.
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

// The mapped file of a connection. The destructor closes and unmaps it. A child after fork() does not inherit the
// mapping.
class SharedMemoryFile {
 public:
  // The server's function: creates a file whose pages are allocated and which no process can resize.
  static tl::expected<SharedMemoryFile, std::string> create(uint32_t ring_bytes = shared_memory::kRingBytes);
  // The client's function: opens a file that the server has sent, and takes over `descriptor`. The error describes what
  // is wrong with the file.
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
  // Closes the descriptor; the mapping stays.
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

// Takes over `socket`, a connected Unix stream socket that carries nothing else any more. Returns null if too many
// files are open; the caller then still owns the socket.
std::unique_ptr<Transport> adopt_shared_memory(SharedMemoryFile file, int socket, SharedMemorySide side,
                                               std::string peer = {});

// Creates two connected ends in this process.
tl::expected<std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>>, std::string> shared_memory_pair(
    uint32_t ring_bytes = shared_memory::kRingBytes);

}  // namespace gpuwire::transport
