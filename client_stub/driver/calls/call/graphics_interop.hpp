// The functions by which a program shares drawings of OpenGL, EGL and VDPAU: they exist, since programs are linked
// against them, and refuse, since a drawing on the client's machine is not on the server's.
#pragma once

#include <span>

#include "client/symbols.hpp"

namespace gpuwire::client {

// All of them, sorted by name. protocol/api describes those that cuda.h declares.
std::span<const ExportedSymbol> graphics_symbols() noexcept;

}  // namespace gpuwire::client
