// The functions by which a program shares what OpenGL, EGL and VDPAU draw: there, since programs are linked against
// them, and refused, since what is drawn on the client's machine is not on the server's.
#pragma once

#include <span>

#include "client/symbols.hpp"

namespace gpuwire::client {

// All of them, sorted by name. protocol/api describes those that cuda.h declares.
std::span<const ExportedSymbol> graphics_symbols() noexcept;

}  // namespace gpuwire::client
