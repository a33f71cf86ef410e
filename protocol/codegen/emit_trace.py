"""generated/client/trace.{hpp,cpp}: prints the arguments of an exported function."""

from text import banner


def header():
    return banner() + """// Argument printing for traces: one printer for all functions, driven by the layout that each exported function hands over.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace gpuwire::client::trace {

// memory: a pointer to the program's memory, which the call reads or writes.
enum class Format : uint8_t { number, signed_number, real, pointer, memory, string, opaque };

struct Parameter {
  const char* name;
  Format format;
};

struct Layout {
  const Parameter* parameters;
  unsigned count;
};

// The arguments of one call, each widened to a word.
template <unsigned kCount>
struct Arguments {
  const Layout* layout;
  uint64_t words[kCount];
};

template <class T>
inline uint64_t word(const T& value) noexcept {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<uint64_t>(value);
  } else if constexpr (std::is_enum_v<T> || std::is_integral_v<T>) {
    return static_cast<uint64_t>(value);
  } else {
    uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value < sizeof bits ? sizeof value : sizeof bits);
    return bits;
  }
}

// An ArgumentPrinter (client_stub/driver/calls/call/entry.hpp) over an Arguments object: "name=value, name=value", cut to fit, zero-terminated.
void print(const void* arguments, char* out, unsigned out_bytes);

}  // namespace gpuwire::client::trace
"""


def source():
    return banner() + """#include "client/trace.hpp"

#include <cstdio>

namespace gpuwire::client::trace {

namespace {

constexpr int kStringBytesMax = 96;

int print_one(Format format, uint64_t word, char* out, unsigned out_bytes) {
  switch (format) {
    case Format::number: return std::snprintf(out, out_bytes, "%llu", static_cast<unsigned long long>(word));
    case Format::signed_number: return std::snprintf(out, out_bytes, "%d", static_cast<int>(word));
    case Format::real: {
      float value = 0;
      std::memcpy(&value, &word, sizeof value);
      return std::snprintf(out, out_bytes, "%g", static_cast<double>(value));
    }
    case Format::string:
      if (word) return std::snprintf(out, out_bytes, "\\"%.*s\\"", kStringBytesMax, reinterpret_cast<const char*>(word));
      [[fallthrough]];
    case Format::memory:
    case Format::pointer: return std::snprintf(out, out_bytes, "0x%llx", static_cast<unsigned long long>(word));
    case Format::opaque: return std::snprintf(out, out_bytes, "{...}");
  }
  return 0;
}

}  // namespace

void print(const void* arguments, char* out, unsigned out_bytes) {
  if (!out_bytes) return;
  const auto& call = *static_cast<const Arguments<1>*>(arguments);
  const uint64_t* words = call.words;
  unsigned used = 0;
  out[0] = 0;
  for (unsigned i = 0; i < call.layout->count; ++i) {
    const Parameter& parameter = call.layout->parameters[i];
    int written = std::snprintf(out + used, out_bytes - used, "%s%s=", i ? ", " : "", parameter.name);
    if (written < 0 || (used += unsigned(written)) >= out_bytes) return;
    written = print_one(parameter.format, words[i], out + used, out_bytes - used);
    if (written < 0 || (used += unsigned(written)) >= out_bytes) return;
  }
}

}  // namespace gpuwire::client::trace
"""
