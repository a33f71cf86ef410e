// The frame around every exported driver function: trace and statistics, and no exception ever leaves it.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>

namespace gpuwire::client {

enum class CallClass : uint8_t { local, posted, called };

// Set once at start from GPUWIRE_TRACE and GPUWIRE_STATS, before the first call returns; read relaxed: nothing else is published through it.
extern std::atomic<bool> g_observed;

// Called once, when the library is loaded: GPUWIRE_TRACE names a file, GPUWIRE_STATS asks for an account at the end.
void observe_from_environment() noexcept;

// Slow path, out of line: counts the call, and writes a trace line if tracing is on. `print` formats the arguments (generated).
using ArgumentPrinter = void (*)(const void* arguments, char* out, unsigned out_bytes);
uint64_t observe_begin() noexcept;
void observe_end(uint64_t started, const char* name, CallClass call_class, CUresult result, ArgumentPrinter print, const void* arguments) noexcept;

struct Process;
// The account of GPUWIRE_STATS on standard error, if it was asked for. Once, at the program's end.
void print_account(const Process& process) noexcept;

template <class Body>
inline CUresult run_entry(const char* name, CallClass call_class, ArgumentPrinter print, const void* arguments, Body&& body) noexcept {
  if (!g_observed.load(std::memory_order_relaxed)) [[likely]] {
    try {
      return body();
    } catch (...) {
      return CUDA_ERROR_UNKNOWN;
    }
  }
  uint64_t started = observe_begin();
  CUresult result = CUDA_ERROR_UNKNOWN;
  try {
    result = body();
  } catch (...) {
  }
  observe_end(started, name, call_class, result, print, arguments);
  return result;
}

}  // namespace gpuwire::client
