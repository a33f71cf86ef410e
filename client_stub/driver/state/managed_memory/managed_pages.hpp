// The two mappings of a segment of managed memory: the program's, at the server's address, and the client's, always
// open.
#pragma once

#include <cstdint>

#include "client_stub/driver/state/managed_memory/managed_segment.hpp"

namespace gpuwire::client {

class MappedPages final : public SegmentPages {
 public:
  enum class Result : uint8_t { made, taken, no_memory };

  MappedPages() = default;
  MappedPages(const MappedPages&) = delete;
  MappedPages& operator=(const MappedPages&) = delete;
  ~MappedPages() override;

  // Maps [begin, end), whole pages of zeros. `taken`: another mapping is there. One thread at a time.
  Result map(uint64_t begin, uint64_t end, PageAccess access) noexcept;

  std::byte* memory() noexcept override { return ours_; }
  bool protect(uint64_t offset, uint64_t bytes, PageAccess access) noexcept override;
  bool touched(uint64_t offset, uint64_t& begin, uint64_t& end) noexcept override;

 private:
  uint64_t begin_ = 0, bytes_ = 0;
  std::byte* ours_ = nullptr;
  // The number of the file.
  uint64_t file_ = 0;
  uint64_t file_offset_ = 0;
};

}  // namespace gpuwire::client
