// The two ends of a session's beginning: connecting, and hello and welcome. What lies between them is in login.hpp.
#pragma once

#include <memory>

#include <tl/expected.hpp>

#include "client_stub/session/server_address.hpp"
#include "client_stub/session/session.hpp"
#include "client_stub/session/start_error.hpp"
#include "protocol/transport/frame_receiver.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::client {

// Connects. Errors: CUDA_ERROR_SYSTEM_NOT_READY.
tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> reach(const ServerAddress& address);

// Hello and welcome, over a connection that login.hpp's enter() has given; waits 30 s for a worker to begin the session. `receiver` is positioned
// behind the welcome. Errors: CUDA_ERROR_SYSTEM_NOT_READY, or what the server asks for.
tl::expected<ServerFacts, SessionStartError> begin_session(transport::Transport& transport, transport::FrameReceiver& receiver);

}  // namespace gpuwire::client
