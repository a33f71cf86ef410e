// A session's view of its tenant's chunks: the data of earlier copies to the device, which then need not be sent again.
#pragma once

#include <array>
#include <condition_variable>
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
#include "protocol/threads/mutex.hpp"
#include "protocol/threads/parallel.hpp"
#include "server/base/host_memory.hpp"
#include "server/chunk_store/chunk_file.hpp"

namespace gpuwire::server {

// Bytes that wait to be digested and written; more are not kept.
inline constexpr size_t kChunkQueueBytesMax = 64u << 20;
// The time for which the end of a session waits until queued chunks are written: the process ends soon after its
// connection (kEndGraceMs).
inline constexpr std::chrono::milliseconds kChunkQueueEnd{300};
// Threads that read and check chunks beside the executor.
inline constexpr unsigned kChunkHelpersMax = 7;
// The time for which these threads poll for the next piece of a copy before they sleep: a wake-up takes longer than
// reading a chunk.
inline constexpr std::chrono::microseconds kChunkPoll{200};

class ChunkStore {
 public:
  // Called with the number to be added; on the executor (found) and on the store's own thread (kept).
  struct Counters {
    std::function<void(uint64_t chunks, uint64_t bytes)> found = [](uint64_t, uint64_t) {};
    std::function<void(uint64_t bytes)> kept = [](uint64_t) {};
  };

  // Fastest first; at least one. `account`: of the queue, and of `uncharged_bytes`, which the session answers for as
  // soon as it keeps something; outlives the store, null: nobody counts.
  ChunkStore(std::vector<ChunkFile> files, HostMemory* account, uint64_t uncharged_bytes, Counters counters);
  // Discards waiting chunks, unless finish() was called.
  ~ChunkStore();
  ChunkStore(const ChunkStore&) = delete;
  ChunkStore& operator=(const ChunkStore&) = delete;

  // Sets the key of the digests, so that a session without the key finds nothing. Called first.
  void use_key(const digest::Key& key) { key_ = key; }

  // --- the executor -------------------------------------------------------------------------------------------------
  // Whether there is an entry for the digest; does not read the chunk.
  bool holds(const digest::Digest& digest) const;
  // Fills `out`, cut every kChunkBytes, with the chunks of these digests (as many as that is). A chunk that it reports
  // as found has been compared with its digest here, in `out`.
  std::vector<bool> fetch(std::span<const digest::Digest> digests, std::span<std::byte> out);
  // Copies the bytes, and keeps them in chunks of kChunkBytes by and by.
  void keep(std::span<const std::byte> bytes) noexcept;
  // Waits until all of that has been written, for kChunkQueueEnd at most; nothing is kept any more.
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

  Mutex mutex_;  // a leaf
  std::condition_variable changed_;
  HostCharge charge_ GUARDED_BY(mutex_);
  uint64_t uncharged_bytes_ GUARDED_BY(mutex_);
  size_t allocated_bytes_ GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<std::byte[]>> free_ GUARDED_BY(mutex_);
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  bool busy_ GUARDED_BY(mutex_) = false, ending_ GUARDED_BY(mutex_) = false;
  std::thread writer_;  // from the first keep() on
};

}  // namespace gpuwire::server
