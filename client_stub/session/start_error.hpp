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
  // One phrase without host and port.
  std::string cause;
  // Another attempt may succeed: the server has decided and begun nothing.
  bool again = false;
  // The server has refused, and would refuse again.
  bool refused = false;
  // No server accepts connections there; a restarting server will soon.
  bool absent = false;
  // The program would have to wait, which it has ruled out.
  bool full = false;
  // The server has ended the session that it had just begun; another attempt would begin another.
  bool ended = false;
};

inline tl::unexpected<SessionStartError> not_ready(std::string cause) {
  return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY, std::move(cause)});
}
// The connection has ended before the next step.
inline tl::unexpected<SessionStartError> dropped(std::string cause) {
  return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY, std::move(cause), true});
}

}  // namespace gpuwire::client
