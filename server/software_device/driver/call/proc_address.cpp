// cuGetProcAddress, with the rules that the client's stub uses, too, and this library's symbols.
#include "protocol/cuda_abi/proc_address.hpp"

#include <dlfcn.h>

#include "server/software_device/driver/call/driver_state.hpp"

namespace {

// Returns this library, found by an address inside it, because a program may have loaded another libcuda as well.
void* own_library() noexcept {
  static void* const handle = [] {
    Dl_info info{};
    return dladdr(reinterpret_cast<void*>(&cuDriverGetVersion), &info) != 0
               ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)
               : nullptr;
  }();
  return handle;
}

}  // namespace

CUresult cuGetProcAddress_v2(const char* name, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto answer =
      gpuwire::cuda_abi::resolve_proc_address(name, version, flags, gpuwire::software_device::driver_version());
  if (answer.result != CUDA_SUCCESS) {
    return answer.result;
  }
  *function = answer.symbol != nullptr && own_library() != nullptr ? dlsym(own_library(), answer.symbol) : nullptr;
  if (status != nullptr) {
    *status = *function == nullptr && answer.symbol != nullptr ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND : answer.status;
  }
  return CUDA_SUCCESS;
}

// The first version has no status that says why there is no function.
CUresult cuGetProcAddress(const char* name, void** function, int version, cuuint64_t flags) {
  const CUresult result = cuGetProcAddress_v2(name, function, version, flags, nullptr);
  return result == CUDA_SUCCESS && *function == nullptr ? CUDA_ERROR_NOT_FOUND : result;
}
