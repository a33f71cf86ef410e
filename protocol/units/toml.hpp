// toml++ without exceptions, compiled once (cmake/header_libraries/toml.cpp). Every file includes it through this
// header, so that all of them compile the same declarations.
#pragma once

#define TOML_HEADER_ONLY 0
#define TOML_EXCEPTIONS 0
// The parser asserts conditions of a key that it then checks and reports as a mistake: a typing error would end a
// server that reads its file again.
#define TOML_ASSERT(condition) static_cast<void>(0)
#include <toml++/toml.h>
