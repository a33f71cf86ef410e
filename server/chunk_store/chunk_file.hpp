// Chunks in a file, by their digests: the store's form in memory (a memfd) and on disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <tl/expected.hpp>

#include "protocol/digest/blake3.hpp"
#include "protocol/wire/limits.hpp"
#include "server/base/owned_descriptor.hpp"

namespace gpuwire::server {

// The layout: `slots` entries in sets of 16, padded to a page, followed by as many chunks. A chunk's digest determines
// its set. In a full set a new chunk replaces the least recently used one.
//
// All workers of a tenant write to one file, without a lock, and any of them may be compromised by its client. So no
// content is trusted: an entry is copied, its numbers are checked, and the reader of a chunk compares its digest with
// the received bytes, and treats a mismatch as a miss. A write that collides with another, or was cut short, is such a
// miss.
class ChunkFile {
 public:
  static constexpr size_t kSlotsPerSet = 16;
  struct Entry {
    digest::Digest digest{};
    // 0: no chunk.
    uint32_t bytes = 0;
    uint32_t reserved = 0;
    // CLOCK_REALTIME.
    uint64_t used_ns = 0;
    uint64_t unused[2] = {};
  };
  static_assert(sizeof(Entry) == 64);

  // The number of slots that fit into a file of at most this many bytes, and the file's length. 0: no slot fits.
  static size_t slots_of(uint64_t bytes_max);
  static uint64_t file_bytes(size_t slots);

  // The file's maker has set its size.
  static tl::expected<ChunkFile, std::string> open(OwnedDescriptor file);

  // Returns whether the file has an entry for the digest; does not read the chunk's bytes. Any thread.
  bool holds(const digest::Digest& digest) const;
  // Reads the chunk of this digest, exactly `out.size()` bytes, and marks it as used. False: the chunk is missing. The
  // caller compares the digest.
  bool read(const digest::Digest& digest, std::span<std::byte> out) const;
  // Writes a new chunk in place of the least recently used chunk of its set. False: the disk or memory is full.
  bool write(const digest::Digest& digest, std::span<const std::byte> chunk) const;
  // Removes an entry whose bytes do not match the digest.
  void forget(const digest::Digest& digest) const;

  size_t slots() const { return sets_ * kSlotsPerSet; }
  uint64_t bytes() const { return file_bytes(slots()); }

 private:
  struct Found {
    size_t slot = 0;
    Entry entry;
  };
  using Set = Entry[kSlotsPerSet];

  ChunkFile(OwnedDescriptor file, size_t sets) : file_(std::move(file)), sets_(sets) {}
  size_t first_slot(const digest::Digest& digest) const;
  bool read_set(size_t first, Set& set) const;
  bool find(const digest::Digest& digest, Found& found) const;
  bool write_entry(size_t slot, const Entry& entry) const;
  uint64_t place_of(size_t slot) const;

  OwnedDescriptor file_;
  size_t sets_ = 0;
};

}  // namespace gpuwire::server
