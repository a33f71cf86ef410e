#include "client_stub/driver/copy/transfer.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "client_stub/driver/context/context.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "client_stub/session/call.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

using Gather = std::function<void(size_t, std::span<std::byte>)>;

// Called frames that were sent and whose replies have not been read. Whoever makes one must finish() it: the replies' sinks are here.
class Pipeline {
 public:
  explicit Pipeline(const Caller& caller) : caller_(caller) {}
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;
  ~Pipeline() { finish(); }

  using Scatter = std::function<void(size_t, std::span<const std::byte>)>;

  template <class Params, class Write>
  CUresult send(wire::SessionOrdinal ordinal, const Bulk& bulk, const BulkSink& sink, Scatter scatter, Write&& write) {
    if (count_ == kPiecesInFlightMax) wait_oldest();
    if (result_) return result_;
    Flight& flight = flights_[(first_ + count_) % kPiecesInFlightMax];
    flight.sink = sink;
    flight.scatter = std::move(scatter);
    if (flight.scatter) flight.sink.scatter = &flight.scatter;
    Session& session = *caller_.session;
    Session::Slot slot;
    result_ = session.begin(wire::FrameKind::called, uint32_t(ordinal), caller_.context, message_words<Params>(), bulk, slot);
    if (result_) return result_;
    flight.sequence = slot.sequence;
    try {
      capnp::FlatMessageBuilder message(slot.words);
      write(message.initRoot<Params>());
      session.expect_reply(slot, flight.sink);
      session.commit(slot, message.getSegmentsForOutput()[0].size());
    } catch (...) {
      session.abandon(slot);
      return result_ = CUDA_ERROR_UNKNOWN;
    }
    last_sequence_ = flight.sequence;
    ++count_;
    return CUDA_SUCCESS;
  }

  // Waits for all; the first failure.
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
    CUresult replied = CUDA_ERROR_UNKNOWN;
    CUresult waited = caller_.session->wait(
        flight.sequence,
        [](void* user, capnp::MessageReader& message) { *static_cast<CUresult*>(user) = CUresult(message.getRoot<schema::Result>().getResult()); },
        &replied, flight.sink);
    if (!result_) result_ = waited ? waited : replied;
    first_ = (first_ + 1) % kPiecesInFlightMax;
    --count_;
  }

  const Caller& caller_;
  std::array<Flight, kPiecesInFlightMax> flights_;  // a ring: count_ of them from first_ on
  size_t first_ = 0, count_ = 0;
  CUresult result_ = CUDA_SUCCESS;
  uint64_t last_sequence_ = 0;
};

// The reply to a copy out of a stream comes after all work before it.
void note_fetched(const Caller& caller, uint64_t stream, uint64_t sequence) noexcept {
  note_stream_work(caller, stream, sequence);
  if (StreamState* state = find_stream(caller.state, stream)) note_stream_done(*caller.server, *state, sequence);
}

}  // namespace

// --- linear ---------------------------------------------------------------------------------------------------------------------------------

namespace {

// Data need not be waited for, unless the program may go on with them in a stream that does not wait for this one.
bool may_be_posted(const Caller& caller, uint64_t stream, bool arrived) noexcept {
  bool ordered = stream <= wire::kStreamLegacy && !caller.state->unordered_streams.load(std::memory_order_relaxed);
  return !arrived || ordered;
}

}  // namespace

CUresult send_to_device(const Caller& caller, CUdeviceptr destination, const void* source, size_t bytes, uint64_t stream, Source after) {
  bool arrived = after == Source::arrived;
  auto writer = [&](size_t offset, bool last) {
    return [&, offset, last](schema::CopyToDevice::Builder copy) {
      copy.setDestination(destination + offset);
      copy.setStream(stream);
      copy.setBlocking(arrived && last);
    };
  };
  const auto* from = static_cast<const std::byte*>(source);
  const bool stays = after == Source::stays;
  std::shared_ptr<std::byte> kept;
  // Not when the program may take it that the data are there: it may go on in a stream that is yet to be made, and waits for no other.
  if (after == Source::free && bytes > wire::kPostedBulkBytesMax) {
    kept = caller.session->keep(bytes);
    if (kept) from = static_cast<const std::byte*>(std::memcpy(kept.get(), source, bytes));
  }
  if (stays || kept || (bytes <= wire::kPostedBulkBytesMax && may_be_posted(caller, stream, arrived))) {
    for (size_t offset = 0; offset < bytes; offset += kPieceBytes) {
      Bulk bulk{.data = from + offset, .bytes = std::min(kPieceBytes, bytes - offset), .stays = stays, .keeper = kept};
      uint64_t sequence = 0;
      CUresult error = post<schema::CopyToDevice>(*caller.session, uint32_t(wire::SessionOrdinal::copy_to_device), caller.context,
                                                  message_words<schema::CopyToDevice>(), writer(offset, offset + bulk.bytes == bytes), bulk, &sequence);
      if (error) return error;
      note_stream_work(caller, stream, sequence);
    }
    return CUDA_SUCCESS;
  }
  Pipeline pipeline(caller);
  for (size_t offset = 0; offset < bytes; offset += kPieceBytes) {
    Bulk bulk{.data = from + offset, .bytes = std::min(kPieceBytes, bytes - offset)};
    if (pipeline.send<schema::CopyToDevice>(wire::SessionOrdinal::copy_to_device, bulk, {}, {}, writer(offset, offset + bulk.bytes == bytes))) break;
  }
  note_stream_work(caller, stream, pipeline.last_sequence());
  return pipeline.finish();
}

CUresult fetch_from_device(const Caller& caller, void* destination, CUdeviceptr source, size_t bytes, uint64_t stream) {
  Pipeline pipeline(caller);
  auto* to = static_cast<std::byte*>(destination);
  for (size_t offset = 0; offset < bytes; offset += kPieceBytes) {
    BulkSink sink{.data = to + offset, .bytes = std::min(kPieceBytes, bytes - offset)};
    CUresult error = pipeline.send<schema::CopyFromDevice>(wire::SessionOrdinal::copy_from_device, {}, sink, {}, [&](auto copy) {
      copy.setSource(source + offset);
      copy.setBytes(sink.bytes);
      copy.setStream(stream);
    });
    if (error) break;
  }
  CUresult result = pipeline.finish();
  if (!result) note_fetched(caller, stream, pipeline.last_sequence());
  return result;
}

CUresult fetch_later(const Caller& caller, void* destination, CUdeviceptr source, size_t bytes, uint64_t stream) {
  auto* to = static_cast<std::byte*>(destination);
  for (size_t offset = 0; offset < bytes; offset += kPieceBytes) {
    size_t count = std::min(kPieceBytes, bytes - offset);
    uint64_t sequence = 0;
    CUresult error = post<schema::CopyFromDevice>(
        *caller.session, uint32_t(wire::SessionOrdinal::copy_from_device), caller.context, message_words<schema::CopyFromDevice>(),
        [&](auto copy) {
          copy.setSource(source + offset);
          copy.setBytes(count);
          copy.setStream(stream);
          caller.server->pending_copies.expect(sequence, {.data = to + offset, .bytes = count});
        },
        {}, &sequence);
    if (error) return error;
    note_stream_work(caller, stream, sequence);
  }
  return CUDA_SUCCESS;
}

// --- boxes ----------------------------------------------------------------------------------------------------------------------------------

CUresult for_each_piece(const BoxSize& size, uint64_t piece_bytes_max, const std::function<CUresult(const BoxPiece&)>& visit) {
  uint64_t slice_bytes = size.width_bytes * size.height;
  if (slice_bytes == 0 || size.depth == 0) return CUDA_SUCCESS;
  uint64_t slices = std::min(size.depth, std::max<uint64_t>(piece_bytes_max / slice_bytes, 1));
  uint64_t rows = slice_bytes <= piece_bytes_max ? size.height : std::max<uint64_t>(piece_bytes_max / size.width_bytes, 1);
  uint64_t width = std::min(size.width_bytes, piece_bytes_max);
  for (uint64_t slice = 0; slice < size.depth; slice += slices) {
    for (uint64_t row = 0; row < size.height; row += rows) {
      for (uint64_t x = 0; x < size.width_bytes; x += width) {
        BoxSize part{std::min(width, size.width_bytes - x), std::min(rows, size.height - row), std::min(slices, size.depth - slice)};
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
    visit(box.row(piece.row + row % piece.size.height, piece.slice + row / piece.size.height) + piece.x_bytes + at, done, count);
    done += count;
  }
}

void write_box(schema::Copy2D::Builder copy, const DeviceBox& box, const BoxPiece& piece, uint64_t stream, bool blocking) {
  copy.setDevice(box.device);
  copy.setArray(box.array);
  copy.setPitchBytes(box.pitch_bytes);
  copy.setHeightRows(box.height_rows);
  copy.setXBytes(box.x_bytes + piece.x_bytes);
  copy.setY(box.y + piece.row);
  copy.setZ(box.z + piece.slice);
  copy.setWidthBytes(piece.size.width_bytes);
  copy.setHeight(piece.size.height);
  copy.setDepth(piece.size.depth);
  copy.setLod(box.lod);
  copy.setStream(stream);
  copy.setBlocking(blocking);
}

}  // namespace

void gather_rows(const HostBox& box, const BoxPiece& piece, size_t offset, std::span<std::byte> out) noexcept {
  for_each_row_part(box, piece, offset, out.size(),
                    [&](const std::byte* row, size_t done, size_t count) { std::memcpy(out.data() + done, row, count); });
}

void scatter_rows(const HostBox& box, const BoxPiece& piece, size_t offset, std::span<const std::byte> in) noexcept {
  for_each_row_part(box, piece, offset, in.size(), [&](std::byte* row, size_t done, size_t count) { std::memcpy(row, in.data() + done, count); });
}

CUresult send_box(const Caller& caller, const DeviceBox& destination, const HostBox& source, const BoxSize& size, uint64_t stream, bool arrived) {
  constexpr auto kOrdinal = wire::SessionOrdinal::copy_2d_to_device;
  const size_t bytes = size.bytes();
  std::shared_ptr<std::byte> kept;
  if (may_be_posted(caller, stream, arrived) && (bytes <= wire::kPostedBulkBytesMax || (!arrived && (kept = caller.session->keep(bytes))))) {
    BoxPiece all{.size = size};
    Gather gather = [&](size_t offset, std::span<std::byte> out) { gather_rows(source, all, offset, out); };
    Bulk bulk{.bytes = bytes, .gather = &gather};
    if (kept) {
      gather(0, {kept.get(), bytes});
      bulk = {.data = kept.get(), .bytes = bytes, .keeper = kept};
    }
    uint64_t sequence = 0;
    CUresult error = post<schema::Copy2D>(
        *caller.session, uint32_t(kOrdinal), caller.context, message_words<schema::Copy2D>(),
        [&](auto copy) { write_box(copy, destination, all, stream, arrived); }, bulk, &sequence);
    if (!error) note_stream_work(caller, stream, sequence);
    return error;
  }
  // Pieces of rows are gathered when they are sent, which may be later: one piece at a time.
  return for_each_piece(size, kPieceBytes, [&](const BoxPiece& piece) {
    Gather gather = [&](size_t offset, std::span<std::byte> out) { gather_rows(source, piece, offset, out); };
    Pipeline pipeline(caller);
    pipeline.send<schema::Copy2D>(kOrdinal, Bulk{.bytes = piece.size.bytes(), .gather = &gather}, {}, {},
                                  [&](auto copy) { write_box(copy, destination, piece, stream, arrived); });
    note_stream_work(caller, stream, pipeline.last_sequence());
    return pipeline.finish();
  });
}

CUresult fetch_box(const Caller& caller, const HostBox& destination, const DeviceBox& source, const BoxSize& size, uint64_t stream) {
  Pipeline pipeline(caller);
  CUresult result = for_each_piece(size, kPieceBytes, [&](const BoxPiece& piece) {
    auto scatter = [destination, piece](size_t offset, std::span<const std::byte> in) { scatter_rows(destination, piece, offset, in); };
    return pipeline.send<schema::Copy2D>(wire::SessionOrdinal::copy_2d_from_device, {}, BulkSink{.bytes = piece.size.bytes()}, scatter,
                                         [&](auto copy) { write_box(copy, source, piece, stream, true); });
  });
  CUresult finished = pipeline.finish();
  if (!result) result = finished;
  if (!result) note_fetched(caller, stream, pipeline.last_sequence());
  return result;
}

}  // namespace gpuwire::client
