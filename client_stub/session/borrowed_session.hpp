// Session::connect() with the code of the installation's libcuda.so.1. A target that links this library instead of
// gpuwire_client_session defines the library's path.
#pragma once

#include <string>

namespace gpuwire::client {

// Returns the path of libcuda.so.1. The program or library that uses this one defines the function.
std::string session_library();

}  // namespace gpuwire::client
