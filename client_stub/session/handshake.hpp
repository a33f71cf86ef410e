// The beginning of a session: prefaces, hello and welcome, and what to say when they do not come about.
#pragma once

#include <string>

#include <tl/expected.hpp>

#include "client_stub/session/session.hpp"
#include "protocol/transport/frame_receiver.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::client {

struct SessionStartError {
  CUresult result = CUDA_ERROR_SYSTEM_NOT_READY;
  std::string cause;  // one phrase without host and port
};

// Reaches HOST:PORT. Errors: CUDA_ERROR_SYSTEM_NOT_READY.
tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> reach(std::string_view server);

// Shakes hands over a fresh connection; waits at most kHandshakeTimeoutMs for the server's preface, and 30 s for a worker to begin the
// session. `receiver` is positioned behind the welcome.
// Errors: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH for another protocol version, else CUDA_ERROR_SYSTEM_NOT_READY, or what the server asks for.
tl::expected<ServerFacts, SessionStartError> shake_hands(transport::Transport& transport, transport::FrameReceiver& receiver,
                                                          SessionKind kind = SessionKind::program);

}  // namespace gpuwire::client
