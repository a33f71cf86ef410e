// Chunk files in memory for tests.
#pragma once

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "server/chunk_store/chunk_file.hpp"

namespace gpuwire::test {

struct ChunkFileMemory {
  explicit ChunkFileMemory(size_t slots) : descriptor(::memfd_create("chunks", MFD_CLOEXEC)) {
    REQUIRE(::ftruncate(descriptor.get(), off_t(server::ChunkFile::file_bytes(slots))) == 0);
  }
  server::ChunkFile open() const {
    auto file = server::ChunkFile::open(server::OwnedDescriptor(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0)));
    REQUIRE(file.has_value());
    return std::move(*file);
  }
  server::OwnedDescriptor descriptor;
};

inline std::vector<std::byte> chunk_of(unsigned seed, size_t bytes = wire::kChunkBytes) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> chunk(bytes);
  for (auto& byte : chunk) byte = std::byte(random());
  return chunk;
}

}  // namespace gpuwire::test
