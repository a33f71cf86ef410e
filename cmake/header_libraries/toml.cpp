// toml++, compiled once (fmt.cpp says why).
#define TOML_IMPLEMENTATION
#include "protocol/units/toml.hpp"
