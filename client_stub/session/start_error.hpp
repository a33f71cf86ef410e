// Why a session did not begin.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include <cuda.h>
#include <tl/expected.hpp>

#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

// The bound of each answer of a server before a session.
inline constexpr std::chrono::milliseconds kAnswerTimeout{wire::kHandshakeTimeoutMs};

struct SessionStartError {
  CUresult result = CUDA_ERROR_SYSTEM_NOT_READY;
  std::string cause;     // one phrase without host and port
  bool again = false;    // another attempt may succeed: the server has decided and begun nothing
  bool refused = false;  // the server has refused, and would refuse again
  bool absent = false;   // no server accepts connections there; a restarting server will soon
  bool full = false;     // the program would have to wait, which it has ruled out
  bool ended = false;    // the server has ended the session that it had just begun; another attempt would begin another
};

inline tl::unexpected<SessionStartError> not_ready(std::string cause) {
  return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY, std::move(cause)});
}
// The connection has ended before the next step.
inline tl::unexpected<SessionStartError> dropped(std::string cause) {
  return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY, std::move(cause), true});
}

}  // namespace gpuwire::client
