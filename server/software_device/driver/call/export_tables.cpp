// cuGetExportTable, with the tables that the client's stub uses, too.
#include <cstdio>
#include <cstring>

#include "protocol/cuda_abi/private_tables.hpp"
#include "server/software_device/driver/call/api.hpp"

using namespace gpuwire;
using namespace gpuwire::software_device;

namespace {

CUresult primary_context_handle(CUcontext* out, CUdevice ordinal) {
  return with_driver([&]() -> CUresult {
    const Device* const device = driver().device(ordinal);
    if (device == nullptr) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    *out = device->primary->handle;
    return CUDA_SUCCESS;
  });
}

CUresult context_id(CUcontext handle, unsigned long long* id) {
  *id = 0;
  return handle == nullptr ? CUDA_SUCCESS : cuCtxGetId(handle, id);
}

CUresult stream_id(CUcontext handle, CUstream stream, unsigned long long* id) {
  return with_driver([&]() -> CUresult {
    const auto slot = handle == nullptr ? current_slot() : driver().contexts.find(handle);
    const auto context = slot == nullptr ? nullptr : slot->live();
    const auto found = context == nullptr ? nullptr : context->stream(stream);
    if (found == nullptr) {
      return context == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
    }
    *id = found->id;
    return CUDA_SUCCESS;
  });
}

CUresult module_functions(CUcontext, CUmodule handle, std::vector<cuda_abi::ModuleFunction>* out) {
  return with_driver([&]() -> CUresult {
    const auto module = driver().modules.find(handle);
    if (module == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    for (size_t i = 0; i < module->program().kernels().size(); ++i) {
      const auto function = module->function(i);
      out->push_back({function->handle, function->info().name.c_str()});
    }
    return CUDA_SUCCESS;
  });
}

CUresult self_test_devices(std::vector<cuda_abi::SelfTestDevice>* out) {
  return with_driver([&]() -> CUresult {
    for (const auto& device : driver().devices) {
      cuda_abi::SelfTestDevice row{.pci_bus = device->pci_bus};
      std::memcpy(row.uuid.data(), device->uuid.bytes, row.uuid.size());
      out->push_back(row);
    }
    return CUDA_SUCCESS;
  });
}

void report(const char* line) { std::fprintf(stderr, "gpuwire software device: %s\n", line); }

constexpr cuda_abi::PrivateTableHost kHost{
    .driver_version = driver_version,
    .primary_context_handle = primary_context_handle,
    .current_context = cuCtxGetCurrent,
    .context_id = context_id,
    .stream_id = stream_id,
    .module_functions = module_functions,
    .load_module = cuModuleLoadData,
    .self_test_devices = self_test_devices,
    .report = report,
};

}  // namespace

// cudart calls this before cuInit.
CUresult cuGetExportTable(const void** table, const CUuuid* id) { return cuda_abi::get_export_table(kHost, table, id); }
