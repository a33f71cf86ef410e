// AcknowledgementScanner finds acknowledgements, and bulk that travels in parts, in the received bytes of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/wire/frame.hpp"

namespace gpuwire::link {

// The scanner reads frame headers and skips everything else, so that an acknowledgement frees room in the send window
// before earlier frames have been executed. The scanner stops at invalid bytes; the frame decoder reads the same bytes
// and reports the fault.
class AcknowledgementScanner {
 public:
  // Returns true after a client's goodbye frame. The bytes behind it are not scanned.
  bool goodbye() const { return goodbye_; }

  // scan() stops before bulk of more than `bytes`, from the next header on.
  void stop_before_bulk(uint64_t bytes) { stops_above_ = bytes; }
  // Returns the number of bytes left of the bulk at which scan() has stopped.
  uint64_t bulk_left() const { return skip_ == 0 ? bulk_left_ : 0; }
  // Returns the number of bytes in front of the next header, if scan() does not stop before them.
  uint64_t skipping() const { return bulk_left_ == 0 ? skip_ : 0; }
  // Returns the total bytes of the scanned frames that fit into the small ring of the peer's window.
  uint64_t short_frame_bytes() const { return short_frame_bytes_; }
  // Skips `bytes` of the bulk at which scan() has stopped.
  void pass_bulk(uint64_t bytes) { bulk_left_ -= bytes; }

  // Scans the next bytes of the stream, in pieces of any size, and calls `found` with the position of each
  // acknowledgement. Returns the number of scanned bytes, which is less than all of them only if scan() stops before
  // bulk.
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
  // Reads the available part of a header. Returns true if the header is complete; skip_ is then the length behind it.
  bool take_header(std::span<const std::byte>& bytes);

  uint64_t skip_ = 0;
  // Bytes of bulk behind the skipped bytes.
  uint64_t bulk_left_ = 0;
  uint64_t stops_above_ = ~0ull;
  uint64_t short_frame_bytes_ = 0;
  // Bytes of header_ that have been read.
  size_t have_ = 0;
  wire::FrameHeader header_;
  bool blind_ = false;
  bool goodbye_ = false;
};

}  // namespace gpuwire::link
