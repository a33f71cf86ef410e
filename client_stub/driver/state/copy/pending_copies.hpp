// Asynchronous copies to host memory whose bytes are still on their way: where the data of each CopyData notice go.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "client_stub/driver/state/copy/range_counts.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "client_stub/session/session.hpp"
#include "client_stub/session/transfer_progress.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

struct CopyDestination {
  // Must stay valid until the copy is done, as CUDA demands of the program.
  void* data = nullptr;
  // All of the copy; more is a fault of the server.
  size_t bytes = 0;
  // Pitched destinations: gets each piece with its offset in the packed data; `data` is then where the first row
  // begins.
  std::function<void(size_t offset, std::span<const std::byte> piece)> scatter;
  // The bytes from there to the end of the last row of a pitched destination.
  size_t around_bytes = 0;
  // Lives as long as the copy is under way; may be null.
  std::shared_ptr<LongTransfer> transfer;
};

// Any thread; one leaf lock.
class PendingCopies final : public SessionPart {
 public:
  explicit PendingCopies(SessionParts& parts) noexcept : SessionPart(parts) {}

  // Before the frame leaves: inside the `write` function of post(), whose `sequence` is set by then.
  void expect(uint64_t sequence, CopyDestination destination);
  // The frame was not sent after all.
  void cancel(uint64_t sequence) noexcept;

  // For a CopyData notice. A sink of 0 bytes: nobody expects it, or it does not fit.
  BulkSink sink(uint64_t sequence, uint64_t offset, size_t bytes);
  // The piece has been stored; `last`: the copy is over.
  void stored(uint64_t sequence, bool last) noexcept;

  // Is a copy into any of these bytes still in flight? Costs one atomic load when there is no copy, and logarithmic
  // time in the number of copies. A pitched copy counts as touching the bytes between its rows, too.
  bool touches(const void* data, size_t bytes) const noexcept;
  // Is any copy at all?
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }

  // Lost: nothing arrives any more. Closed: a thread in the middle of reading still stores to these copies.
  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  struct Copy {
    CopyDestination destination;
    // Scatter from the offset of the piece being read.
    std::function<void(size_t offset, std::span<const std::byte> piece)> shifted;
  };
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Copy> copies_ GUARDED_BY(mutex_);
  // Theirs.
  RangeCounts ranges_ GUARDED_BY(mutex_);
  // copies_.size(), written under the lock. Relaxed: a thread that asks about its own earlier copy sees its own write,
  // and of other threads' copies it can only know by synchronising with them.
  std::atomic<size_t> count_{0};
};

}  // namespace gpuwire::client
