#include "protocol/cuda_abi/proc_address.hpp"

#include <algorithm>
#include <iterator>

namespace gpuwire::cuda_abi {
namespace {

struct Step {
  int version;
  const char* symbol;
};

struct Name {
  std::string_view name;
  uint16_t legacy_first, legacy_count;
  uint16_t per_thread_first, per_thread_count;
};

#include "protocol/cuda_abi/proc_address_table.inc"

}  // namespace

ProcAddress resolve_proc_address(std::string_view name, int version, cuuint64_t flags, int driver_version) noexcept {
  constexpr cuuint64_t kKnownFlags = CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  if (version > driver_version || (flags & ~kKnownFlags) != 0) {
    return {CUDA_ERROR_INVALID_VALUE, nullptr, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND};
  }
  const auto* const end = std::end(kNames);
  const auto* const found = std::lower_bound(std::begin(kNames), end, name,
                                             [](const Name& row, std::string_view key) { return row.name < key; });
  if (found == end || found->name != name) {
    return {CUDA_SUCCESS, nullptr, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND};
  }
  const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  const Step* const steps = kSteps + (per_thread ? found->per_thread_first : found->legacy_first);
  ProcAddress answer{CUDA_SUCCESS, nullptr, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT};
  for (int i = 0; i < (per_thread ? found->per_thread_count : found->legacy_count); ++i) {
    if (steps[i].version <= version) {
      answer = {CUDA_SUCCESS, steps[i].symbol, CU_GET_PROC_ADDRESS_SUCCESS};
    }
  }
  return answer;
}

}  // namespace gpuwire::cuda_abi
