// Memory and pools that are shared with other processes: the calls.
#include <algorithm>
#include <cstring>
#include <optional>

#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/memory/allocation_handle.hpp"
#include "client_stub/driver/state/memory/shares.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

// Only descriptors can be imported. The other types are of Windows or need a fabric manager.
CUresult check_imported_type(CUmemAllocationHandleType type) {
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_SUCCESS;
  return type == CU_MEM_HANDLE_TYPE_NONE ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult check_exported_type(CUmemAllocationHandleType type) {
  return type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult export_object(const Caller& caller, uint64_t handle, uint64_t flags, void* out) {
  caller.server->posted_uploads.end(caller);
  caller.server->shares.sweep(caller);
  ShareToken token{};
  bool given = false;
  CUresult result = send::call_share_export(*caller.session, caller.context, {.handle = handle, .flags = flags},
                                            [&](schema::ShareExportReply::Reader results) {
                                              auto data = results.getToken();
                                              given = data.size() == token.size();
                                              if (given) std::copy(data.begin(), data.end(), token.begin());
                                            });
  if (result) return result;
  bool close_on_exec = wire::handle_kind(handle) == wire::HandleKind::memory_allocation;
  int descriptor = given ? caller.server->shares.give_out(token, close_on_exec) : -1;
  if (descriptor < 0) {
    if (given) Shares::withdraw(caller, token);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  std::memcpy(out, &descriptor, sizeof descriptor);
  return CUDA_SUCCESS;
}

// Returns the driver's error for a descriptor that is not shared memory (as measured on driver 580).
CUresult not_shared(wire::HandleKind kind) {
  return kind == wire::HandleKind::memory_pool ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNKNOWN;
}

CUresult import_object(const Caller& caller, wire::HandleKind kind, void* descriptor, uint64_t flags,
                       uint64_t& handle) {
  std::optional<ShareToken> token = Shares::token_of(int(reinterpret_cast<intptr_t>(descriptor)));
  if (!token) return not_shared(kind);
  caller.server->posted_uploads.end(caller);
  handle = create_handle(caller, kind);
  if (!handle) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result =
      send::call_share_import(*caller.session, caller.context, {.handle = handle, .token = *token, .flags = flags});
  if (result) forget_handle(kind, handle);
  return result;
}

}  // namespace

namespace hand {

CUresult cuMemExportToShareableHandle(const Caller& caller, void* shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
  if (!shareableHandle || !known_handle(wire::HandleKind::memory_allocation, handle)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_exported_type(handleType)) return error;
  return export_object(caller, handle, flags, shareableHandle);
}

CUresult cuMemImportFromShareableHandle(const Caller& caller, CUmemGenericAllocationHandle* handle, void* osHandle,
                                        CUmemAllocationHandleType shHandleType) {
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_imported_type(shHandleType)) return error;
  uint64_t imported = 0;
  CUresult result = import_object(caller, wire::HandleKind::memory_allocation, osHandle, 0, imported);
  if (!result) {
    *handle = imported;
    caller.server->allocation_holders.hold(imported);
  }
  return result;
}

CUresult cuMemPoolExportToShareableHandle(const Caller& caller, void* handle_out, CUmemoryPool pool,
                                          CUmemAllocationHandleType handleType, unsigned long long flags) {
  auto handle = reinterpret_cast<uint64_t>(pool);
  if (!handle_out || !known_handle(wire::HandleKind::memory_pool, handle)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_exported_type(handleType)) return error;
  return export_object(caller, handle, flags, handle_out);
}

CUresult cuMemPoolImportFromShareableHandle(const Caller& caller, CUmemoryPool* pool_out, void* handle,
                                            CUmemAllocationHandleType handleType, unsigned long long flags) {
  if (!pool_out) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_imported_type(handleType)) return error;
  uint64_t imported = 0;
  CUresult result = import_object(caller, wire::HandleKind::memory_pool, handle, flags, imported);
  if (!result) *pool_out = reinterpret_cast<CUmemoryPool>(imported);
  return result;
}

}  // namespace hand
}  // namespace gpuwire::client
