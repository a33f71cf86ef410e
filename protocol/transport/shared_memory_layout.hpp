// The memory that the two ends of a shared-memory connection share: one memfd_create(2) file, created and sealed by the
// server. This header is its specification; the file itself contains its version and its sizes.
//
//   offset                  bytes        content                            written by
//   0                       128          Header                             the server, once; never changes afterwards
//   kIndicesOffset          512          RingIndices of the ring to the server
//   + 512                   512          RingIndices of the ring to the client
//   kDataOffset             ring_bytes   bytes in flight to the server      the client
//   kDataOffset+ring_bytes  ring_bytes   bytes in flight to the client      the server
//
// Either end can write all of this memory at any time. So each end keeps its own indices in private memory, reads
// nothing back that it has written, and copies the other end's values before it checks (shared_ring.hpp) and uses them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpuwire::transport::shared_memory {

inline constexpr uint64_t kMagic = 0x314d'4853'5755'5047;  // "GPUWSHM1"
inline constexpr uint32_t kVersion = 1;
// A client accepts no other sizes from a server.
inline constexpr uint32_t kRingBytesMin = 64u << 10;
inline constexpr uint32_t kRingBytesMax = 64u << 20;
// The ring size of a server's files. Both rings fit into the second-level caches of two cores, and a sender is at most
// a fraction of a millisecond ahead.
inline constexpr uint32_t kRingBytes = 1u << 20;

// Two cache lines: processors prefetch them in pairs, and words that two processes write must not share a pair.
inline constexpr size_t kApart = 128;

struct Header {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  // Size of each ring; a power of two.
  uint32_t ring_bytes = 0;
};

// The indices of one ring. They count all bytes since the beginning and never wrap; a byte's place is its index modulo
// ring_bytes.
struct RingIndices {
  // Stored by the writer after it has written the bytes before this index. The reader loads it with acquire before it
  // reads them.
  alignas(kApart) std::atomic<uint64_t> written;
  // Stored by the writer once, after its last `written`: no bytes follow. The reader loads it before its last load of
  // `written`.
  std::atomic<uint32_t> finished;
  // Stored by the reader after it has copied the bytes before this index. The reader may have copied up to a quarter of
  // the ring more (notify_every()). The writer loads it with acquire before it reuses their places.
  alignas(kApart) std::atomic<uint64_t> read;
  // A reader stores 1 before it sleeps, and then loads `written` once more. The writer stores `written`, then resets
  // this word to 0 and rings. All four accesses are seq_cst: either the reader sees the written bytes, or the writer
  // sees that the reader sleeps.
  alignas(kApart) std::atomic<uint32_t> reader_sleeps;
  // The same for a writer that waits for room, with `read`.
  alignas(kApart) std::atomic<uint32_t> writer_sleeps;
};
static_assert(sizeof(RingIndices) == 512 && std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// A reader publishes its index only after this many more bytes. Otherwise the cache line with the index would move
// between the processors with each frame, while one of them waits for it. A writer uses the published room only, which
// is at least three quarters of the ring when everything has been read.
constexpr size_t notify_every(size_t ring_bytes) { return ring_bytes / 4; }

inline constexpr size_t kIndicesOffset = kApart;
inline constexpr size_t kDataOffset = 4096;
static_assert(sizeof(Header) <= kIndicesOffset && kIndicesOffset + 2 * sizeof(RingIndices) <= kDataOffset);

constexpr size_t file_bytes(uint32_t ring_bytes) { return kDataOffset + 2 * size_t(ring_bytes); }

// The records that the socket carries, any number of them in each direction, without gaps.
enum class SocketRecord : uint8_t {
  bell = 1,        // wakes the other end, which has announced that it sleeps
  descriptor = 2,  // 8 bytes of a number follow, and a file descriptor is passed with them (SCM_RIGHTS)
};
inline constexpr size_t kDescriptorRecordBytes = 9;
// The maximum of descriptors that have arrived and were not taken. One more closes the oldest.
inline constexpr size_t kDescriptorsWaitingMax = 16;

}  // namespace gpuwire::transport::shared_memory
