// A user's queries to a server about the user's own tenant.
#pragma once

#include <string>
#include <string_view>

#include <cuda.h>

#include "client_stub/session/start_error.hpp"

namespace gpuwire::client {

// The error of a server without tenants.
inline constexpr const char* kAnswersNoQueries = "the server does not answer queries";

// `query`: as in schema/login.capnp. Begins no session. On failure `error` gets one line that names host and cause.
CUresult ask_server(std::string_view server, const std::string& query, std::string& answer, std::string& error);

// As above, but the cause has neither host nor port. CUDA_SUCCESS: `answer` is set.
SessionStartError ask_for_answer(std::string_view server, const std::string& query, std::string& answer);

}  // namespace gpuwire::client
