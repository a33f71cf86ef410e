// Bulk in a session with lanes: cut into parts, which come behind the frame's message as always, or in stripes over
// further connections. docs/wire_protocol.md is the prose.
#pragma once

#include <cstddef>
#include <cstdint>

#include "protocol/wire/limits.hpp"

namespace gpuwire::wire {

// Connections beside a session's first, at most. A server's setting says how many of its sessions may have.
inline constexpr unsigned kLanesMax = 16;
// Bytes of bulk that come behind one header in the stream itself; then lanes that have come meanwhile are used.
inline constexpr size_t kInlinePartBytesMax = 4u << 20;
// Each connection carries this many bytes of a part over lanes at a time.
inline constexpr size_t kStripeBytes = 256u << 10;
inline constexpr size_t kStripesMax = kBulkBytesMax / kStripeBytes;  // of one part

enum class PartWay : uint8_t {
  here = 1,   // the bytes come behind the header
  lanes = 2,  // they come over the lanes, and the header is followed by the stream behind them
};

// Before each part of bulk that is longer than kPostedBulkBytesMax. It counts in no stream: positions are those of the
// bytes without it. 16 bytes, little-endian.
struct PartHeader {
  uint16_t magic = kMagic;
  uint8_t way = 0;  // PartWay
  uint8_t reserved = 0;
  uint32_t lane_set = 0;  // which lanes; 0: none
  uint64_t bytes = 0;     // of the bulk: at least 1, at most the remainder

  static constexpr uint16_t kMagic = 0x5047;  // "GP"
};
static_assert(sizeof(PartHeader) == 16);

// Before each stripe on a lane. The stripes of a part are cut every kStripeBytes from its beginning, each comes once,
// in any order over any of the lanes. 24 bytes.
struct StripeHeader {
  uint16_t magic = kMagic;
  uint16_t reserved = 0;
  uint32_t lane_set = 0;
  uint64_t position = 0;  // in the sender's stream, of the first byte
  // kStripeBytes, or the remainder of the part. 0: the client's first stripe on each lane, which says that all are
  // ready.
  uint32_t bytes = 0;
  uint32_t reserved_too = 0;

  static constexpr uint16_t kMagic = 0x5347;  // "GS"
};
static_assert(sizeof(StripeHeader) == 24);

}  // namespace gpuwire::wire
