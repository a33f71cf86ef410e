// Initialisation, versions and entry points of the driver.
#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>

#include "client/custom.hpp"
#include "client/symbols.hpp"
#include "client_stub/driver/calls/call/graphics_interop.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/state/session/lifecycle.hpp"
#include "client_stub/driver/process/process.hpp"
#include "protocol/cuda_abi/proc_address.hpp"

namespace gpuwire::client {

CUresult hand::cuInit(unsigned int flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  return initialise_process();
}

CUresult hand::cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = driver_version();
  return CUDA_SUCCESS;
}

CUresult hand::cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (!process()) return absent_process();
  if (!mode) return CUDA_ERROR_INVALID_VALUE;
  *mode = process()->loads_eagerly ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

namespace {

void* address_in(std::span<const ExportedSymbol> symbols, std::string_view symbol) noexcept {
  auto found = std::lower_bound(
      symbols.begin(), symbols.end(), symbol,
      [](const ExportedSymbol& row, std::string_view name) { return std::string_view(row.name) < name; });
  return found != symbols.end() && std::string_view(found->name) == symbol ? found->address : nullptr;
}

void* exported_address(std::string_view symbol) noexcept {
  void* address = address_in(exported_symbols(), symbol);
  return address ? address : address_in(graphics_symbols(), symbol);
}

// The oldest driver that a server works with (docs/install.md).
constexpr int kDriverVersionMin = 12000;

// Logs that the program asks for a newer CUDA version than is available. Logs once per process, because cudart looks up
// hundreds of symbols.
void report_newer_program(int asked, int known) noexcept {
  static constinit std::atomic_flag said;
  if (said.test_and_set(std::memory_order_relaxed)) return;
  auto text = [](int version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); };
  const bool servers = server_driver_version() == known;
  try {
    const std::string why = servers ? ", but the server's driver offers CUDA " + text(known)
                                    : ", but this client offers CUDA " + text(known);
    log_stderr("the program asks for CUDA " + text(asked) + why +
               (servers ? ": it needs a newer driver there" : ": it needs a newer gpuwire"));
  } catch (...) {  // no memory
  }
}

}  // namespace

CUresult hand::cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                   CUdriverProcAddressQueryResult* status) {
  if (!symbol || !function) return CUDA_ERROR_INVALID_VALUE;
  // Every server's driver has the functions of the oldest version, so the client answers for them without a server.
  int known = version <= kDriverVersionMin ? kDriverVersionMin : driver_version();
  // A program of a newer minor version runs, too, so it is not reported (CUDA compatibility guide, "Minor version
  // compatibility").
  if (version / 1000 > known / 1000) report_newer_program(version, known);
  cuda_abi::ProcAddress answer = cuda_abi::resolve_proc_address(symbol, version, flags, known);
  if (answer.result) return answer.result;
  *function = answer.symbol ? exported_address(answer.symbol) : nullptr;
  // A symbol of a newer library of NVIDIA's, or with an unknown name, is missing in this driver.
  if (answer.symbol && !*function) answer.status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  if (status) *status = answer.status;
  return CUDA_SUCCESS;
}

// The first form has no status parameter; its result reports a missing symbol instead (CUDA 11.3, driver API).
CUresult hand::cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  CUresult result = custom::cuGetProcAddress_v2(symbol, function, version, flags, &status);
  if (result) return result;
  return status == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace gpuwire::client
