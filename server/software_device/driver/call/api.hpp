// The common entry code of exported functions: it checks that the driver is initialised and the context alive, and lets
// no exception cross the boundary.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include <cuda.h>

#include "protocol/cuda_abi/sticky.hpp"
#include "server/software_device/driver/stream/capture_rules.hpp"
#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/call/refusal.hpp"

namespace gpuwire::software_device {

// Runs `body` if the driver is initialised and no capture forbids the function. Returns CUDA_ERROR_OUT_OF_MEMORY if
// host memory is short. `function`: the calling exported function.
template <typename Body>
CUresult with_driver(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  if (const CUresult status = driver_status(); status != CUDA_SUCCESS) {
    return status;
  }
  try {
    const ApiGate::Call call(driver().checkpoint.gate);
    if (const CUresult refused = permit_function(function); refused != CUDA_SUCCESS) {
      return refused;
    }
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception&) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// Runs body(Context&) on the current context, even if it has a fault.
template <typename Body>
CUresult with_any_context(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return with_driver(
      [&]() -> CUresult {
        const auto slot = current_slot();
        if (slot == nullptr) {
          return CUDA_ERROR_INVALID_CONTEXT;
        }
        const auto context = slot->live();
        return context == nullptr ? CUDA_ERROR_CONTEXT_IS_DESTROYED : body(*context);
      },
      function);
}

// Runs body(Context&) on the current context, or returns the context's fault.
template <typename Body>
CUresult with_context(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return with_any_context(
      [&](Context& context) -> CUresult {
        const CUresult fault = context.fault();
        return fault != CUDA_SUCCESS ? fault : body(context);
      },
      function);
}

// The implementation of a function that is not supported and would need a context: the context's fault is returned
// first.
inline CUresult not_offered_in_a_context(const char* function = __builtin_FUNCTION()) noexcept {
  return with_context([&](Context&) { return not_supported(function); }, function);
}

// Runs `body` like with_context(), for the few calls whose arguments are checked before the context and its fault
// (measured on driver 580): `check` returns their errors.
template <typename Check, typename Body>
CUresult with_arguments_first(Check&& check, Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  const CUresult wrong = with_driver([&]() -> CUresult { return check(); }, function);
  return wrong != CUDA_SUCCESS ? wrong : with_context(std::forward<Body>(body), function);
}

// Runs body(Context&, Stream&) on the stream and its context.
template <typename Body>
CUresult with_stream(CUstream handle, Body&& body) noexcept {
  return with_context([&](Context& current) -> CUresult {
    const auto stream = current.stream(handle);
    if (stream == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    const auto owner = stream->context.lock();
    if (owner == nullptr || (stream->green != nullptr && stream->green->live() != owner)) {
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    if (const CUresult fault = owner->fault(); fault != CUDA_SUCCESS) {
      return fault;
    }
    const CUresult forbidden = permit_stream_call(*owner, *stream);
    return forbidden != CUDA_SUCCESS ? forbidden : body(*owner, *stream);
  });
}

// Runs `body` like with_stream(), but an invalid value (`right` is false) is reported before a fault (measured on
// driver 580).
template <typename Body>
CUresult with_stream_if(bool right, CUstream handle, Body&& body) noexcept {
  const CUresult result = with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
    return right ? body(context, stream) : CUDA_ERROR_INVALID_VALUE;
  });
  const bool later = cuda_abi::is_sticky(result) || result == CUDA_ERROR_INVALID_CONTEXT;
  return !right && later ? CUDA_ERROR_INVALID_VALUE : result;
}

// Runs `body` like with_stream_if(), for a query whose result is written to `out`.
template <typename Body>
CUresult with_asked_stream(CUstream handle, const void* out, Body&& body) noexcept {
  return with_stream_if(out != nullptr, handle, std::forward<Body>(body));
}

}  // namespace gpuwire::software_device
