// One copy to the device whose caller waits, in pieces that follow each other closely: each piece is sent, or named
// first if the server may have its bytes (chunked_uploads.hpp).
#pragma once

#include <cuda.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/copy/chunked_uploads.hpp"
#include "client_stub/driver/state/copy/transfer.hpp"

namespace gpuwire::client {

// Used by one thread, for one call.
class ChunkedCopy {
 public:
  // `arrived`: send() returns when the device has the data.
  ChunkedCopy(const Caller& caller, CUdeviceptr destination, const std::byte* source, size_t bytes, uint64_t stream,
              bool arrived);
  ChunkedCopy(const ChunkedCopy&) = delete;
  ChunkedCopy& operator=(const ChunkedCopy&) = delete;

  // Returns the first failure. From then on no thread reads the source.
  CUresult send();

 private:
  // The number of named pieces in flight, and of pieces that are sent while the server's content is unknown. Both are
  // small, so that the server's answers come in time.
  static constexpr size_t kNamedInFlightMax = 4, kCautiousInFlightMax = 4;
  // The first named piece is short, so that the server begins soon. The last pieces are short too, so that the server
  // has little work left when all pieces are named. Every other piece has enough chunks to keep all threads of both
  // ends busy.
  static constexpr size_t kShortNamedBytes = (kDigestHelpersMax + 1) * wire::kChunkBytes;

  // A called frame that was sent and whose reply has not been read.
  struct Flight {
    uint64_t sequence = 0;
    size_t offset = 0, bytes = 0;
    bool named = false;
  };
  // The chunks of a named piece that the server lacks: a bit for each.
  struct Missing {
    size_t offset = 0, bytes = 0;
    uint64_t chunks = 0;
  };
  static_assert(wire::kChunkCopyBytesMax / wire::kChunkBytes <= 64);

  void send_bytes(size_t offset, size_t bytes, bool blocking, size_t in_flight_max);
  size_t next_named_piece(size_t rest);
  void send_names(size_t offset, size_t bytes);
  void send_missing();
  size_t measure_rate(size_t offset);
  void begun(const Flight& flight);
  void wait_oldest();
  void wait_until_in_flight(size_t most);
  bool is_last(size_t offset, size_t bytes) const { return offset + bytes == bytes_; }

  const Caller& caller_;
  ChunkedUploads& uploads_;
  const CUdeviceptr destination_;
  const std::byte* const source_;
  const size_t bytes_;
  const uint64_t stream_;
  const bool arrived_;
  // Large enough to be cut into chunks.
  const bool chunked_;
  // The time for digesting all named chunks.
  std::chrono::nanoseconds digesting_{0};
  size_t next_named_bytes_ = kShortNamedBytes, named_bytes_ = 0, found_bytes_ = 0;
  // A ring: count_ of them from first_ on.
  std::array<Flight, kPiecesInFlightMax> flights_;
  size_t first_ = 0, count_ = 0;
  // missing_count_ of them; never more than were in flight.
  std::array<Missing, kPiecesInFlightMax> missing_;
  size_t missing_count_ = 0;
  uint64_t last_sequence_ = 0;
  CUresult result_ = CUDA_SUCCESS;
};

}  // namespace gpuwire::client
