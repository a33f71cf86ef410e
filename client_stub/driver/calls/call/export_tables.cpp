// The private tables that cudart, cuBLAS and cuFFT request. protocol/cuda_abi builds the tables on the functions of
// this file.
#include <cstring>

#include "client/custom.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/process/tools.hpp"
#include "client_stub/session/ask.hpp"
#include "client_stub/session/session_table.hpp"
#include "client_stub/session/several_servers.hpp"
#include "protocol/cuda_abi/private_tables.hpp"
#include "protocol/wire/handle.hpp"

namespace gpuwire::client {
namespace {

CUresult primary_context_handle(CUcontext* context, CUdevice ordinal) {
  Process* owner = process();
  if (!owner) return absent_process();
  const Device* device = owner->device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  *context = as_cuda(device->primary);
  return CUDA_SUCCESS;
}

CUresult current_context(CUcontext* context) { return custom::cuCtxGetCurrent(context); }

// Unlike cuCtxGetId, this function stores id 0 for NULL and returns no error.
CUresult context_id(CUcontext context, unsigned long long* id) {
  const ContextState* state = context ? find_context(context) : nullptr;
  *id = state ? state->id : 0;
  return CUDA_SUCCESS;
}

CUresult stream_id(CUcontext context, CUstream stream, unsigned long long* id) {
  auto handle = reinterpret_cast<uint64_t>(stream);
  if (handle > wire::kStreamLegacy) return custom::cuStreamGetId(stream, id, false);
  CUresult error;
  const ContextState* state = context_or_current(context, error);
  if (state) *id = state->legacy.id;
  return error;
}

CUresult module_functions(CUcontext, CUmodule module, std::vector<cuda_abi::ModuleFunction>* functions) {
  unsigned count = 0;
  if (CUresult error = custom::cuModuleGetFunctionCount(&count, module)) return error;
  std::vector<CUfunction> handles(count);
  if (count > 0) {
    if (CUresult error = custom::cuModuleEnumerateFunctions(handles.data(), count, module)) return error;
  }
  for (CUfunction function : handles) {
    const char* name = nullptr;
    custom::cuFuncGetName(&name, function);
    functions->push_back({function, name});
  }
  return CUDA_SUCCESS;
}

CUresult self_test_devices(std::vector<cuda_abi::SelfTestDevice>* devices) {
  Process* owner = process();
  if (!owner) return absent_process();
  for (size_t i = 0; i < owner->devices.size(); ++i) {
    cuda_abi::SelfTestDevice device;
    static_assert(sizeof device.uuid == sizeof owner->devices[i].facts->uuid.bytes);
    std::memcpy(device.uuid.data(), owner->devices[i].facts->uuid.bytes, device.uuid.size());
    custom::cuDeviceGetAttribute(&device.pci_domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, CUdevice(i));
    custom::cuDeviceGetAttribute(&device.pci_bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, CUdevice(i));
    custom::cuDeviceGetAttribute(&device.pci_device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, CUdevice(i));
    devices->push_back(device);
  }
  return CUDA_SUCCESS;
}

// Maps exceptions to an error: the functions above may run out of memory, and the callers of the tables are C code.
template <auto Function, class... Arguments>
CUresult guarded(Arguments... arguments) noexcept {
  try {
    return Function(arguments...);
  } catch (...) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

constexpr cuda_abi::PrivateTableHost kHost{
    .driver_version = driver_version,
    .primary_context_handle = primary_context_handle,
    .current_context = current_context,
    .context_id = context_id,
    .stream_id = guarded<stream_id, CUcontext, CUstream, unsigned long long*>,
    .module_functions = guarded<module_functions, CUcontext, CUmodule, std::vector<cuda_abi::ModuleFunction>*>,
    .load_module = custom::cuModuleLoadData,
    .self_test_devices = guarded<self_test_devices, std::vector<cuda_abi::SelfTestDevice>*>,
    .report = [](const char* line) { log_stderr(line); },
};

// The functions of the session table, which the installation's own libnvidia-ml.so.1 and `gpuwire info` use.
CUresult connect(std::string_view server, NoticeHandler& notices, std::unique_ptr<Session>& session, std::string& error,
                 SessionKind kind) {
  return Session::connect(server, notices, session, error, kind);
}
CUresult ask(std::string_view server, const std::string& query, std::string& answer, std::string& error) {
  return guarded<ask_server, std::string_view, const std::string&, std::string&, std::string&>(server, query, answer,
                                                                                               error);
}
void survey(const std::vector<std::string>& servers, std::vector<ServerOffer>& offers) {
  offers = survey_servers(servers);
}
constexpr SessionTable kSessionTable{.connect = connect, .ask = ask, .survey = survey};

}  // namespace

CUresult hand::cuGetExportTable(const void** table, const CUuuid* id) {
  if (table && id && std::memcmp(id->bytes, kSessionTableId.bytes, sizeof id->bytes) == 0) {
    *table = &kSessionTable;
    return CUDA_SUCCESS;
  }
  CUresult result = cuda_abi::get_export_table(kHost, table, id);
  if (result && id) report_refused_table(id);
  return result;
}

}  // namespace gpuwire::client
