#include "client_stub/driver/state/copy/transfer.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/copy/chunked_copy.hpp"
#include "client_stub/driver/state/copy/staged_copy.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/chunked_uploads.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"
#include "client_stub/session/call.hpp"
#include "client_stub/session/cached_bulk.hpp"
#include "client_stub/session/outgoing.hpp"
#include "client_stub/session/transfer_progress.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

using Gather = std::function<void(size_t, std::span<std::byte>)>;

// Called frames that were sent and whose replies have not been read. The frames' sinks are in this object, so its owner
// must call finish().
class Pipeline {
 public:
  explicit Pipeline(const Caller& caller) : caller_(caller) {}
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  ~Pipeline() { finish(); }

  using Scatter = std::function<void(size_t, std::span<const std::byte>)>;

  // `begin` gets the sink and stores the frame's sequence.
  template <class Begin>
  CUresult send(const BulkSink& sink, Scatter scatter, Begin&& begin) {
    if (count_ == kPiecesInFlightMax) wait_oldest();
    if (result_) return result_;
    Flight& flight = flights_[(first_ + count_) % kPiecesInFlightMax];
    flight.sink = sink;
    flight.scatter = std::move(scatter);
    if (flight.scatter) flight.sink.scatter = &flight.scatter;
    result_ = begin(flight.sink, flight.sequence);
    if (result_) return result_;
    last_sequence_ = flight.sequence;
    ++count_;
    return CUDA_SUCCESS;
  }

  // Waits for all frames. Returns the first failure.
  CUresult finish() {
    while (count_) wait_oldest();
    return result_;
  }

  uint64_t last_sequence() const { return last_sequence_; }

 private:
  struct Flight {
    uint64_t sequence = 0;
    BulkSink sink;
    Scatter scatter;
  };

  void wait_oldest() {
    Flight& flight = flights_[first_];
    CUresult result = finish_call<schema::Result>(
        *caller_.session, flight.sequence, [](schema::Result::Reader) {}, flight.sink);
    if (!result_) result_ = result;
    first_ = (first_ + 1) % kPiecesInFlightMax;
    --count_;
  }

  const Caller& caller_;
  std::array<Flight, kPiecesInFlightMax> flights_;  // a ring: count_ of them from first_ on
  size_t first_ = 0, count_ = 0;
  CUresult result_ = CUDA_SUCCESS;
  uint64_t last_sequence_ = 0;
};

// The server replies to a copy in a stream after all earlier work of the stream.
void note_fetched(const Caller& caller, uint64_t stream, uint64_t sequence) noexcept {
  note_stream_work(caller, stream, sequence);
  if (StreamState* state = find_stream(caller.state, stream)) note_stream_done(*caller.server, *state, sequence);
}

}  // namespace

// --- linear --------------------------------------------------------------------------------------------------------

namespace {

// The call need not wait for the data, unless the program may use the data in a stream that does not wait for this one,
// or may see the effects of earlier work.
bool may_be_posted(const Caller& caller, uint64_t stream, size_t bytes, bool arrived) noexcept {
  return !arrived || (stream <= wire::kStreamLegacy && caller.server->posted_uploads.allowed(caller, bytes));
}

// Sends through SharedStaging, if it is usable; `sent` is the number of bytes that were sent. The rules for posting are
// those of CachedBulk.
CUresult send_staged(const Caller& caller, CUdeviceptr destination, const std::byte* source, size_t bytes,
                     uint64_t stream, bool arrived, size_t& sent) {
  sent = 0;
  if (bytes <= wire::kPostedBulkBytesMax || !caller.server->shared_staging.is_usable(caller, stream))
    return CUDA_SUCCESS;
  const LongTransfer transfer = long_transfer(*caller.session, Direction::to_gpu, bytes);
  PostedUploads& posted = caller.server->posted_uploads;
  const bool told = arrived && bytes <= kCachedBlockBytesMax && may_be_posted(caller, stream, bytes, arrived);
  if (told) posted.posting(caller);
  StagedCopy copy(caller, stream, bytes);
  CUresult result = copy.send(destination, source,
                              told      ? StagedCopy::Last::told
                              : arrived ? StagedCopy::Last::awaited
                                        : StagedCopy::Last::posted);
  sent = copy.done();
  // The pieces before the awaited one have failed for the same reason, which the program gets once.
  if (result && !is_sticky(result)) {
    if (const int32_t first = caller.state->deferred.exchange(0, std::memory_order_relaxed)) result = CUresult(first);
  }
  if (!result && told && sent == bytes) result = posted.posted(caller, copy.last_sequence(), bytes);
  return result;
}

CUresult fetch_staged(const Caller& caller, std::byte* destination, CUdeviceptr source, size_t bytes, uint64_t stream,
                      size_t& fetched) {
  fetched = 0;
  if (bytes <= wire::kPostedBulkBytesMax || !caller.server->shared_staging.is_usable(caller, stream))
    return CUDA_SUCCESS;
  StagedCopy copy(caller, stream, bytes);
  CUresult result = copy.fetch(destination, source);
  fetched = copy.done();
  if (!result && fetched == bytes) note_fetched(caller, stream, copy.last_sequence());
  return result;
}

}  // namespace

CUresult send_to_device(const Caller& caller, CUdeviceptr destination, const void* source, size_t bytes,
                        uint64_t stream, Source after, bool writes_host) {
  bool arrived = after == Source::arrived;
  const auto* from = static_cast<const std::byte*>(source);
  const bool stays = after == Source::stays;
  ChunkedUploads& chunks = caller.server->chunked_uploads;
  const bool chunked = bytes >= kChunkedCopyBytesMin && chunks.possible();
  if (chunked && chunks.asks()) return ChunkedCopy(caller, destination, from, bytes, stream, arrived).send();
  if (!stays && !chunked) {
    size_t sent = 0;
    CUresult result = send_staged(caller, destination, from, bytes, stream, arrived, sent);
    if (result || sent == bytes) return result;
    destination += sent;
    from += sent;
    bytes -= sent;
  }
  // On one machine a copy of the bytes is no faster than their transfer.
  const size_t kept_bytes_max = caller.session->facts().same_machine ? kKeptNearBytesMax : kCachedBlockBytesMax;
  const bool postable = may_be_posted(caller, stream, bytes, arrived) && (stays || bytes <= kept_bytes_max);
  if (!postable) return ChunkedCopy(caller, destination, from, bytes, stream, arrived).send();
  // A wait for the NULL stream behind this copy may return at once: the program may change the copy's source, and the
  // copy involves no writes of the host.
  const bool counts_as_host_write = writes_host || stays || stream > wire::kStreamLegacy;
  const bool keep = chunked && chunks.keeps();
  if (arrived) caller.server->posted_uploads.posting(caller);
  uint64_t sequence = 0;
  for (size_t offset = 0; offset < bytes;) {
    Bulk bulk{.data = from + offset,
              .bytes = std::min(stays ? kPieceBytes : kKeptPieceBytes, bytes - offset),
              .stays = stays};
    if (!stays && bulk.bytes > kInlineBulkBytesMax) {
      if (auto kept = caller.session->keep(bulk.bytes)) {
        bulk.data = std::memcpy(kept.get(), bulk.data, bulk.bytes);
        bulk.keeper = std::move(kept);
      } else if (bulk.bytes > wire::kPostedBulkBytesMax) {
        return ChunkedCopy(caller, destination + offset, from + offset, bytes - offset, stream, arrived).send();
      }
    }
    if (chunked) chunks.probe(caller, {from + offset, bulk.bytes});
    CUresult error = send::post_copy_to_device(*caller.session, caller.context,
                                               {.destination = destination + offset,
                                                .stream = stream,
                                                .blocking = arrived && offset + bulk.bytes == bytes,
                                                .keep = keep},
                                               bulk, &sequence);
    if (error) return error;
    note_stream_work(caller, stream, sequence, counts_as_host_write);
    if (chunked) chunks.time(caller, {from + offset, bulk.bytes});
    offset += bulk.bytes;
  }
  return arrived ? caller.server->posted_uploads.posted(caller, sequence, bytes) : CUDA_SUCCESS;
}

CUresult fetch_from_device(const Caller& caller, void* destination, CUdeviceptr source, size_t bytes, uint64_t stream) {
  const LongTransfer transfer = long_transfer(*caller.session, Direction::from_gpu, bytes);
  auto* to = static_cast<std::byte*>(destination);
  size_t fetched = 0;
  if (CUresult error = fetch_staged(caller, to, source, bytes, stream, fetched)) return error;
  if (fetched == bytes) return CUDA_SUCCESS;
  to += fetched;
  source += fetched;
  bytes -= fetched;
  Pipeline pipeline(caller);
  for (size_t offset = 0; offset < bytes; offset += kPieceBytes) {
    BulkSink sink{.data = to + offset, .bytes = std::min(kPieceBytes, bytes - offset)};
    CUresult error = pipeline.send(sink, {}, [&](const BulkSink& kept, uint64_t& sequence) {
      return send::begin_copy_from_device(*caller.session, caller.context,
                                          {.source = source + offset, .bytes = kept.bytes, .stream = stream}, sequence,
                                          kept);
    });
    if (error) break;
  }
  CUresult result = pipeline.finish();
  if (!result) note_fetched(caller, stream, pipeline.last_sequence());
  return result;
}

CUresult fetch_later(const Caller& caller, void* destination, CUdeviceptr source, size_t bytes, uint64_t stream) {
  auto* to = static_cast<std::byte*>(destination);
  std::shared_ptr<LongTransfer> transfer;
  if (may_be_long(bytes))
    if (auto progress = caller.session->progress())
      transfer = std::make_shared<LongTransfer>(std::move(progress), Direction::from_gpu, bytes);
  for (size_t offset = 0; offset < bytes; offset += kPieceBytes) {
    size_t count = std::min(kPieceBytes, bytes - offset);
    uint64_t sequence = 0;
    CUresult error = send::post_copy_from_device(
        *caller.session, caller.context, {.source = source + offset, .bytes = count, .stream = stream}, &sequence, [&] {
          caller.server->pending_copies.expect(sequence, {.data = to + offset, .bytes = count, .transfer = transfer});
        });
    if (error) return error;
    note_stream_work(caller, stream, sequence);
  }
  return CUDA_SUCCESS;
}

// --- boxes ---------------------------------------------------------------------------------------------------------

CUresult for_each_piece(const BoxSize& size, uint64_t piece_bytes_max,
                        const std::function<CUresult(const BoxPiece&)>& visit) {
  uint64_t slice_bytes = size.width_bytes * size.height;
  if (slice_bytes == 0 || size.depth == 0) return CUDA_SUCCESS;
  uint64_t slices = std::min(size.depth, std::max<uint64_t>(piece_bytes_max / slice_bytes, 1));
  uint64_t rows =
      slice_bytes <= piece_bytes_max ? size.height : std::max<uint64_t>(piece_bytes_max / size.width_bytes, 1);
  uint64_t width = std::min(size.width_bytes, piece_bytes_max);
  for (uint64_t slice = 0; slice < size.depth; slice += slices) {
    for (uint64_t row = 0; row < size.height; row += rows) {
      for (uint64_t x = 0; x < size.width_bytes; x += width) {
        BoxSize part{std::min(width, size.width_bytes - x), std::min(rows, size.height - row),
                     std::min(slices, size.depth - slice)};
        BoxPiece piece{slice, row, x, part};
        if (CUresult error = visit(piece)) return error;
      }
    }
  }
  return CUDA_SUCCESS;
}

namespace {

// Visits the parts of rows that the packed bytes [offset, offset + bytes) of a piece stand for.
template <class Visit>
void for_each_row_part(const HostBox& box, const BoxPiece& piece, size_t offset, size_t bytes, Visit&& visit) noexcept {
  const uint64_t width = piece.size.width_bytes;
  for (size_t done = 0; done < bytes;) {
    uint64_t row = (offset + done) / width, at = (offset + done) % width;
    size_t count = std::min<uint64_t>(width - at, bytes - done);
    visit(box.row(piece.row + row % piece.size.height, piece.slice + row / piece.size.height) + piece.x_bytes + at,
          done, count);
    done += count;
  }
}

wire::message::Copy2D copy_of(const DeviceBox& box, const BoxPiece& piece, uint64_t stream, bool blocking) {
  return {.device = box.device,
          .array = box.array,
          .pitch_bytes = box.pitch_bytes,
          .height_rows = box.height_rows,
          .x_bytes = box.x_bytes + piece.x_bytes,
          .y = box.y + piece.row,
          .z = box.z + piece.slice,
          .width_bytes = piece.size.width_bytes,
          .height = piece.size.height,
          .depth = piece.size.depth,
          .lod = box.lod,
          .stream = stream,
          .blocking = blocking};
}

}  // namespace

void gather_rows(const HostBox& box, const BoxPiece& piece, size_t offset, std::span<std::byte> out) noexcept {
  for_each_row_part(box, piece, offset, out.size(), [&](const std::byte* row, size_t done, size_t count) {
    std::memcpy(out.data() + done, row, count);
  });
}

void scatter_rows(const HostBox& box, const BoxPiece& piece, size_t offset, std::span<const std::byte> in) noexcept {
  for_each_row_part(box, piece, offset, in.size(),
                    [&](std::byte* row, size_t done, size_t count) { std::memcpy(row, in.data() + done, count); });
}

CUresult send_box(const Caller& caller, const DeviceBox& destination, const HostBox& source, const BoxSize& size,
                  uint64_t stream, bool arrived) {
  const size_t bytes = size.bytes();
  std::shared_ptr<std::byte> kept;
  if (may_be_posted(caller, stream, bytes, arrived) &&
      (bytes <= wire::kPostedBulkBytesMax || (kept = caller.session->keep(bytes)))) {
    BoxPiece all{.size = size};
    Gather gather = [&](size_t offset, std::span<std::byte> out) { gather_rows(source, all, offset, out); };
    Bulk bulk{.bytes = bytes, .gather = &gather};
    if (kept) {
      gather(0, {kept.get(), bytes});
      bulk = {.data = kept.get(), .bytes = bytes, .keeper = kept};
    }
    if (arrived) caller.server->posted_uploads.posting(caller);
    uint64_t sequence = 0;
    CUresult error = send::post_copy_2d_to_device(*caller.session, caller.context,
                                                  copy_of(destination, all, stream, arrived), bulk, &sequence);
    if (error) return error;
    note_stream_work(caller, stream, sequence);
    return arrived ? caller.server->posted_uploads.posted(caller, sequence, bytes) : CUDA_SUCCESS;
  }
  const LongTransfer transfer = long_transfer(*caller.session, Direction::to_gpu, bytes);
  // The sending thread gathers the rows, possibly later, so each piece is finished before the next one begins.
  return for_each_piece(size, kPieceBytes, [&](const BoxPiece& piece) {
    Gather gather = [&](size_t offset, std::span<std::byte> out) { gather_rows(source, piece, offset, out); };
    Pipeline pipeline(caller);
    pipeline.send({}, {}, [&](const BulkSink&, uint64_t& sequence) {
      return send::begin_copy_2d_to_device(*caller.session, caller.context,
                                           copy_of(destination, piece, stream, arrived), sequence,
                                           Bulk{.bytes = piece.size.bytes(), .gather = &gather});
    });
    note_stream_work(caller, stream, pipeline.last_sequence());
    return pipeline.finish();
  });
}

CUresult fetch_box(const Caller& caller, const HostBox& destination, const DeviceBox& source, const BoxSize& size,
                   uint64_t stream) {
  const LongTransfer transfer = long_transfer(*caller.session, Direction::from_gpu, size.bytes());
  Pipeline pipeline(caller);
  CUresult result = for_each_piece(size, kPieceBytes, [&](const BoxPiece& piece) {
    auto scatter = [destination, piece](size_t offset, std::span<const std::byte> in) {
      scatter_rows(destination, piece, offset, in);
    };
    return pipeline.send(BulkSink{.bytes = piece.size.bytes()}, scatter, [&](const BulkSink& kept, uint64_t& sequence) {
      return send::begin_copy_2d_from_device(*caller.session, caller.context, copy_of(source, piece, stream, true),
                                             sequence, kept);
    });
  });
  CUresult finished = pipeline.finish();
  if (!result) result = finished;
  if (!result) note_fetched(caller, stream, pipeline.last_sequence());
  return result;
}

CUresult fetch_box_later(const Caller& caller, const HostBox& destination, const DeviceBox& source, const BoxSize& size,
                         uint64_t stream) {
  return for_each_piece(size, kPieceBytes, [&](const BoxPiece& piece) {
    const BoxSize& part = piece.size;
    std::byte* first = destination.row(piece.row, piece.slice) + piece.x_bytes;
    const std::byte* last = destination.row(piece.row + part.height - 1, piece.slice + part.depth - 1) + piece.x_bytes;
    CopyDestination to{.data = first, .bytes = part.bytes()};
    to.around_bytes = size_t(last - first) + part.width_bytes;
    to.scatter = [destination, piece](size_t offset, std::span<const std::byte> in) {
      scatter_rows(destination, piece, offset, in);
    };
    uint64_t sequence = 0;
    CUresult error = send::post_copy_2d_from_device(
        *caller.session, caller.context, copy_of(source, piece, stream, false), &sequence,
        [&] { caller.server->pending_copies.expect(sequence, std::move(to)); });
    if (!error) note_stream_work(caller, stream, sequence);
    return error;
  });
}

}  // namespace gpuwire::client
