// The queries with which a user asks a server about the user's own tenant.
#pragma once

#include <string>
#include <string_view>

#include <cuda.h>

#include "client_stub/session/start_error.hpp"

namespace gpuwire::client {

// For a server that authenticates nobody.
inline constexpr const char* kAnswersNoQueries = "the server does not answer queries";

// `query` as in schema/login.capnp. Begins no session. On failure `error` gets one line that names host and cause.
CUresult ask_server(std::string_view server, const std::string& query, std::string& answer, std::string& error);

// The same; the error has neither host nor port in its cause. CUDA_SUCCESS: there is an answer.
SessionStartError ask_for_answer(std::string_view server, const std::string& query, std::string& answer);

}  // namespace gpuwire::client
