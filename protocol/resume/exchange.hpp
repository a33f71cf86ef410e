// The exchange over a new connection before a session's streams continue over it: challenge, proof, positions. Both
// ends; no byte behind the last frame is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <tl/expected.hpp>

#include "protocol/resume/proof.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::resume {

struct Failure {
  bool refused = false;  // the peer has answered, and it will not be another answer
  std::string cause;     // one line
};

// --- the client ----------------------------------------------------------------------------------------------------

struct Claim {
  SessionId session{};
  const Secret& secret;
  uint64_t attempt = 0;                    // more than of any attempt before
  uint64_t received = 0;                   // position in the server's stream
  std::string address = {}, machine = {};  // the client's end of the connection (transport::ConnectionEnd)
  std::optional<Lane> lane = {};           // it is to be one, beside the connection of `attempt`
};
// How much of our stream the server has received. Each of the server's words is waited for at most `timeout`.
tl::expected<uint64_t, Failure> ask(transport::Transport& connection, const Claim& claim,
                                    transport::Nanoseconds timeout);

// --- the server ----------------------------------------------------------------------------------------------------

struct Request {
  uint64_t attempt = 0, received = 0;
  std::string address, machine;  // the client's description of its end
  std::optional<Lane> lane = {};
};
// Waits for the request, sends a challenge and checks the answer. Error: the reason why the proof is wrong, one line
// for the log; the client has received the refusal.
tl::expected<Request, std::string> receive_request(transport::Transport& connection, const SessionId& session,
                                                   const Secret& secret, transport::Nanoseconds timeout);
// The last word before the streams go on. False: the connection did not take it.
bool accept(transport::Transport& connection, uint64_t received, transport::Nanoseconds timeout);
void refuse(transport::Transport& connection, const std::string& reason, transport::Nanoseconds timeout);

// Random bytes of the system's. False: it has none.
bool make_random(std::span<uint8_t> out);

}  // namespace gpuwire::resume
