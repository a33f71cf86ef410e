// Finds the acknowledgements in a stream of frames as its bytes come in, and the bulk that comes in parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/wire/frame.hpp"

namespace gpuwire::link {

// Walks from header to header and reads nothing else: room in the window must not wait for the execution of earlier
// frames. Invalid bytes stop the walk; the decoder, which gets the same bytes, reports the fault.
class AcknowledgementScanner {
 public:
  // A client has taken its leave: nothing that counts comes behind that.
  bool goodbye() const { return goodbye_; }

  // From the next header on, scan() stops before bulk of more than `bytes`.
  void stop_before_bulk(uint64_t bytes) { stops_above_ = bytes; }
  // Of the bulk that the walk stands before, or in.
  uint64_t bulk_left() const { return skip_ == 0 ? bulk_left_ : 0; }
  // The bytes of those passed frames that are short enough for the small ring at the peer's end.
  uint64_t short_frame_bytes() const { return short_frame_bytes_; }
  // This many bytes have passed.
  void pass_bulk(uint64_t bytes) { bulk_left_ -= bytes; }

  // The next bytes of the stream, in pieces of any size. Calls back with the position of each acknowledgement in them.
  // How many were walked over: all, unless there is bulk to stop before.
  template <class Found>
  size_t scan(std::span<const std::byte> bytes, Found&& found) {
    const size_t all = bytes.size();
    while (!bytes.empty() && !blind_) {
      if (skip_ >= bytes.size()) {
        skip_ -= bytes.size();
        return all;
      }
      bytes = bytes.subspan(size_t(skip_));
      skip_ = 0;
      if (bulk_left_ != 0) return all - bytes.size();
      if (!take_header(bytes)) return all;
      if (wire::FrameKind(header_.kind) == wire::FrameKind::acknowledge) found(header_.sequence);
    }
    return all;
  }

 private:
  // Reads the available part of a header. True: the header is complete, and skip_ is the length behind it.
  bool take_header(std::span<const std::byte>& bytes);

  uint64_t skip_ = 0;
  uint64_t bulk_left_ = 0;  // behind the skipped bytes
  uint64_t stops_above_ = ~0ull;
  uint64_t short_frame_bytes_ = 0;
  size_t have_ = 0;  // bytes of header_
  wire::FrameHeader header_;
  bool blind_ = false;
  bool goodbye_ = false;
};

}  // namespace gpuwire::link
