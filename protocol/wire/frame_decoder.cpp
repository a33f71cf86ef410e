#include "protocol/wire/frame_decoder.hpp"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "protocol/wire/ordinals.hpp"

namespace gpuwire::wire {

namespace {

// The buffer holds hundreds of launches. A longer message makes it grow once, to the size of that message.
constexpr size_t kBufferBytes = 128 * 1024;
constexpr size_t kBufferBytesMax = sizeof(FrameHeader) + size_t(kMessageWordsMax) * sizeof(capnp::word) + kBufferBytes;

bool may_send(Sender sender, FrameKind kind) {
  switch (kind) {
    case FrameKind::control:
    case FrameKind::acknowledge: return true;
    case FrameKind::posted:
    case FrameKind::called: return sender == Sender::client;
    case FrameKind::reply:
    case FrameKind::notice: return sender == Sender::server;
  }
  return false;
}

}  // namespace

FrameDecoder::FrameDecoder(Sender sender)
    : sender_(sender), buffer_(new capnp::word[kBufferBytes / sizeof(capnp::word)]), capacity_(kBufferBytes) {}

std::span<std::byte> FrameDecoder::space() {
  if (begin_ == end_) begin_ = end_ = 0;
  size_t wanted = header_known_ && !frame_given_
                      ? sizeof(FrameHeader) + size_t(header_.message_words) * sizeof(capnp::word)
                      : sizeof(FrameHeader);
  make_room(wanted);
  const size_t room = capacity_ - end_;
  return {bytes() + end_, is_space_short() ? std::min(room, kShortSpaceBytes) : room};
}

void FrameDecoder::make_room(size_t wanted) {
  // At least one byte must be free, and the bytes that are awaited must fit behind begin_, including up to 7 bytes for
  // alignment.
  if (end_ < capacity_ && begin_ + wanted + sizeof(capnp::word) <= capacity_) return;
  size_t used = end_ - begin_;
  if (wanted + sizeof(capnp::word) > capacity_) {
    std::unique_ptr<capnp::word[]> larger(new capnp::word[kBufferBytesMax / sizeof(capnp::word)]);
    std::memcpy(larger.get(), bytes() + begin_, used);
    buffer_ = std::move(larger);
    capacity_ = kBufferBytesMax / sizeof(capnp::word) * sizeof(capnp::word);
  } else {
    std::memmove(bytes(), bytes() + begin_, used);
  }
  begin_ = 0;
  end_ = used;
}

void FrameDecoder::filled(size_t bytes) {
  if (is_space_short()) --short_spaces_;
  end_ = std::min(end_ + bytes, capacity_);
}

FrameDecoder::Next FrameDecoder::next() {
  if (faulty()) return Next::fault;
  if (frame_given_) {
    if (bulk_left_) {
      set_fault("internal: a frame was left before its bulk was consumed");
      return Next::fault;
    }
    frame_given_ = header_known_ = false;
  }
  if (!header_known_) {
    if (end_ - begin_ < sizeof(FrameHeader)) return Next::need_more;
    std::memcpy(&header_, bytes() + begin_, sizeof header_);
    if (!check_header()) return Next::fault;
    header_known_ = true;
  }
  size_t frame_bytes = sizeof(FrameHeader) + size_t(header_.message_words) * sizeof(capnp::word);
  if (end_ - begin_ < frame_bytes) return Next::need_more;
  align();
  message_at_ = begin_ + sizeof(FrameHeader);
  begin_ += frame_bytes;
  bulk_left_ = header_.bulk_bytes;
  if (bulk_left_ >= kDirectBulkBytesMin) short_spaces_ = kShortSpaces;
  frame_given_ = true;
  return Next::frame;
}

// Aligns the message in the buffer. Bulk is not padded, so the bytes behind it may begin at any address, but Cap'n
// Proto needs aligned words.
void FrameDecoder::align() {
  size_t off = begin_ % sizeof(capnp::word);
  if (!off || !header_.message_words) return;
  std::memmove(bytes() + begin_ - off, bytes() + begin_, end_ - begin_);
  begin_ -= off;
  end_ -= off;
}

bool FrameDecoder::check_header() {
  const FrameHeader& h = header_;
  const char* side = sender_ == Sender::client ? "client" : "server";
  if (h.magic != FrameHeader::kMagic)
    set_fault(fmt::format("no frame where one should begin (found {:#06x})", h.magic));
  else if (!may_send(sender_, FrameKind(h.kind)))
    set_fault(fmt::format("frame kind {} may not come from a {}", h.kind, side));
  else if (h.flags) set_fault(fmt::format("frame flags {:#04x} are unknown", h.flags));
  else if (h.ordinal >= kOrdinalMax) set_fault(fmt::format("call ordinal {} is out of range", h.ordinal));
  else if (h.message_words > kMessageWordsMax)
    set_fault(fmt::format("a message of {} words is longer than the limit of {}", h.message_words, kMessageWordsMax));
  else if (h.bulk_bytes > kBulkBytesMax)
    set_fault(fmt::format("bulk of {} bytes is longer than the limit of {}", h.bulk_bytes, kBulkBytesMax));
  else if (FrameKind(h.kind) == FrameKind::acknowledge && (h.message_words || h.bulk_bytes))
    set_fault("an acknowledgement with a message");
  else if (FrameKind(h.kind) == FrameKind::control && h.bulk_bytes) set_fault("a control frame with bulk");
  return !faulty();
}

kj::ArrayPtr<const capnp::word> FrameDecoder::message() const {
  if (!header_.message_words) return nullptr;  // nothing was aligned without a message
  return kj::arrayPtr(reinterpret_cast<const capnp::word*>(bytes() + message_at_), header_.message_words);
}

std::span<const std::byte> FrameDecoder::buffered_bulk() const {
  return {bytes() + begin_, size_t(std::min<uint64_t>(bulk_left_, end_ - begin_))};
}

void FrameDecoder::take_bulk(size_t count) {
  count = std::min(count, buffered_bulk().size());
  begin_ += count;
  bulk_left_ -= count;
}

void FrameDecoder::bulk_read_elsewhere(size_t count) { bulk_left_ -= std::min<uint64_t>(bulk_left_, count); }

void FrameDecoder::set_fault(std::string reason) {
  if (!faulty()) fault_ = std::move(reason);
}

}  // namespace gpuwire::wire
