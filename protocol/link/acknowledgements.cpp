#include "protocol/link/acknowledgements.hpp"

#include <algorithm>
#include <cstring>

#include <capnp/common.h>

#include "protocol/wire/limits.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::link {

bool AcknowledgementScanner::take_header(std::span<const std::byte>& bytes) {
  size_t piece = std::min(bytes.size(), sizeof header_ - have_);
  std::memcpy(reinterpret_cast<std::byte*>(&header_) + have_, bytes.data(), piece);
  bytes = bytes.subspan(piece);
  have_ += piece;
  if (have_ < sizeof header_) return false;
  have_ = 0;
  blind_ = header_.magic != wire::FrameHeader::kMagic || header_.message_words > wire::kMessageWordsMax ||
           header_.bulk_bytes > wire::kBulkBytesMax;
  skip_ = header_.message_words * sizeof(capnp::word);
  (header_.bulk_bytes > stops_above_ ? bulk_left_ : skip_) += header_.bulk_bytes;
  if (skip_ <= wire::kShortFrameBytesMax) short_frame_bytes_ += sizeof header_ + skip_;
  goodbye_ |=
      header_.kind == uint8_t(wire::FrameKind::control) && header_.ordinal == uint32_t(wire::ControlOrdinal::goodbye);
  return !blind_;
}

}  // namespace gpuwire::link
