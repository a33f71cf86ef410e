// A client for tests that can send anything: right frames, wrong frames, halves of frames.
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

// The longest wait of a test, which then fails.
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
  // Connects; returns false if no server listens.
  bool connect(uint16_t port);
  bool connect_unix(const std::string& path);
  void close() { socket_.reset(); }
  // Resets the connection, as after a restart of the client's host.
  void reset_connection();
  int socket() const { return socket_.get(); }

  bool send(std::span<const std::byte> bytes);
  bool send_preface();
  bool send_hello();
  // Reads the server's preface; `text` gets the reason of a refusal. Nothing: the connection ended.
  std::optional<wire::Preface> read_preface(std::string& text);
  // Sends preface and login, and waits for the grant; `text` gets the reason of a refusal by either. Without a token
  // the server chooses the tenant.
  bool log_in(std::string& text, const std::string& token = {});
  // Sends the login, and gets the next answer: "admitted", "queued", "refused", "told"; "": the connection ended.
  // `resume`: the identity of the session to resume; `query`: a query instead of a session.
  bool ask(std::string& text, const std::string& token = {}, const std::string& resume = {},
           const std::string& query = {});
  std::string answer(std::string& text);
  // Logs in, sends Hello, and waits for Welcome.
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

  // Returns false if the connection ended or the deadline passed.
  bool read_exactly(std::span<std::byte> out);
  // Returns the next frame of any kind; nothing: the connection ended or the deadline passed.
  std::optional<ReceivedFrame> receive();
  // Returns the reply to a call; skips acknowledgements, and stores notices in `notices`.
  std::optional<ReceivedFrame> reply(uint64_t sequence);
  // Reads until the server ends the session; returns the reason of its Ending notice, or "" without one.
  std::string reason_of_end();
  // Waits for the end of the connection; returns false if the deadline passed.
  bool closed_by_server();

  // Posts retain_primary of device 0; returns the context's number for frame headers.
  uint32_t retain_primary();
  int32_t ping();

  std::vector<ReceivedFrame> notices;

 private:
  server::OwnedDescriptor socket_;
  uint64_t sequence_ = 0;
};

}  // namespace gpuwire::test
