// The frame around every exported driver function: the boundary with the program (call_frame.hpp), trace and
// statistics. No exception leaves it.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "client_stub/driver/process/call_class.hpp"
#include "client_stub/driver/process/call_frame.hpp"
#include "client_stub/driver/process/entry_steps.hpp"

namespace gpuwire::client {

// Reads GPUWIRE_TRACE and GPUWIRE_PROFILE_FILE, which name files, and GPUWIRE_STATS, which requests a summary at the
// end. Called once, when the library is loaded.
void observe_from_environment() noexcept;

// The generated function that formats the arguments of a call into `out`.
using ArgumentPrinter = void (*)(const void* arguments, char* out, unsigned out_bytes);
// The slow path of a call, out of line. observe_begin() returns the time of the call's beginning in nanoseconds;
// observe_end() counts the call, and writes a trace line if tracing is on.
uint64_t observe_begin() noexcept;
void observe_end(uint64_t started, const char* name, CallClass call_class, CUresult result, ArgumentPrinter print,
                 const void* arguments) noexcept;

// Keeps the managed memory to which a call's arguments point accessible while the call runs, because accesses under a
// lock must not fault. `arguments` points to a trace::Arguments object.
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

// Writes the output of device code. Runs when a call that waits is about to return. Out of line.
void write_device_output() noexcept;

// Stores the error in the error log and calls the program's callbacks. Runs when a call is about to return the error to
// the program. Out of line.
void note_failure(const char* name, CUresult result) noexcept;

// Returns false for success, for results that are answers, and for the error that exit handlers get when the driver has
// ended.
constexpr bool is_failure(CUresult result) noexcept {
  return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY && result != CUDA_ERROR_DEINITIALIZED;
}

// Runs the body, maps exceptions to CUDA_ERROR_UNKNOWN, and writes the output of device code after a call that waits.
template <class Body>
inline CUresult run_caught(CallClass call_class, Body&& body) noexcept {
  CUresult result = CUDA_ERROR_UNKNOWN;
  try {
    result = body();
  } catch (...) {}
  if (call_class == CallClass::called) write_device_output();
  return result;
}

// Runs the body with trace and statistics. Precondition: the thread is in a CallFrame.
template <class Body>
inline CUresult run_body(const char* name, CallClass call_class, ArgumentPrinter print, const void* arguments,
                         Body&& body) noexcept {
  const uint8_t entry = g_entry.load(std::memory_order_relaxed);
  CUresult result;
  if (entry == 0) [[likely]] {
    result = run_caught(call_class, body);
  } else {
    const HeldArguments held(entry, arguments);
    const bool observed = (entry & kObserved) != 0;
    const uint64_t started = observed ? observe_begin() : 0;
    result = run_caught(call_class, body);
    if (observed) observe_end(started, name, call_class, result, print, arguments);
  }
  if (is_failure(result)) [[unlikely]]
    note_failure(name, result);
  return result;
}

// Runs the body in a CallFrame. The function is not noexcept, because the thread may be cancelled in
// CallFrame::leave().
template <class Body>
inline CUresult run_entry(const char* name, CallClass call_class, ArgumentPrinter print, const void* arguments,
                          Body&& body) {
  CallFrame frame;
  const CUresult result = run_body(name, call_class, print, arguments, body);
  frame.leave();
  return result;
}

}  // namespace gpuwire::client
