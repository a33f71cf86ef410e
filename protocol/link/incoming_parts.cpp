#include "protocol/link/incoming_parts.hpp"

#include <new>

namespace gpuwire::link {

bool IncomingParts::begin(uint64_t bytes) try {
  kept_.reserve(kPollBytes);
  fault_.reserve(64);
  scanner_.stop_before_bulk(bytes);
  on_ = true;
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void IncomingParts::begin_connection() {
  have_ = 0;
  here_left_ = lanes_left_ = 0;
  kept_.clear();
  kept_at_ = 0;
}

std::span<std::byte> IncomingParts::room(std::span<std::byte> out) noexcept {
  // No part begins within the message and the bulk of one frame, so nothing behind a header of a part is received.
  const size_t most = size_t(std::max<uint64_t>(kPollBytes, scanner_.skipping()));
  if (scanner_.bulk_left() == 0) return out.first(std::min(out.size(), most));
  if (here_left_ != 0) return out.first(size_t(std::min<uint64_t>(out.size(), here_left_)));
  return std::as_writable_bytes(std::span(&header_, 1)).subspan(have_);
}

size_t IncomingParts::take_cached(std::span<std::byte> into) noexcept {
  size_t bytes = std::min(into.size(), kept_.size() - kept_at_);
  std::memcpy(into.data(), kept_.data() + kept_at_, bytes);
  kept_at_ += bytes;
  if (kept_at_ == kept_.size()) {
    kept_.clear();
    kept_at_ = 0;
  }
  return bytes;
}

size_t IncomingParts::take_header(size_t bytes) noexcept {
  have_ += bytes;
  if (have_ == sizeof header_) header_complete();
  return 0;
}

// Moves the bytes behind the header to the front, or stores them.
std::span<std::byte> IncomingParts::cut_header_out(std::span<std::byte> bytes) noexcept {
  size_t piece = std::min(bytes.size(), sizeof header_ - have_);
  std::memcpy(reinterpret_cast<std::byte*>(&header_) + have_, bytes.data(), piece);
  take_header(piece);
  size_t rest = bytes.size() - piece;
  if (lanes_left_ == 0) {
    std::memmove(bytes.data(), bytes.data() + piece, rest);
    return bytes.first(rest);
  }
  if (keeps()) {
    // These bytes have just been taken from the stored ones.
    kept_at_ -= rest;
    std::memcpy(kept_.data() + kept_at_, bytes.data() + piece, rest);
  } else {
    kept_.assign(bytes.data() + piece, bytes.data() + piece + rest);
  }
  return {};
}

void IncomingParts::header_complete() noexcept {
  have_ = 0;
  auto way = wire::PartWay(header_.way);
  bool known = way == wire::PartWay::here || way == wire::PartWay::lanes;
  if (header_.magic != wire::PartHeader::kMagic || !known || header_.bytes == 0 ||
      header_.bytes > scanner_.bulk_left()) {
    fault_ = "bulk in a part that cannot be";
    return;
  }
  (way == wire::PartWay::here ? here_left_ : lanes_left_) = header_.bytes;
}

}  // namespace gpuwire::link
