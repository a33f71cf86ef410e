// The options of the driver's compiler and linker, and their logs.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include <capnp/list.h>

#include "schema/session.capnp.h"
#include "server/module_cache/digest.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

// The bytes of each log; both logs fit into a reply.
inline constexpr uint32_t kJitLogBytesMax = 128u << 10;
inline constexpr uint32_t kJitOptionsMax = 64;
// The bound of the driver's compiler threads for one load. The driver compiles on the loading thread (at most
// kModuleTasksMax at a time), and on further threads if a program asks for them: by default as many as the machine has
// cores, which other tenants use, too.
inline constexpr uint64_t kCompilingThreadsMax = 2;

// Reads the digest by which a message names an image.
inline Digest read_digest(capnp::Data::Reader data) {
  Digest digest;
  if (data.size() != digest.size()) throw ProtocolFault{"an image digest of a wrong size"};
  std::copy(data.begin(), data.end(), digest.begin());
  return digest;
}

// The options of a load or a link, with the server's log buffers in place of the program's. The driver may write to the
// buffers and the values until the operation that uses them has ended.
class JitOptions {
 public:
  JitOptions(capnp::List<schema::JitOption>::Reader options, uint32_t error_log_bytes, uint32_t info_log_bytes,
             bool timed = true) {
    if (options.size() > kJitOptionsMax) throw ProtocolFault{"too many options of the compiler"};
    for (auto option : options) {
      if (CUresult error = add(option.getOption(), option.getValue())) result = error;
    }
    reserve(error_log_, error_log_bytes, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
    reserve(info_log_, info_log_bytes, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
    if (!timed) return;
    wall_time_ = names_.size();
    push(CU_JIT_WALL_TIME, nullptr);
  }

  JitOptions(const JitOptions&) = delete;
  JitOptions& operator=(const JitOptions&) = delete;

  // The error of an option that cannot be passed on.
  CUresult result = CUDA_SUCCESS;
  unsigned count() const { return unsigned(names_.size()); }
  CUjit_option* names() { return names_.data(); }
  void** values() { return values_.data(); }

  // Returns 0 if the option was not requested.
  float wall_time_ms() const {
    float ms = 0;
    if (wall_time_ < values_.size())
      // Cuda.h: the option's value is a float.
      std::memcpy(&ms, &values_[wall_time_], sizeof ms);
    return ms;
  }
  static kj::StringPtr text(std::vector<char>& log) {
    if (log.empty()) return "";
    log.back() = 0;
    return {log.data(), std::strlen(log.data())};
  }
  kj::StringPtr error_log() { return text(error_log_); }
  kj::StringPtr info_log() { return text(info_log_); }

 private:
  CUresult add(int option, uint64_t value) {
    switch (option) {
      case CU_JIT_MAX_REGISTERS:
      case CU_JIT_THREADS_PER_BLOCK:
      case CU_JIT_OPTIMIZATION_LEVEL:
      case CU_JIT_TARGET_FROM_CUCONTEXT:
      case CU_JIT_TARGET:
      case CU_JIT_FALLBACK_STRATEGY:
      case CU_JIT_GENERATE_DEBUG_INFO:
      case CU_JIT_LOG_VERBOSE:
      case CU_JIT_GENERATE_LINE_INFO:
      case CU_JIT_CACHE_MODE:
      case CU_JIT_POSITION_INDEPENDENT_CODE:
      case CU_JIT_MIN_CTA_PER_SM:
      case CU_JIT_MAX_THREADS_PER_BLOCK:
      case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
        push(CUjit_option(option), reinterpret_cast<void*>(value));
        return CUDA_SUCCESS;
      case CU_JIT_SPLIT_COMPILE: {  // 0: as many threads as cores
        const uint64_t threads = value == 0 ? kCompilingThreadsMax : std::min(value, kCompilingThreadsMax);
        push(CU_JIT_SPLIT_COMPILE, reinterpret_cast<void*>(uintptr_t(threads)));
        return CUDA_SUCCESS;
      }
      case CU_JIT_WALL_TIME:  // requested in any case
        return CUDA_SUCCESS;
      default:  // other options hold pointers, or do not apply to a load
        return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  void reserve(std::vector<char>& log, uint32_t bytes, CUjit_option buffer, CUjit_option size) {
    if (bytes == 0) return;
    log.assign(std::min(bytes, kJitLogBytesMax), 0);
    push(buffer, log.data());
    push(size, reinterpret_cast<void*>(uintptr_t(log.size())));
  }
  void push(CUjit_option option, void* value) {
    names_.push_back(option);
    values_.push_back(value);
  }

  std::vector<CUjit_option> names_;
  std::vector<void*> values_;
  std::vector<char> error_log_, info_log_;
  // The option's index in values_; beyond the end if it was not requested.
  size_t wall_time_ = size_t(-1);
};

}  // namespace gpuwire::server
