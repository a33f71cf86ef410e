// toml++ without exceptions, compiled once (cmake/header_libraries/toml.cpp). Every file includes it through this
// header, so that all of them compile the same declarations.
#pragma once

#define TOML_HEADER_ONLY 0
#define TOML_EXCEPTIONS 0
// The parser asserts conditions of a key that it afterwards checks and reports as an error. With assertions, a typing
// error would end a server that reloads its file.
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>
