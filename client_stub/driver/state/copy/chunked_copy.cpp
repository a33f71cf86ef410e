#include "client_stub/driver/state/copy/chunked_copy.hpp"

#include <algorithm>

#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/chunked_uploads.hpp"
#include "client_stub/session/call.hpp"
#include "client_stub/session/transfer_progress.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {

ChunkedCopy::ChunkedCopy(const Caller& caller, CUdeviceptr destination, const std::byte* source, size_t bytes,
                         uint64_t stream, bool arrived)
    : caller_(caller),
      uploads_(caller.server->chunked_uploads),
      destination_(destination),
      source_(source),
      bytes_(bytes),
      stream_(stream),
      arrived_(arrived),
      chunked_(bytes >= kChunkedCopyBytesMin && uploads_.possible()) {}

CUresult ChunkedCopy::send() {
  const LongTransfer transfer = long_transfer(*caller_.session, Direction::to_gpu, bytes_);
  const auto begun = ChunkedUploads::Clock::now();
  for (size_t offset = 0; offset < bytes_ && !result_;) {
    const size_t rest = bytes_ - offset;
    if (chunked_ && uploads_.asks()) {
      const size_t piece = next_named_piece(rest);
      send_names(offset, piece);
      offset += piece;
    } else if (rest > kRatePieceBytes && chunked_ && uploads_.rate_wanted()) {
      offset += measure_rate(offset);
    } else {
      size_t piece = std::min(rest, kPieceBytes);
      const bool cautious = chunked_ && uploads_.keeps();
      if (chunked_) uploads_.probe(caller_, {source_ + offset, piece});
      send_bytes(offset, piece, arrived_ && is_last(offset, piece),
                 cautious ? kCautiousInFlightMax : kPiecesInFlightMax);
      if (chunked_ && !result_) uploads_.time(caller_, {source_ + offset, piece});
      offset += piece;
    }
    send_missing();
  }
  while (count_) {
    wait_oldest();
    send_missing();
  }
  note_stream_work(caller_, stream_, last_sequence_);
  if (named_bytes_ >= kHelpedBytesMin) uploads_.digested(named_bytes_, digesting_);
  if (!result_ && chunked_ && bytes_ >= kRateCopyBytesMin) {
    auto took = ChunkedUploads::Clock::now() - begun;
    if (named_bytes_ == 0) uploads_.measured(bytes_, took, {source_, bytes_});
    if (found_bytes_ == bytes_) uploads_.named(bytes_, took);
  }
  return result_;
}

void ChunkedCopy::send_bytes(size_t offset, size_t bytes, bool blocking, size_t in_flight_max) {
  wait_until_in_flight(in_flight_max - 1);
  if (result_) return;
  Flight flight{.offset = offset, .bytes = bytes};
  result_ = send::begin_copy_to_device(*caller_.session, caller_.context,
                                       {.destination = destination_ + offset,
                                        .stream = stream_,
                                        .blocking = blocking,
                                        .keep = chunked_ && uploads_.keeps()},
                                       flight.sequence, {.data = source_ + offset, .bytes = bytes});
  begun(flight);
}

size_t ChunkedCopy::next_named_piece(size_t rest) {
  const size_t half = rest / 2 / kShortNamedBytes * kShortNamedBytes;
  const size_t piece = std::min(next_named_bytes_, std::max(half, kShortNamedBytes));
  next_named_bytes_ = std::min<size_t>(next_named_bytes_ * 2, wire::kChunkCopyBytesMax);
  return std::min(rest, piece);
}

void ChunkedCopy::send_names(size_t offset, size_t bytes) {
  std::array<digest::Digest, wire::kChunkCopyBytesMax / wire::kChunkBytes> digests;
  const size_t count = (bytes + wire::kChunkBytes - 1) / wire::kChunkBytes;
  const auto digesting = ChunkedUploads::Clock::now();
  uploads_.digest_chunks({source_ + offset, bytes}, {digests.data(), count}, bytes_ >= kHelpedBytesMin);
  digesting_ += ChunkedUploads::Clock::now() - digesting;
  wait_until_in_flight(kNamedInFlightMax - 1);
  if (result_) return;
  Flight flight{.offset = offset, .bytes = bytes, .named = true};
  result_ = send::begin_copy_chunks(*caller_.session, caller_.context,
                                    {.destination = destination_ + offset,
                                     .stream = stream_,
                                     .blocking = arrived_ && is_last(offset, bytes),
                                     .bytes = bytes,
                                     .digests = {digests.data(), count * sizeof digests[0]}},
                                    flight.sequence);
  // The server works on this piece while the client digests the next one; no thread waits for a reply before that.
  if (!result_) caller_.session->flush();
  named_bytes_ += bytes;
  begun(flight);
}

// Adjacent missing chunks are sent as one piece. `arrived_` applies to each piece, because any of them may be the last
// to arrive.
void ChunkedCopy::send_missing() {
  while (missing_count_ && !result_) {
    const Missing piece = missing_[--missing_count_];
    for (size_t first = 0; first < 64 && piece.chunks >> first;) {
      if (!(piece.chunks >> first & 1)) {
        ++first;
        continue;
      }
      size_t last = first;
      while (last < 64 && piece.chunks >> last & 1) ++last;
      size_t begin = first * wire::kChunkBytes, end = std::min(last * wire::kChunkBytes, piece.bytes);
      if (begin < end) send_bytes(piece.offset + begin, end - begin, arrived_, kPiecesInFlightMax);
      first = last;
    }
  }
}

// The piece has the connection to itself, so its time is the link's. Runs once in a session.
size_t ChunkedCopy::measure_rate(size_t offset) {
  wait_until_in_flight(0);
  auto begun = ChunkedUploads::Clock::now();
  send_bytes(offset, kRatePieceBytes, false, kPiecesInFlightMax);
  wait_until_in_flight(0);
  if (!result_)
    uploads_.measured(kRatePieceBytes, ChunkedUploads::Clock::now() - begun, {source_ + offset, kRatePieceBytes});
  return kRatePieceBytes;
}

void ChunkedCopy::begun(const Flight& flight) {
  if (result_) return;
  flights_[(first_ + count_) % flights_.size()] = flight;
  last_sequence_ = flight.sequence;
  ++count_;
}

void ChunkedCopy::wait_until_in_flight(size_t most) {
  while (count_ > most) wait_oldest();
}

void ChunkedCopy::wait_oldest() {
  const Flight flight = flights_[first_];
  first_ = (first_ + 1) % flights_.size();
  --count_;
  CUresult result = CUDA_SUCCESS;
  if (!flight.named) {
    result = finish_call<schema::Result>(*caller_.session, flight.sequence, [](schema::Result::Reader) {});
  } else {
    Missing missing{.offset = flight.offset, .bytes = flight.bytes};
    result = send::finish_copy_chunks(*caller_.session, flight.sequence, [&](schema::ChunksReply::Reader reply) {
      auto bits = reply.getMissing();
      for (size_t i = 0; i < std::min<size_t>(bits.size(), 8); ++i) missing.chunks |= uint64_t(bits[i]) << (i * 8);
    });
    size_t missing_bytes = 0;
    for (size_t at = 0; at < flight.bytes; at += wire::kChunkBytes)
      if (missing.chunks >> (at / wire::kChunkBytes) & 1)
        missing_bytes += std::min(wire::kChunkBytes, flight.bytes - at);
    if (!result) uploads_.answered(flight.bytes, flight.bytes - missing_bytes);
    found_bytes_ += flight.bytes - missing_bytes;
    if (missing_bytes) missing_[missing_count_++] = missing;
  }
  if (!result_) result_ = result;
}

}  // namespace gpuwire::client
