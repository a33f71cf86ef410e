// The bytes of one program image in memory, from a file of the cache or as they arrive from a client.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "server/base/host_memory.hpp"

namespace gpuwire::server {

// Owns a mapping; at least one page of zeros follows the bytes, so that PTX text is terminated and a reader that
// misjudges the size finds no other memory of the process.
class ModuleImage {
 public:
  // Allocates `bytes` (> 0), which the caller fills, and keeps their charge. Null: no memory.
  static std::shared_ptr<ModuleImage> create(size_t bytes, HostCharge charge = {});
  // Maps an open file of `bytes` (> 0) bytes, read-only. Null: it cannot be mapped. The file may be unlinked, but not
  // truncated, meanwhile.
  static std::shared_ptr<ModuleImage> map(int descriptor, size_t bytes);

  ~ModuleImage();
  ModuleImage(const ModuleImage&) = delete;
  ModuleImage& operator=(const ModuleImage&) = delete;

  std::span<const std::byte> bytes() const { return {data_, bytes_}; }
  // Only of created ones.
  std::span<std::byte> writable() { return {data_, bytes_}; }

 private:
  ModuleImage(std::byte* data, size_t bytes, size_t mapped_bytes)
      : data_(data), bytes_(bytes), mapped_bytes_(mapped_bytes) {}
  std::byte* data_;
  size_t bytes_;
  size_t mapped_bytes_;
  // None for a mapped file, whose pages the system can drop.
  HostCharge charge_;
};

}  // namespace gpuwire::server
