// Asynchronous copies to host memory whose bytes are still on their way: where the data of each CopyData notice go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "client_stub/session/session.hpp"

namespace gpuwire::client {

struct CopyDestination {
  void* data = nullptr;   // must stay valid until the copy is done, as CUDA demands of the program
  size_t bytes = 0;       // all of the copy; more is a fault of the server
  // Pitched destinations: gets each piece with its offset in the packed data; `data` is then unused.
  std::function<void(size_t offset, std::span<const std::byte> piece)> scatter;
};

// Any thread; one leaf lock.
class PendingCopies {
 public:
  // Before the frame leaves: inside the `write` function of post(), whose `sequence` is set by then.
  void expect(uint64_t sequence, CopyDestination destination);
  // The frame was not sent after all.
  void cancel(uint64_t sequence) noexcept;

  // For a CopyData notice. A sink of 0 bytes: nobody expects it, or it does not fit.
  BulkSink sink(uint64_t sequence, uint64_t offset, size_t bytes);
  // The piece has been stored; `last`: the copy is over.
  void stored(uint64_t sequence, bool last) noexcept;

  // The session has ended.
  void clear() noexcept;

 private:
  struct Copy {
    CopyDestination destination;
    std::function<void(size_t offset, std::span<const std::byte> piece)> shifted;  // scatter from the offset of the piece being read
  };
  std::mutex mutex_;
  std::unordered_map<uint64_t, Copy> copies_;
};

PendingCopies& pending_copies() noexcept;

}  // namespace gpuwire::client
