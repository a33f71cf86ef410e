#include "client_stub/driver/state/copy/staged_copy.hpp"

#include <algorithm>

#include "client/session_sends.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"
#include "client_stub/session/call.hpp"
#include "client_stub/session/transfer_progress.hpp"

namespace gpuwire::client {
namespace {

constexpr size_t kStagedPageBytes = 4096;
// The alignment of a piece in its block; it costs the device nothing.
constexpr size_t kPlaceGrain = 256;

// All pieces have one size, so that none is short enough for the server's scheduler to count it as the device's own
// work.
size_t piece_bytes_of(size_t bytes) {
  const size_t pieces = (bytes + kStagedPieceBytesMax - 1) / kStagedPieceBytesMax;
  return ((bytes + pieces - 1) / pieces + kStagedPageBytes - 1) / kStagedPageBytes * kStagedPageBytes;
}

// The offset in the block is half a page away from the offset of the program's bytes in their page. The CPU mistakes a
// load for one of a recent store at the same offset of another page, and waits for the store. Without this
// distance, a copy between a large block of malloc(), which begins 16 bytes behind a page, and whole pages takes two to
// four times as long.
size_t place_beside(const std::byte* memory) {
  return (reinterpret_cast<uintptr_t>(memory) + kStagedPageBytes / 2) % kStagedPageBytes / kPlaceGrain * kPlaceGrain;
}

}  // namespace

StagedCopy::StagedCopy(const Caller& caller, uint64_t stream, size_t bytes)
    : caller_(caller),
      staging_(caller.server->shared_staging),
      stream_(stream),
      bytes_(bytes),
      piece_bytes_(piece_bytes_of(bytes)),
      helpers_(staging_, bytes >= kHelpedCopyBytesMin ? memcpy_helpers_here(kMemcpyHelpersMax) : 0),
      memory_(helpers_.count) {}

// Takes a block for the next piece. Returns false if no block is available. Precondition: a piece is left.
bool StagedCopy::next_piece(Piece& piece) {
  const bool enough = awaited_ && staging_.has_enough();
  piece.block = staging_.take(caller_, bytes_ >= kStagingMadeForBytes && !enough);
  if (piece.block == SharedStaging::kNone) return false;
  piece.offset = next_;
  piece.bytes = std::min(piece_bytes_, bytes_ - next_);
  next_ += piece.bytes;
  return true;
}

// --- to the device -------------------------------------------------------------------------------------------------

CUresult StagedCopy::send(CUdeviceptr destination, const std::byte* source, Last last) {
  place_ = place_beside(source);
  awaited_ = last == Last::awaited;
  for (;;) {
    while (!copying_.empty() && memory_.is_done(copying_.front().number)) {
      post(copying_.front(), destination, last);
      copying_.pop();
    }
    if (next_ < bytes_ && !no_more_ && !result_ && !copying_.full() && memory_.wants_more()) fill_next(source);
    else if (memory_.help()) continue;
    else if (!copying_.empty()) memory_.finish(copying_.front().number);
    else return result_;
  }
}

void StagedCopy::fill_next(const std::byte* source) {
  // The context has the error of an earlier piece.
  if ((result_ = context_health(*caller_.state))) return;
  const uint64_t returns = staging_.returns();
  Piece piece;
  if (next_piece(piece)) {
    piece.number = memory_.begin(data(piece), source + piece.offset, piece.bytes);
    copying_.push(piece);
  } else if (!copying_.empty()) {
    memory_.finish(copying_.front().number);  // is posted next, and its block is returned
  } else {
    no_more_ = !staging_.await_return(caller_, returns);
  }
}

void StagedCopy::post(const Piece& piece, CUdeviceptr destination, Last last) {
  if (result_) return staging_.give_back(piece.block);
  const bool is_last = piece.offset + piece.bytes == bytes_;
  const wire::message::CopyRegionToDevice message{.region = reinterpret_cast<uint64_t>(data(piece)),
                                                  .destination = destination + piece.offset,
                                                  .bytes = piece.bytes,
                                                  .stream = stream_,
                                                  .blocking = is_last && last != Last::posted};
  if (is_last && last == Last::awaited) {
    result_ = send::begin_copy_region_to_device(*caller_.session, caller_.context, message, last_sequence_);
    if (!result_) {
      note_stream_work(caller_, stream_, last_sequence_);
      result_ = send::finish_copy_region_to_device(*caller_.session, last_sequence_);
    }
    staging_.give_back(piece.block);
  } else {
    result_ = send::post_copy_region_to_device(*caller_.session, caller_.context, message, &last_sequence_,
                                               [&] { staging_.lend(piece.block, last_sequence_); });
    if (result_) return staging_.give_back(piece.block);
    note_stream_work(caller_, stream_, last_sequence_);
    caller_.session->flush();
  }
  done_ = piece.offset + piece.bytes;
  caller_.session->note_moved(Direction::to_gpu, piece.bytes);
  staging_.traffic().to_device_bytes.fetch_add(piece.bytes, std::memory_order_relaxed);
}

// --- from the device -----------------------------------------------------------------------------------------------

CUresult StagedCopy::fetch(std::byte* destination, CUdeviceptr source) {
  place_ = place_beside(destination);
  awaited_ = true;
  for (;;) {
    while (!copying_.empty() && memory_.is_done(copying_.front().number)) {
      const Piece& piece = copying_.front();
      staging_.give_back(piece.block);
      done_ = piece.offset + piece.bytes;
      caller_.session->note_moved(Direction::from_gpu, piece.bytes);
      staging_.traffic().from_device_bytes.fetch_add(piece.bytes, std::memory_order_relaxed);
      copying_.pop();
    }
    if (ask_next(source)) continue;
    if (!asked_.empty() && memory_.wants_more()) await_oldest(destination);
    else if (memory_.help()) continue;
    else if (!copying_.empty()) memory_.finish(copying_.front().number);
    else return result_;
  }
}

// If the copy has blocks, it waits for their return; if it cannot have any, it ends here and the rest is not staged.
bool StagedCopy::ask_next(CUdeviceptr source) {
  const size_t held = asked_.size() + copying_.size();
  if (next_ == bytes_ || result_ || no_more_ || held >= kFetchBlocksMax) return false;
  Piece piece;
  if (!next_piece(piece)) {
    no_more_ = held == 0;
    return false;
  }
  result_ = send::begin_copy_region_from_device(*caller_.session, caller_.context,
                                                {.region = reinterpret_cast<uint64_t>(data(piece)),
                                                 .source = source + piece.offset,
                                                 .bytes = piece.bytes,
                                                 .stream = stream_},
                                                piece.number);
  if (result_) {
    staging_.give_back(piece.block);
    return false;
  }
  last_sequence_ = piece.number;
  asked_.push(piece);
  caller_.session->flush();
  return true;
}

void StagedCopy::await_oldest(std::byte* destination) {
  Piece piece = asked_.front();
  asked_.pop();
  CUresult result = send::finish_copy_region_from_device(*caller_.session, piece.number);
  if (result) {
    if (!result_) result_ = result;
    return staging_.give_back(piece.block);
  }
  piece.number = memory_.begin(destination + piece.offset, data(piece), piece.bytes);
  copying_.push(piece);
}

}  // namespace gpuwire::client
