// Session::connect() by the code of the installation's libcuda.so.1. A target that links this library in place of
// gpuwire_client_session gives the library's path.
#pragma once

#include <string>

namespace gpuwire::client {

// The path of libcuda.so.1. Defined by the program or library that uses this one.
std::string session_library();

}  // namespace gpuwire::client
