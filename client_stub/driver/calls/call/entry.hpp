// The frame around every exported driver function: the boundary with the program (call_frame.hpp), trace and
// statistics, and no exception ever leaves it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "client_stub/driver/process/call_class.hpp"
#include "client_stub/driver/process/call_frame.hpp"
#include "client_stub/driver/process/entry_steps.hpp"

namespace gpuwire::client {

// Called once, when the library is loaded: GPUWIRE_TRACE and GPUWIRE_PROFILE_FILE name files, GPUWIRE_STATS asks for an
// account at the end.
void observe_from_environment() noexcept;

// Slow path, out of line: counts the call, and writes a trace line if tracing is on. `print` formats the arguments
// (generated).
using ArgumentPrinter = void (*)(const void* arguments, char* out, unsigned out_bytes);
uint64_t observe_begin() noexcept;
void observe_end(uint64_t started, const char* name, CallClass call_class, CUresult result, ArgumentPrinter print,
                 const void* arguments) noexcept;

// Keeps managed memory that a call's arguments point to accessible while the call runs: the call's accesses under its
// locks must not fault. `arguments`: a trace::Arguments object.
class HeldArguments {
 public:
  HeldArguments(uint8_t entry, const void* arguments) noexcept {
    if (entry & kManaged) hold(arguments);
  }
  HeldArguments(const HeldArguments&) = delete;
  HeldArguments& operator=(const HeldArguments&) = delete;
  ~HeldArguments() {
    if (count_) release();
  }

 private:
  static constexpr unsigned kHeldMax = 32;
  void hold(const void* arguments) noexcept;
  void release() noexcept;

  uint64_t held_[kHeldMax];
  unsigned count_ = 0;
};

// A call that waits is about to return: writes the output of device code. Out of line.
void write_device_output() noexcept;

// A call is about to return an error to the program: stores it in the error log and calls the program's callbacks. Out
// of line.
void note_failure(const char* name, CUresult result) noexcept;

// Results that are answers rather than failures, and the error for exit handlers when the driver has gone.
constexpr bool is_failure(CUresult result) noexcept {
  return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && result != CUDA_ERROR_DEINITIALIZED;
}

// Inside the boundary.
template <class Body>
inline CUresult run_body(const char* name, CallClass call_class, ArgumentPrinter print, const void* arguments,
                         Body&& body) noexcept {
  uint8_t entry = g_entry.load(std::memory_order_relaxed);
  if (entry == 0) [[likely]] {
    CUresult result = CUDA_ERROR_UNKNOWN;
    try {
      result = body();
    } catch (...) {}
    if (call_class == CallClass::called) write_device_output();
    if (is_failure(result)) [[unlikely]]
      note_failure(name, result);
    return result;
  }
  HeldArguments held(entry, arguments);
  if (!(entry & kObserved)) {
    CUresult result = CUDA_ERROR_UNKNOWN;
    try {
      result = body();
    } catch (...) {}
    if (call_class == CallClass::called) write_device_output();
    if (is_failure(result)) [[unlikely]]
      note_failure(name, result);
    return result;
  }
  uint64_t started = observe_begin();
  CUresult result = CUDA_ERROR_UNKNOWN;
  try {
    result = body();
  } catch (...) {}
  if (call_class == CallClass::called) write_device_output();
  observe_end(started, name, call_class, result, print, arguments);
  if (is_failure(result)) note_failure(name, result);
  return result;
}

// Not noexcept: CallFrame::leave() may be where the thread ends.
template <class Body>
inline CUresult run_entry(const char* name, CallClass call_class, ArgumentPrinter print, const void* arguments,
                          Body&& body) {
  CallFrame frame;
  const CUresult result = run_body(name, call_class, print, arguments, body);
  frame.leave();
  return result;
}

}  // namespace gpuwire::client
