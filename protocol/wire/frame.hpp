// The layout of a frame: a fixed header, one Cap'n Proto segment, raw bytes. docs/wire_protocol.md explains it.
#pragma once

#include <cstdint>
#include <cstring>

namespace gpuwire::wire {

enum class FrameKind : uint8_t {
  control = 1,  // messages of handshake.capnp; ordinal: ControlOrdinal
  posted = 2,   // client to server, without a reply
  called = 3,   // client to server; the server sends a reply with the same sequence
  reply = 4,    // server to client
  notice = 5,   // server to client, unrequested; ordinal: NoticeOrdinal
  // Both directions; no message. `sequence`: the number of bytes of the peer's stream that were consumed, counted from
  // the stream's first frame (Hello or Welcome).
  acknowledge = 6,
};

// The frame header on the wire: 32 bytes, little-endian.
struct FrameHeader {
  uint8_t kind = 0;
  // FrameFlag.
  uint8_t flags = 0;
  // Detects a lost frame boundary at once.
  uint16_t magic = kMagic;
  // The call: below 1000 those of protocol/api/session.toml, from 1000 on the driver functions (protocol/api).
  uint32_t ordinal = 0;
  // Client frames count 1, 2, 3 and so on. A reply carries the sequence of its call. Notices have their own count.
  uint64_t sequence = 0;
  // Cap'n Proto segment in 8-byte words, <= kMessageWordsMax; 0: no message.
  uint32_t message_words = 0;
  // Low 32 bits of the caller's current context handle; 0: none.
  uint32_t context = 0;
  // Raw bytes behind the message, not padded; bounds: wire/session_frames.hpp.
  uint64_t bulk_bytes = 0;

  // "GW".
  static constexpr uint16_t kMagic = 0x5747;
};
static_assert(sizeof(FrameHeader) == 32);

// A client's requests in its preface, and a server's offers and next steps. Unknown flags are ignored.
enum PrefaceFlag : uint32_t {
  // A session of management queries (protocol/nvml), which gets no context on a device.
  kPrefaceManagement = 1,
  kPrefaceTls = 2,              // client: requests TLS; server: both sides speak TLS 1.3 behind its preface
  kPrefaceLogin = 4,            // server: the client logs in before its Hello (schema/login.capnp)
  kPrefaceSharedMemory = 8,     // server: the client may ask for shared memory (ControlOrdinal::shared_memory)
  kPrefaceTokenChallenge = 64,  // server: proves that it knows a token's hash before the client sends the token
  // Server: without TLS, a client without a token is refused. 16 is kPrefaceRdma (wire/rdma.hpp).
  kPrefaceIdentity = 32,
};

// Each side sends one preface before the first frame, so that even a peer of another protocol can receive the reason of
// a refusal. The broker parses nothing else from a client.
struct Preface {
  char magic[8] = {'G', 'P', 'U', 'W', 'I', 'R', 'E', '\n'};
  uint16_t protocol_major = 0;
  uint16_t protocol_minor = 0;
  // Server: 0 if accepted, else a RefusalCode, and the reason follows in `text_bytes` bytes. Client: 0.
  uint32_t status = 0;
  // Server only, <= kRefusalBytesMax.
  uint32_t text_bytes = 0;
  // PrefaceFlag.
  uint32_t flags = 0;
  // "0.1.0", zero-terminated: the program's version, for error messages.
  char release[24] = {};
  // Client: the session to resume, or zeros for a new one.
  uint8_t session_id[16] = {};
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
