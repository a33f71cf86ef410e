// The two ends of a session's beginning: connecting, and hello and welcome. What lies between them is in login.hpp.
#pragma once

#include <chrono>
#include <memory>

#include <tl/expected.hpp>

#include "client_stub/session/outgoing.hpp"
#include "client_stub/session/server_address.hpp"
#include "client_stub/session/session.hpp"
#include "client_stub/session/start_error.hpp"
#include "protocol/link/link.hpp"
#include "protocol/resume/proof.hpp"
#include "protocol/transport/frame_receiver.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::client {

// What connecting may take, over all addresses of a name.
inline constexpr std::chrono::milliseconds kConnectTimeout{5000};
// Connects. Errors: CUDA_ERROR_SYSTEM_NOT_READY.
tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> reach(const ServerAddress& address);

// Hello and welcome, the first frames of a link over the connection that login.hpp's enter() has given; waits 30 s for
// a worker to begin the session. `receiver` is positioned behind the welcome. Errors: CUDA_ERROR_SYSTEM_NOT_READY, or
// what the server asks for.
struct Begun {
  ServerFacts facts;
  // When the server keeps the session without a connection for a while; 0: it does not.
  resume::SessionId id{};
  resume::Secret secret{};
  std::chrono::milliseconds resume_grace{0};
  bool heartbeats = false;
  unsigned lanes = 0;  // further connections for bulk that may be opened; not 0: bulk comes in parts
};
// `lanes`: how many further connections for bulk the session would open.
tl::expected<Begun, SessionStartError> begin_session(link::Link& link, Outgoing& outgoing,
                                                     transport::FrameReceiver& receiver, unsigned lanes);

}  // namespace gpuwire::client
