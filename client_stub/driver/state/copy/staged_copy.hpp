// One copy between pageable memory of the program and the device through SharedStaging, in pieces, so that the CPU
// copies one piece while the device has another.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/copy/helped_memcpy.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"

namespace gpuwire::client {

// Leaves room for a piece to begin anywhere in the first page of a block.
inline constexpr size_t kStagedPieceBytesMax = kStagingBlockBytes - 4096;
// From this size on, helper threads copy.
inline constexpr size_t kHelpedCopyBytesMin = 8u << 20;
// The blocks of one copy from the device that are in flight or being emptied.
inline constexpr size_t kFetchBlocksMax = 4;

// Used by one thread, for one call.
class StagedCopy {
 public:
  StagedCopy(const Caller& caller, uint64_t stream, size_t bytes);
  StagedCopy(const StagedCopy&) = delete;
  StagedCopy& operator=(const StagedCopy&) = delete;

  // Both end with the first failure. Without a failure the bytes up to done() have been copied; no block was available
  // for the others.

  // When it returns, the source may be changed. `last` is the form of the frame with the copy's last bytes.
  enum class Last : uint8_t {
    posted,   // as the other pieces
    told,     // posted; the program may assume that the data are on the device
    awaited,  // called: the data are on the device when it returns
  };
  CUresult send(CUdeviceptr destination, const std::byte* source, Last last);
  // When it returns, the data are in memory.
  CUresult fetch(std::byte* destination, CUdeviceptr source);

  size_t done() const { return done_; }
  // The sequence of the last frame.
  uint64_t last_sequence() const { return last_sequence_; }

 private:
  // A block, and the part of the copy in it.
  struct Piece {
    int block = SharedStaging::kNone;
    size_t offset = 0, bytes = 0;
    // The number of the frame, or of the job of HelpedMemcpy.
    uint64_t number = 0;
  };
  // Few, in order.
  class Queue {
   public:
    bool empty() const { return count_ == 0; }
    size_t size() const { return count_; }
    Piece& front() { return pieces_[first_]; }
    void push(const Piece& piece) { pieces_[(first_ + count_++) % pieces_.size()] = piece; }
    void pop() {
      first_ = (first_ + 1) % pieces_.size();
      --count_;
    }
    bool full() const { return count_ == pieces_.size(); }

   private:
    std::array<Piece, kMemcpyJobsMax> pieces_;
    size_t first_ = 0, count_ = 0;
  };

  // Helpers and the count of active copies of the session, held during the copy.
  struct Helpers {
    Helpers(SharedStaging& staging, unsigned most) : staging(staging), count(staging.take_helpers(most)) {
      staging.copy_begins();
    }
    Helpers(const Helpers&) = delete;
    Helpers& operator=(const Helpers&) = delete;
    ~Helpers() {
      staging.copy_ends();
      staging.give_helpers(count);
    }
    SharedStaging& staging;
    const unsigned count;
  };

  bool next_piece(Piece& piece);
  std::byte* data(const Piece& piece) const { return staging_.data(piece.block) + place_; }
  void fill_next(const std::byte* source);
  void post(const Piece& piece, CUdeviceptr destination, Last last);
  bool ask_next(CUdeviceptr source);
  void await_oldest(std::byte* destination);

  const Caller& caller_;
  SharedStaging& staging_;
  const uint64_t stream_;
  const size_t bytes_;
  const size_t piece_bytes_;
  const Helpers helpers_;
  HelpedMemcpy memory_;
  // Frames whose answers are waited for; blocks that are filled or emptied.
  Queue asked_, copying_;
  // In each block.
  size_t place_ = 0;
  // The caller waits until all of it is done.
  bool awaited_ = false;
  size_t next_ = 0, done_ = 0;
  uint64_t last_sequence_ = 0;
  // Blocks.
  bool no_more_ = false;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace gpuwire::client
