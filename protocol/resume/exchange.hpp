// The exchange over a new connection before a session's streams continue over it: challenge, proof, positions. Both
// ends use it; neither reads a byte behind the last frame.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <tl/expected.hpp>

#include "protocol/resume/proof.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::resume {

struct Failure {
  // The peer has refused, and would refuse another attempt.
  bool refused = false;
  // One line.
  std::string cause;
};

// --- the client ----------------------------------------------------------------------------------------------------

struct Claim {
  SessionId session{};
  const Secret& secret;
  // Greater than that of any earlier attempt.
  uint64_t attempt = 0;
  // Position in the server's stream.
  uint64_t received = 0;
  // The client's end of the connection (transport::ConnectionEnd).
  std::string address = {}, machine = {};
  // Set if this connection is to be a lane beside the connection of `attempt`.
  std::optional<Lane> lane = {};
};
// Requests the resumption. Returns the number of bytes of the client's stream that the server has received. `timeout`
// bounds the wait for each message of the server.
tl::expected<uint64_t, Failure> ask(transport::Transport& connection, const Claim& claim,
                                    transport::Nanoseconds timeout);

// --- the server ----------------------------------------------------------------------------------------------------

struct Request {
  uint64_t attempt = 0, received = 0;
  // The client's description of its end.
  std::string address, machine;
  std::optional<Lane> lane = {};
};
// Waits for the request, sends a challenge and checks the answer. The error is one line for the log that says why the
// proof is wrong; the client has then received the refusal.
tl::expected<Request, std::string> receive_request(transport::Transport& connection, const SessionId& session,
                                                   const Secret& secret, transport::Nanoseconds timeout);
// Sends the last message before the streams continue. Returns false if the connection did not accept it.
bool accept(transport::Transport& connection, uint64_t received, transport::Nanoseconds timeout);
void refuse(transport::Transport& connection, const std::string& reason, transport::Nanoseconds timeout);

// Fills `out` with random bytes from the system. Returns false if the system has none.
bool make_random(std::span<uint8_t> out);

}  // namespace gpuwire::resume
