// The first and last step of a session's begin: connecting, and Hello and Welcome. login.hpp has the steps between
// them.
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

// The bound for connecting, over all addresses of a name.
inline constexpr std::chrono::milliseconds kConnectTimeout{5000};
// Connects. Errors: CUDA_ERROR_SYSTEM_NOT_READY; `absent` if no server listens.
tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> reach(const ServerAddress& address);

// Hello and Welcome, the first frames of a link over the connection of login.hpp's enter(). Waits 30 s for a worker to
// begin the session. `receiver` is then positioned behind the Welcome. Errors: CUDA_ERROR_SYSTEM_NOT_READY, or the
// server's error.
struct Begun {
  ServerFacts facts;
  // Set if the server keeps the session without a connection for a while; 0: it does not.
  resume::SessionId id{};
  resume::Secret secret{};
  std::chrono::milliseconds resume_grace{0};
  // The same after a connection that was closed or reset.
  std::chrono::milliseconds hang_up_grace{0};
  bool heartbeats = false;
  // Further connections for bulk that the server permits; not 0: bulk comes in parts.
  unsigned lanes = 0;
};
// `lanes` is the number of further connections for bulk that the session would open.
tl::expected<Begun, SessionStartError> begin_session(link::Link& link, Outgoing& outgoing,
                                                     transport::FrameReceiver& receiver, unsigned lanes);

}  // namespace gpuwire::client
