// A session's view of its tenant's chunks, the stored data of earlier copies to the device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "protocol/digest/blake3.hpp"
#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "protocol/threads/parallel.hpp"
#include "server/base/host_memory.hpp"
#include "server/chunk_store/chunk_file.hpp"

namespace gpuwire::server {

// The largest number of queued bytes; further data are discarded.
inline constexpr size_t kChunkQueueBytesMax = 64u << 20;
// The time for which the end of a session waits until queued chunks are written: the process ends soon after its
// connection (kEndGraceMs).
inline constexpr std::chrono::milliseconds kChunkQueueEnd{300};
// The number of threads that read and verify chunks beside the executor.
inline constexpr unsigned kChunkHelpersMax = 7;
// The time for which these threads poll for the next piece of a copy before they sleep: a wake-up takes longer than
// reading a chunk.
inline constexpr std::chrono::microseconds kChunkPoll{200};

class ChunkStore {
 public:
  // Called with the increment of a counter, on the executor (found) or on the store's own thread (kept).
  struct Counters {
    std::function<void(uint64_t chunks, uint64_t bytes)> found = [](uint64_t, uint64_t) {};
    std::function<void(uint64_t bytes)> kept = [](uint64_t) {};
  };

  // `files`: fastest first, at least one. `account` is charged for the queue, and for `uncharged_bytes` as soon as the
  // session stores data; it outlives the store; null: nothing is counted.
  ChunkStore(std::vector<ChunkFile> files, HostMemory* account, uint64_t uncharged_bytes, Counters counters);
  // Discards queued chunks, unless finish() was called.
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Sets the key of the digests, so that a session without the key finds nothing. Called first.
  void use_key(const digest::Key& key) { key_ = key; }

  // --- the executor -------------------------------------------------------------------------------------------------
  // Whether there is an entry for the digest; does not read the chunk.
  bool holds(const digest::Digest& digest) const;
  // Fills `out`, in pieces of kChunkBytes, with the chunks of these digests. The function compares each chunk in `out`
  // with its digest before it reports the chunk as found.
  std::vector<bool> fetch(std::span<const digest::Digest> digests, std::span<std::byte> out);
  // Copies the bytes into the queue. The writer stores them in chunks of kChunkBytes.
  void keep(std::span<const std::byte> bytes) noexcept;
  // Waits until the queue has been written, at most for kChunkQueueEnd. After that the store accepts no data.
  void finish();

 private:
  struct Waiting {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };
  bool fetch_one(const digest::Digest& digest, std::span<std::byte> out) const;
  const digest::Key* key() const { return key_ ? &*key_ : nullptr; }
  void write_waiting() noexcept;

  const std::vector<ChunkFile> files_;
  const Counters counters_;
  std::optional<digest::Key> key_;
  Parallel parallel_;

  // A leaf.
  Mutex mutex_;
  Condition changed_;
  HostCharge charge_ GUARDED_BY(mutex_);
  uint64_t uncharged_bytes_ GUARDED_BY(mutex_);
  size_t allocated_bytes_ GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<std::byte[]>> free_ GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  bool busy_ GUARDED_BY(mutex_) = false, ending_ GUARDED_BY(mutex_) = false;
  // From the first keep() on.
  std::thread writer_;
};

}  // namespace gpuwire::server
