// A client for tests that can say anything: right frames, wrong frames, halves of frames.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <capnp/message.h>

#include "protocol/wire/frame.hpp"
#include "protocol/wire/ordinals.hpp"
#include "schema/session.capnp.h"
#include "server/base/owned_descriptor.hpp"
#include "test/support/becomes.hpp"

namespace gpuwire::test {

// Every wait of the tests ends by then at the latest, with a failure.
inline constexpr std::chrono::seconds kDeadline = kTimeout;

struct ReceivedFrame {
  wire::FrameHeader header;
  std::vector<capnp::word> message;
  std::vector<std::byte> bulk;

  // Calls `read` with the message's root.
  template <class Struct, class Read>
  void with(Read&& read) const {
    kj::ArrayPtr<const capnp::word> segment = kj::arrayPtr(message.data(), message.size());
    capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1));
    read(reader.getRoot<Struct>());
  }
};

class WireClient {
 public:
  // Connects; false: nobody listens.
  bool connect(uint16_t port);
  bool connect_unix(const std::string& path);
  void close() { socket_.reset(); }
  // The connection ends with a reset, as when the client's host vanishes and comes back.
  void reset_connection();
  int socket() const { return socket_.get(); }

  bool send(std::span<const std::byte> bytes);
  bool send_preface();
  bool send_hello();
  // Reads the server's preface; `text` gets the reason of a refusal. Nothing: the connection ended.
  std::optional<wire::Preface> read_preface(std::string& text);
  // Preface and login, to the server's word that it may begin; `text` gets the reason of a refusal, of either kind.
  // Without a token: as whoever the server takes it for.
  bool log_in(std::string& text, const std::string& token = {});
  // The login's first half, and the next answer: "admitted", "queued", "refused", "told"; "": the connection ended.
  // `resume`: the identity of the session that the connection is to carry on; `query`: what is asked in place of a
  // session.
  bool ask(std::string& text, const std::string& token = {}, const std::string& resume = {},
           const std::string& query = {});
  std::string answer(std::string& text);
  // All that, Hello, and the Welcome that answers.
  bool open_session(uint16_t port);

  // Frames with the next sequence number; the message is built by `write`.
  template <class Params, class Write>
  uint64_t send_call(wire::FrameKind kind, uint32_t ordinal, uint32_t context, Write&& write,
                     std::span<const std::byte> bulk = {}) {
    capnp::MallocMessageBuilder builder;
    write(builder.initRoot<Params>());
    return send_message(kind, ordinal, context, builder, bulk);
  }
  uint64_t send_empty(wire::FrameKind kind, uint32_t ordinal, uint32_t context = 0,
                      std::span<const std::byte> bulk = {});
  uint64_t send_message(wire::FrameKind kind, uint32_t ordinal, uint32_t context, capnp::MessageBuilder& builder,
                        std::span<const std::byte> bulk);
  bool send_header(const wire::FrameHeader& header) { return send(std::as_bytes(std::span(&header, 1))); }

  // False: the connection ended, or the deadline passed.
  bool read_exactly(std::span<std::byte> out);
  // The next frame, whatever it is. Nothing: the connection ended or the deadline passed.
  std::optional<ReceivedFrame> receive();
  // The reply to a call; acknowledgements are skipped, notices kept in `notices`.
  std::optional<ReceivedFrame> reply(uint64_t sequence);
  // Reads until the server ends the session: the reason of its Ending notice, or "" without one.
  std::string reason_of_end();
  // Waits for the end of the connection; false: the deadline passed.
  bool closed_by_server();

  // posts retain_primary of device 0; the number to put in frame headers.
  uint32_t retain_primary();
  int32_t ping();

  std::vector<ReceivedFrame> notices;

 private:
  server::OwnedDescriptor socket_;
  uint64_t sequence_ = 0;
};

}  // namespace gpuwire::test
