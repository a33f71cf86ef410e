// What a server tells a user about the user's own tenant.
#pragma once

#include <string>
#include <string_view>

#include <cuda.h>

namespace gpuwire::client {

// `query` as in schema/login.capnp. Begins no session. On failure `error` gets one line that names host and cause.
CUresult ask_server(std::string_view server, const std::string& query, std::string& answer, std::string& error);

}  // namespace gpuwire::client
