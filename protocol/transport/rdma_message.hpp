// The messages between the two ends of an RDMA connection, and the rules by which each checks the other's. Others on
// the same fabric may send messages, too, so each message carries the token that its receiver has given to its peer,
// over a connection that authenticates the peer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gpuwire::transport::rdma {

inline constexpr uint32_t kVersion = 1;
using Token = std::array<uint8_t, 16>;

// For each direction. A sender has at most this many bytes in flight that the receiver's owner has not consumed, so
// that each message has a place at its arrival. The place of a byte is its position modulo the window, at both ends.
inline constexpr size_t kWindowBytes = 4u << 20;
inline constexpr size_t kMessagesMax = 256;
// No message is longer; none goes over the end of the window.
inline constexpr size_t kMessageBytesMax = 256u << 10;
// The consumed bytes after which the sender is notified. Its room is smaller by the bytes of which it was not notified.
inline constexpr uint64_t kNotifyBytes = kWindowBytes / 4;
inline constexpr uint64_t kNotifyMessages = kMessagesMax / 4;
// Of the fabric's address of an end: a peer's that is longer is not used.
inline constexpr size_t kAddressBytesMax = 8192;

enum class Kind : uint8_t {
  greeting = 1,  // the first: I have your token
  data = 2,      // `bytes` of the stream from `position` on, message `number` of this direction
  taken = 3,     // nothing but the fields of that name
  end = 4,       // the stream ends at `position`, and had `number` messages
  end_seen = 5,  // everything before your end has come
};

// 64 bytes, little-endian. Messages may come in another order than they were sent.
struct Header {
  uint32_t magic = kMagic;
  Kind kind = Kind::taken;
  uint8_t reserved[3] = {};
  Token token{};
  uint64_t number = 0;
  uint64_t position = 0;
  // For the other direction: the total that this side's owner has consumed. Grows.
  uint64_t taken_bytes = 0;
  uint64_t taken_messages = 0;
  uint32_t bytes = 0;
  uint32_t reserved_too = 0;

  static constexpr uint32_t kMagic = 0x4d44'5247;  // "GRDM"
};
static_assert(sizeof(Header) == 64);

}  // namespace gpuwire::transport::rdma
