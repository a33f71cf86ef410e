// Bulk in a session with lanes. It is cut into parts, which follow the frame's message as usual, or travel in stripes
// over additional connections. docs/wire_protocol.md explains it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/wire/limits.hpp"

namespace gpuwire::wire {

// The maximum of connections beside a session's first. A server's setting says how many its sessions may have.
inline constexpr unsigned kLanesMax = 16;
// The maximum bytes of bulk that follow one part header in the stream itself. After them, lanes that have been added
// meanwhile are used.
inline constexpr size_t kInlinePartBytesMax = 4u << 20;
// A part over lanes is cut into stripes of this many bytes.
inline constexpr size_t kStripeBytes = 256u << 10;
inline constexpr size_t kStripesMax = kBulkBytesMax / kStripeBytes;  // of one part

enum class PartWay : uint8_t {
  here = 1,   // the bytes follow the header
  lanes = 2,  // the bytes travel over the lanes; the stream behind them follows the header
};

// Precedes each part of bulk that is longer than kPostedBulkBytesMax. Positions of the stream do not count the header.
// 16 bytes, little-endian.
struct PartHeader {
  uint16_t magic = kMagic;
  // PartWay.
  uint8_t way = 0;
  uint8_t reserved = 0;
  // The set of lanes; 0: none.
  uint32_t lane_set = 0;
  // Bytes of the bulk in this part: at least 1, at most the remaining bulk.
  uint64_t bytes = 0;

  // "GP".
  static constexpr uint16_t kMagic = 0x5047;
};
static_assert(sizeof(PartHeader) == 16);

// Precedes each stripe on a lane. A part is cut every kStripeBytes from its beginning, and each stripe is sent once, in
// any order and over any of the lanes. 24 bytes.
struct StripeHeader {
  uint16_t magic = kMagic;
  uint16_t reserved = 0;
  uint32_t lane_set = 0;
  // Position of the first byte in the sender's stream.
  uint64_t position = 0;
  // kStripeBytes, or the remainder of the part. 0: the client's first stripe on each lane, which reports that all lanes
  // are ready.
  uint32_t bytes = 0;
  uint32_t reserved_too = 0;

  // "GS".
  static constexpr uint16_t kMagic = 0x5347;
};
static_assert(sizeof(StripeHeader) == 24);

}  // namespace gpuwire::wire
