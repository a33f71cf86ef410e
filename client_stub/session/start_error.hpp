// Why a session did not begin.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include <cuda.h>
#include <tl/expected.hpp>

#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

// How long a server may take for each answer before a session.
inline constexpr std::chrono::milliseconds kAnswerTimeout{wire::kHandshakeTimeoutMs};

struct SessionStartError {
  CUresult result = CUDA_ERROR_SYSTEM_NOT_READY;
  std::string cause;     // one phrase without host and port
  bool again = false;    // another attempt may fare better: nothing was decided, and nothing was begun
  bool refused = false;  // the server has answered, and would answer the same again
  bool absent = false;   // nobody takes connections there: a server that is started again will in a moment
  bool full = false;     // the program would have to wait, and is not to
};

inline tl::unexpected<SessionStartError> not_ready(std::string cause) {
  return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY, std::move(cause)});
}
// The connection has ended where it should go on.
inline tl::unexpected<SessionStartError> dropped(std::string cause) {
  return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY, std::move(cause), true});
}

}  // namespace gpuwire::client
