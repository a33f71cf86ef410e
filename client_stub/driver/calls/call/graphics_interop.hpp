// The functions by which a program shares drawings of OpenGL, EGL and VDPAU with CUDA. They exist because programs are
// linked against them; they refuse, because a drawing on the client's machine is not on the server's.
#pragma once

#include <span>

#include "client/symbols.hpp"

namespace gpuwire::client {

// Returns all these functions, sorted by name. protocol/api describes the functions that cuda.h declares.
std::span<const ExportedSymbol> graphics_symbols() noexcept;

}  // namespace gpuwire::client
