// The state of the two directions of an RDMA connection, without the fabric: bytes that may be sent, that have arrived,
// and that were consumed. Plain data; lock: the connection's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "protocol/transport/rdma_message.hpp"

namespace gpuwire::transport::rdma {

// Returns the number of bytes that one message at `position` may have before the window's end.
inline size_t until_edge(uint64_t position) { return kWindowBytes - size_t(position % kWindowBytes); }

// The bytes in flight to the peer. A place is reused after the peer's owner has consumed its bytes and the fabric no
// longer reads them.
class Outgoing {
 public:
  explicit Outgoing(std::byte* window) : window_(window) {}

  // Returns the maximum length of the next message; 0: there is no room.
  size_t room() const {
    if (messages_ - std::min(taken_messages_, released_messages_) == kMessagesMax) return 0;
    uint64_t used = sent_ - std::min(taken_, released_);
    return std::min({size_t(kWindowBytes - used), until_edge(sent_), kMessageBytesMax});
  }
  std::byte* place() const { return window_ + sent_ % kWindowBytes; }

  struct Message {
    uint64_t number = 0;
    // Valid until released(number).
    Header* header = nullptr;
    const std::byte* data = nullptr;
  };
  // Adds a message of `bytes` bytes that were written to place(). Precondition: bytes <= room().
  Message add(size_t bytes) {
    Slot& slot = slots_[messages_ % kMessagesMax];
    slot.header = {.kind = Kind::data, .number = messages_, .position = sent_, .bytes = uint32_t(bytes)};
    slot.released = false;
    Message message{messages_, &slot.header, place()};
    sent_ += bytes;
    ++messages_;
    return message;
  }
  // The fabric no longer needs the memory of message `number`.
  void released(uint64_t number) {
    slots_[number % kMessagesMax].released = true;
    while (released_messages_ != messages_ && slots_[released_messages_ % kMessagesMax].released) {
      released_ += slots_[released_messages_ % kMessagesMax].header.bytes;
      ++released_messages_;
    }
  }
  // The peer reports what it has consumed. Returns false if it cannot have consumed that.
  bool taken(uint64_t bytes, uint64_t messages) {
    if (bytes > sent_ || messages > messages_) return false;
    // The report may be older than one that has arrived before.
    taken_ = std::max(taken_, bytes);
    taken_messages_ = std::max(taken_messages_, messages);
    return true;
  }

  uint64_t sent() const { return sent_; }
  uint64_t messages() const { return messages_; }

 private:
  struct Slot {
    Header header;
    bool released = true;
  };
  std::byte* window_;
  std::array<Slot, kMessagesMax> slots_;
  uint64_t sent_ = 0, messages_ = 0;
  uint64_t taken_ = 0, taken_messages_ = 0;
  uint64_t released_ = 0, released_messages_ = 0;
};

// The bytes that arrive from the peer, which is not trusted: a message is accepted only if there is a place for it.
class Incoming {
 public:
  explicit Incoming(std::byte* window) : window_(window) {}

  // Returns the destination of the message's bytes, or null if such a message is invalid now.
  std::byte* expect(const Header& header) {
    Slot& slot = slots_[header.number % kMessagesMax];
    bool fits = header.number >= next_ && header.number - taken_messages_ < kMessagesMax && !slot.expected &&
                header.bytes != 0 && header.bytes <= kMessageBytesMax && header.position >= come_ &&
                header.position - taken_ <= kWindowBytes - header.bytes && header.bytes <= until_edge(header.position);
    if (!fits) return nullptr;
    slot = {header.position, header.bytes, true, false};
    return window_ + header.position % kWindowBytes;
  }
  // The bytes of message `number` have arrived. Returns false if they do not follow the bytes before them.
  bool come(uint64_t number) {
    slots_[number % kMessagesMax].come = true;
    for (Slot* slot = &slots_[next_ % kMessagesMax]; slot->expected && slot->come;
         slot = &slots_[next_ % kMessagesMax]) {
      if (slot->position != come_) return false;
      come_ += slot->bytes;
      slot->expected = false;
      ends_[next_ % kMessagesMax] = come_;
      ++next_;
    }
    return !end_known_ || come_ <= end_;
  }
  // The peer's stream ends at `position`. Returns false if it cannot end there.
  bool end_at(uint64_t position, uint64_t messages) {
    if (end_known_ || position < come_ || messages < next_) return false;
    end_known_ = true;
    end_ = position;
    return true;
  }

  size_t available() const { return size_t(come_ - taken_); }
  // Everything up to the end has arrived, and has been consumed.
  bool whole() const { return end_known_ && come_ == end_; }
  bool finished() const { return end_known_ && taken_ == end_; }
  uint64_t received() const { return come_; }

  // Copies the available bytes to `out` and returns their number.
  size_t take(std::span<std::byte> out) {
    size_t got = 0;
    while (got < out.size() && taken_ != come_) {
      size_t step = std::min({out.size() - got, available(), until_edge(taken_)});
      std::memcpy(out.data() + got, window_ + taken_ % kWindowBytes, step);
      got += step;
      taken_ += step;
    }
    while (taken_messages_ != next_ && ends_[taken_messages_ % kMessagesMax] <= taken_) ++taken_messages_;
    return got;
  }
  uint64_t taken() const { return taken_; }
  uint64_t taken_messages() const { return taken_messages_; }

 private:
  struct Slot {
    uint64_t position = 0;
    uint32_t bytes = 0;
    bool expected = false, come = false;
  };
  std::byte* window_;
  std::array<Slot, kMessagesMax> slots_{};
  std::array<uint64_t, kMessagesMax> ends_{};
  // Arrived in order.
  uint64_t come_ = 0, next_ = 0;
  uint64_t taken_ = 0, taken_messages_ = 0;
  bool end_known_ = false;
  uint64_t end_ = 0;
};

}  // namespace gpuwire::transport::rdma
