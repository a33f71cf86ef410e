// What is said over a new connection before a session's streams go on over it: challenge, proof, positions. Both ends;
// nothing behind the last frame is read.
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

struct Heard {
  uint64_t attempt = 0, received = 0;
  std::string address, machine;  // what the client says of its end
  std::optional<Lane> lane = {};
};
// Waits to be asked, sends a challenge and checks the answer. Error: why it is no proof, one line for the log; the
// client has been told that it is refused.
tl::expected<Heard, std::string> hear(transport::Transport& connection, const SessionId& session, const Secret& secret,
                                      transport::Nanoseconds timeout);
// The last word before the streams go on. False: the connection did not take it.
bool accept(transport::Transport& connection, uint64_t received, transport::Nanoseconds timeout);
void refuse(transport::Transport& connection, const std::string& reason, transport::Nanoseconds timeout);

// Random bytes of the system's. False: it has none.
bool make_random(std::span<uint8_t> out);

}  // namespace gpuwire::resume
