// Why a session did not begin.
#pragma once

#include <string>
#include <utility>

#include <cuda.h>
#include <tl/expected.hpp>

namespace gpuwire::client {

struct SessionStartError {
  CUresult result = CUDA_ERROR_SYSTEM_NOT_READY;
  std::string cause;  // one phrase without host and port
};

inline tl::unexpected<SessionStartError> not_ready(std::string cause) {
  return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY, std::move(cause)});
}

}  // namespace gpuwire::client
