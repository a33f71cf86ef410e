// Starting the driver, versions, entry points.
#include <algorithm>
#include <string_view>

#include "client/hand.hpp"
#include "client/symbols.hpp"
#include "client_stub/driver/session/process.hpp"
#include "protocol/cuda_abi/proc_address.hpp"

namespace gpuwire::client {

CUresult hand::cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return initialise_process();
}

CUresult hand::cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

CUresult hand::cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = CU_MODULE_LAZY_LOADING;  // images are sent when something of them is first used
  return CUDA_SUCCESS;
}

namespace {

void* exported_address(std::string_view symbol) noexcept {
  auto symbols = exported_symbols();
  auto found = std::lower_bound(
      symbols.begin(), symbols.end(), symbol,
      [](const ExportedSymbol& row, std::string_view name) { return std::string_view(row.name) < name; });
  return found != symbols.end() && std::string_view(found->name) == symbol ? found->address : nullptr;
}

}  // namespace

CUresult hand::cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                   CUdriverProcAddressQueryResult* status) {
  if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
  cuda_abi::ProcAddress answer = cuda_abi::resolve_proc_address(symbol, version, flags, kDriverVersion);
  if (answer.result) return answer.result;
  *function = answer.symbol ? exported_address(answer.symbol) : nullptr;
  // A symbol of NVIDIA's library that has no meaning here (OpenGL, EGL, VDPAU) is one that this driver does not have.
  if (answer.symbol && !*function) answer.status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (status) *status = answer.status;
  return CUDA_SUCCESS;
}

// The first form has no status; it says the same by its result (CUDA 11.3, driver API).
CUresult hand::cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  CUresult result = hand::cuGetProcAddress_v2(symbol, function, version, flags, &status);
  if (result) return result;
  return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace gpuwire::client
