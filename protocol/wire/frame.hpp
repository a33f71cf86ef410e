// The layout of a frame: a fixed header, one Cap'n Proto segment, raw bytes. docs/wire_protocol.md is the prose.
#pragma once

#include <cstdint>
#include <cstring>

namespace gpuwire::wire {

enum class FrameKind : uint8_t {
  control = 1,  // handshake.capnp; ordinal: ControlOrdinal
  posted = 2,   // client to server; no reply
  called = 3,   // client to server; a reply with the same sequence comes back
  reply = 4,    // server to client
  notice = 5,   // server to client, unasked; ordinal: NoticeOrdinal
  // Either way; no message. `sequence`: how many bytes of the peer's stream have been taken over, counted from its
  // first frame (Hello or Welcome).
  acknowledge = 6,
};

// 32 bytes, little-endian, as it stands on the wire.
struct FrameHeader {
  uint8_t kind = 0;
  uint8_t flags = 0;        // FrameFlag
  uint16_t magic = kMagic;  // catches a lost frame boundary at once
  uint32_t ordinal =
      0;  // which call: protocol/api/session.toml below 1000, the driver functions beside it from there on
  uint64_t sequence = 0;       // client frames count 1, 2, 3...; a reply carries its call's; notices count on their own
  uint32_t message_words = 0;  // Cap'n Proto segment in 8-byte words, <= kMessageWordsMax; 0: no message
  uint32_t context = 0;        // low 32 bits of the caller's current context handle; 0: none
  uint64_t bulk_bytes = 0;     // raw bytes behind the message, not padded; how many: wire/session_frames.hpp

  static constexpr uint16_t kMagic = 0x5747;  // "GW"
};
static_assert(sizeof(FrameHeader) == 32);

// The requests in a client's preface, and the next steps in a server's. Unknown flags are ignored.
enum PrefaceFlag : uint32_t {
  kPrefaceManagement =
      1,  // a session of management queries (protocol/nvml) instead of a program's: it gets no context on a device
  kPrefaceTls = 2,              // client: wants it; server: behind its preface both speak TLS 1.3
  kPrefaceLogin = 4,            // server: the client logs in before its Hello (schema/login.capnp)
  kPrefaceSharedMemory = 8,     // server: the client may ask for shared memory (ControlOrdinal::shared_memory)
  kPrefaceTokenChallenge = 64,  // server: proves that it knows a token's hash before it is shown the token
  kPrefaceIdentity =
      32,  // server: without TLS, a client without a token is refused; 16 is kPrefaceRdma (wire/rdma.hpp)
};

// Each side sends one preface before the first frame, so that even a peer of another protocol can be told the reason of
// a refusal. The broker parses nothing else from a client.
struct Preface {
  char magic[8] = {'G', 'P', 'U', 'W', 'I', 'R', 'E', '\n'};
  uint16_t protocol_major = 0;
  uint16_t protocol_minor = 0;
  uint32_t status = 0;          // server: 0 accepted, else RefusalCode, and `text_bytes` of reason follow. Client: 0
  uint32_t text_bytes = 0;      // server only, <= kRefusalBytesMax
  uint32_t flags = 0;           // PrefaceFlag
  char release[24] = {};        // "0.1.0", zero-terminated: the program's version, for error messages
  uint8_t session_id[16] = {};  // client: the session to resume, or zero for a new one
};
static_assert(sizeof(Preface) == 64);

enum class RefusalCode : uint32_t {
  accepted = 0,
  version = 1,
  not_gpuwire = 2,
  busy = 3,
  shutting_down = 4,
  no_device = 5,
  internal = 6,
  unauthorised = 7
};

}  // namespace gpuwire::wire
