// Why a session did not begin.
#pragma once

#include <string>
#include <utility>

#include <cuda.h>
#include <tl/expected.hpp>

namespace gpuwire::client {

struct SessionStartError {
  CUresult result = CUDA_ERROR_SYSTEM_NOT_READY;
  std::string cause;     // one phrase without host and port
  bool again = false;    // another attempt may fare better: nothing was decided, and nothing was begun
  bool refused = false;  // the server has answered, and would answer the same again
};

inline tl::unexpected<SessionStartError> not_ready(std::string cause) {
  return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY, std::move(cause)});
}
// The connection has ended where it should go on.
inline tl::unexpected<SessionStartError> dropped(std::string cause) {
  return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY, std::move(cause), true});
}

}  // namespace gpuwire::client
