// Finds the acknowledgements in a stream of frames as its bytes come in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/wire/frame.hpp"

namespace gpuwire::link {

// Walks from header to header and looks at nothing else: room in the window must not wait until somebody has executed what came before.
// What is no frame makes it blind; the decoder, which gets the same bytes, says what is wrong.
class AcknowledgementScanner {
 public:
  // A client has taken its leave: nothing that counts comes behind that.
  bool goodbye() const { return goodbye_; }

  // The next bytes of the stream, in pieces of any size. Calls back with the position of each acknowledgement in them.
  template <class Found>
  void look(std::span<const std::byte> bytes, Found&& found) {
    while (!bytes.empty() && !blind_) {
      if (skip_ >= bytes.size()) {
        skip_ -= bytes.size();
        return;
      }
      bytes = bytes.subspan(size_t(skip_));
      skip_ = 0;
      if (!take_header(bytes)) return;
      if (wire::FrameKind(header_.kind) == wire::FrameKind::acknowledge) found(header_.sequence);
    }
  }

 private:
  // Takes what is there of a header; true: it is whole, and skip_ is what comes behind it.
  bool take_header(std::span<const std::byte>& bytes);

  uint64_t skip_ = 0;
  size_t have_ = 0;  // bytes of header_
  wire::FrameHeader header_;
  bool blind_ = false;
  bool goodbye_ = false;
};

}  // namespace gpuwire::link
