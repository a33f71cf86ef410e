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

// Runs body(Context*) on the current context, even if it has a fault, or with null if none is current.
template <typename Body>
CUresult with_any_context_or_none(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return with_driver(
      [&]() -> CUresult {
        const auto slot = current_slot();
        const auto context = slot == nullptr ? nullptr : slot->live();
        const bool destroyed = slot != nullptr && context == nullptr;
        return destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : body(context.get());
      },
      function);
}

// Runs body(Context*) on the current context, or with null if none is current, or returns the context's fault. For the
// few calls whose arguments are checked before a missing context, but not before a fault (measured on driver 580).
template <typename Body>
CUresult with_context_or_none(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return with_any_context_or_none(
      [&](Context* context) -> CUresult {
        const CUresult fault = context == nullptr ? CUDA_SUCCESS : context->fault();
        return fault != CUDA_SUCCESS ? fault : body(context);
      },
      function);
}

// Runs body(Context&) on the current context, even if it has a fault.
template <typename Body>
CUresult with_any_context(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return with_any_context_or_none(
      [&](Context* context) { return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : body(*context); }, function);
}

// Runs body(Context&) on the current context, or returns the context's fault.
template <typename Body>
CUresult with_context(Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return with_context_or_none(
      [&](Context* context) { return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : body(*context); }, function);
}

// --- the context that an object belongs to; null if it belongs to none, or the context has ended

inline std::shared_ptr<Context> context_of(CUmodule handle) {
  const auto module = driver().modules.find(handle);
  return module == nullptr ? nullptr : module->context().lock();
}
inline std::shared_ptr<Context> context_of(CUfunction handle) {
  const auto function = driver().functions.find(handle);
  const auto module = function == nullptr ? nullptr : function->module.lock();
  return module == nullptr ? nullptr : module->context().lock();
}
inline std::shared_ptr<Context> context_of(CUstream handle) {
  const auto stream = driver().streams.find(handle);
  return stream == nullptr ? nullptr : stream->context.lock();
}
inline std::shared_ptr<Context> context_of(CUdeviceptr address) {
  const auto range = driver().memory.find(address);
  const auto slot = range && !range->in_pool() ? driver().contexts.find(range->context) : nullptr;
  return slot == nullptr ? nullptr : slot->live();
}

// Runs body(Context&) like with_context(). Without a current context it runs in that of `object` (measured on driver
// 580).
template <typename Object, typename Body>
CUresult with_context_of(Object object, Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  return with_context_or_none(
      [&](Context* current) -> CUresult {
        if (current != nullptr) {
          return body(*current);
        }
        const std::shared_ptr<Context> own = context_of(object);
        const CUresult fault = own == nullptr ? CUDA_ERROR_INVALID_CONTEXT : own->fault();
        return fault != CUDA_SUCCESS ? fault : body(*own);
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

// Runs `body` in the same way, but checks the arguments first, as with_arguments_first() does.
template <typename Object, typename Check, typename Body>
CUresult with_arguments_first_of(Object object, Check&& check, Body&& body,
                                 const char* function = __builtin_FUNCTION()) noexcept {
  const CUresult wrong = with_driver([&]() -> CUresult { return check(); }, function);
  return wrong != CUDA_SUCCESS ? wrong : with_context_of(object, std::forward<Body>(body), function);
}

// Runs body(Context&, Stream&) on the stream and its context.
template <typename Body>
CUresult on_stream(Context& current, CUstream handle, Body&& body) {
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
}
template <typename Body>
CUresult with_stream(CUstream handle, Body&& body) noexcept {
  return with_context([&](Context& current) { return on_stream(current, handle, body); });
}

// Runs `body` like with_stream(), but needs no current context if the program has created the stream (measured on
// driver 580).
template <typename Body>
CUresult with_own_stream(CUstream handle, Body&& body) noexcept {
  return with_context_of(handle, [&](Context& current) { return on_stream(current, handle, body); });
}

// Returns the result of a call for which an invalid value (`right` is false) is reported before a fault and before a
// missing context (measured on driver 580).
inline CUresult value_first(bool right, CUresult result) noexcept {
  const bool later = cuda_abi::is_sticky(result) || result == CUDA_ERROR_INVALID_CONTEXT;
  return !right && later ? CUDA_ERROR_INVALID_VALUE : result;
}

// Runs `body` like with_stream(), unless `right` is false.
template <typename Body>
CUresult with_stream_if(bool right, CUstream handle, Body&& body) noexcept {
  return value_first(right, with_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
                       return right ? body(context, stream) : CUDA_ERROR_INVALID_VALUE;
                     }));
}

// Runs `body` like with_own_stream(), for a query whose result is written to `out`, which may not be null.
template <typename Body>
CUresult with_asked_stream(CUstream handle, const void* out, Body&& body) noexcept {
  return value_first(out != nullptr, with_own_stream(handle, [&](Context& context, Stream& stream) -> CUresult {
                       return out != nullptr ? body(context, stream) : CUDA_ERROR_INVALID_VALUE;
                     }));
}

}  // namespace gpuwire::software_device
