// The messages between the two ends of an RDMA connection, and the rules by which each end checks the other's. Third
// parties on the fabric may send messages, too. So each message carries the token that its receiver has given to its
// peer over the authenticated connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace gpuwire::transport::rdma {

inline constexpr uint32_t kVersion = 1;
using Token = std::array<uint8_t, 16>;

// The window of each direction. A sender has at most this many bytes in flight that the receiver's owner has not
// consumed, so that each message has a place when it arrives. The place of a byte is its position modulo the window, at
// both ends.
inline constexpr size_t kWindowBytes = 4u << 20;
inline constexpr size_t kMessagesMax = 256;
// The maximum length of a message. No message crosses the end of the window.
inline constexpr size_t kMessageBytesMax = 256u << 10;
// After this many consumed bytes the receiver notifies the sender, whose room does not contain the bytes before that.
inline constexpr uint64_t kNotifyBytes = kWindowBytes / 4;
inline constexpr uint64_t kNotifyMessages = kMessagesMax / 4;
// The maximum length of an end's fabric address. A longer address of a peer is rejected.
inline constexpr size_t kAddressBytesMax = 8192;

enum class Kind : uint8_t {
  greeting = 1,  // the first message: this side has the peer's token
  data = 2,      // `bytes` of the stream from `position` on; message `number` of this direction
  taken = 3,     // only the taken_* fields
  end = 4,       // the stream ends at `position` after `number` messages
  end_seen = 5,  // this side has received everything before the peer's end
};

// 64 bytes, little-endian. Messages may arrive in another order than they were sent.
struct Header {
  uint32_t magic = kMagic;
  Kind kind = Kind::taken;
  uint8_t reserved[3] = {};
  Token token{};
  uint64_t number = 0;
  uint64_t position = 0;
  // The total of the other direction that this side's owner has consumed. Only grows.
  uint64_t taken_bytes = 0;
  uint64_t taken_messages = 0;
  uint32_t bytes = 0;
  uint32_t reserved_too = 0;

  // "GRDM".
  static constexpr uint32_t kMagic = 0x4d44'5247;
};
static_assert(sizeof(Header) == 64);

}  // namespace gpuwire::transport::rdma
