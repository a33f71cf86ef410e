// The memory that the two ends of a shared-memory connection have in common: one file of the kernel's
// (memfd_create(2)), made and sealed by the server. This header is its specification; protocol version and sizes are in
// the file itself.
//
//   offset                  bytes        what                               written by
//   0                       128          Header                             the server, once: never changes after
//   kIndicesOffset          512          RingIndices of the ring to the server
//   + 512                   512          RingIndices of the ring to the client
//   kDataOffset             ring_bytes   bytes on their way to the server   the client
//   kDataOffset+ring_bytes  ring_bytes   bytes on their way to the client   the server
//
// Either end can write any of it at any time. So each keeps its own indices in memory of its own and reads back nothing
// that it has written; what the other end writes is copied out, then checked (shared_ring.hpp), then used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace gpuwire::transport::shared_memory {

inline constexpr uint64_t kMagic = 0x314d'4853'5755'5047;  // "GPUWSHM1"
inline constexpr uint32_t kVersion = 1;
// A client takes no other sizes from a server.
inline constexpr uint32_t kRingBytesMin = 64u << 10;
inline constexpr uint32_t kRingBytesMax = 64u << 20;
// The size in a server's files: both rings stay in the second-level caches of two cores, and a sender is a fraction of
// a millisecond ahead at most.
inline constexpr uint32_t kRingBytes = 1u << 20;

// Two lines of the cache: processors fetch them in pairs, and words that two processes write must not share a pair.
inline constexpr size_t kApart = 128;

struct Header {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t ring_bytes = 0;  // a power of two, of each ring
};

// Of one ring. Indices count all bytes since the beginning and never wrap; a byte's place is its index modulo
// ring_bytes.
struct RingIndices {
  // By the writer, after the bytes before it have been written; the reader's acquire makes them readable.
  alignas(kApart) std::atomic<uint64_t> written;
  // By the writer, once, after its last `written`: nothing follows. Read before `written` is read for the last time.
  std::atomic<uint32_t> finished;
  // By the reader, after the bytes before it have been copied out, and perhaps more: less than a quarter of the ring
  // (notify_every()). The writer's acquire lets it use their places again.
  alignas(kApart) std::atomic<uint64_t> read;
  // 1: set by a reader that is about to sleep, before it reads `written` once more; the writer resets it to 0 after it
  // has moved `written`, and rings. All four accesses are seq_cst: either the reader sees the written bytes, or the
  // writer sees that the reader sleeps.
  alignas(kApart) std::atomic<uint32_t> reader_sleeps;
  // The same for a writer that waits for room, and `read`.
  alignas(kApart) std::atomic<uint32_t> writer_sleeps;
};
static_assert(sizeof(RingIndices) == 512 && std::atomic<uint64_t>::is_always_lock_free &&
              std::atomic<uint32_t>::is_always_lock_free);

// A reader publishes its position only after this many more bytes, because the line with its index would otherwise go
// to and fro between the processors with each frame, while one of them waits for it. A writer relies on the published
// room only: when everything has been read, it has three quarters of the ring at least.
constexpr size_t notify_every(size_t ring_bytes) { return ring_bytes / 4; }

inline constexpr size_t kIndicesOffset = kApart;
inline constexpr size_t kDataOffset = 4096;
static_assert(sizeof(Header) <= kIndicesOffset && kIndicesOffset + 2 * sizeof(RingIndices) <= kDataOffset);

constexpr size_t file_bytes(uint32_t ring_bytes) { return kDataOffset + 2 * size_t(ring_bytes); }

// The socket beside it carries, in each direction, any number of these, one after the other.
enum class SocketRecord : uint8_t {
  bell = 1,        // look: you have said that you sleep
  descriptor = 2,  // 8 bytes of a number follow, and a file descriptor comes with them (SCM_RIGHTS)
};
inline constexpr size_t kDescriptorRecordBytes = 9;
// Descriptors that have come and that nobody has asked for; with one more the oldest is closed.
inline constexpr size_t kDescriptorsWaitingMax = 16;

}  // namespace gpuwire::transport::shared_memory
