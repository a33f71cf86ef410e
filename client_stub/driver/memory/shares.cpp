#include "client_stub/driver/memory/shares.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/session_sends.hpp"
#include "client_stub/driver/memory/address_map.hpp"
#include "client_stub/driver/session/server_session.hpp"
#include "client_stub/driver/copy/posted_uploads.hpp"
#include "client_stub/driver/memory/allocation_handle.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

// The message in the socket.
struct Message {
  char magic[16];
  ShareToken token;
};
constexpr char kMagic[16] = {'G', 'P', 'U', 'W', 'I', 'R', 'E', ' ', 's', 'h', 'a', 'r', 'e', ' ', '1', '\n'};

void withdraw(const Caller& caller, const ShareToken& token) noexcept {
  send::post_share_withdraw(*caller.session, caller.context, {.token = token});
}

}  // namespace

int Shares::give_out(const ShareToken& token, bool close_on_exec) noexcept {
  std::lock_guard lock(mutex_);
  if (shares_.size() >= kSharesMax) return -1;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return -1;
  Message message{};
  std::memcpy(message.magic, kMagic, sizeof kMagic);
  message.token = token;
  bool written = ::send(ends[0], &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(sizeof message);
  if (written && ::fcntl(ends[1], F_SETFD, close_on_exec ? FD_CLOEXEC : 0) == 0) {
    try {
      shares_.push_back({transport::OwnDescriptor(ends[0]), token});
      return ends[1];
    } catch (...) {  // no memory
    }
  }
  ::close(ends[0]);
  ::close(ends[1]);
  return -1;
}

std::optional<ShareToken> Shares::token_of(int descriptor) noexcept {
  Message message{};
  // The message stays in the socket for others. A descriptor that is no socket, or an empty socket, is not one of ours.
  if (::recv(descriptor, &message, sizeof message, MSG_PEEK | MSG_DONTWAIT) != ssize_t(sizeof message))
    return std::nullopt;
  if (std::memcmp(message.magic, kMagic, sizeof kMagic) != 0) return std::nullopt;
  return message.token;
}

void Shares::sweep(const Caller& caller) noexcept {
  ShareToken ended[kSharesMax];
  size_t ended_count = 0;
  {
    std::lock_guard lock(mutex_);
    if (shares_.empty()) return;
    pollfd watched[kSharesMax];
    for (size_t i = 0; i < shares_.size(); ++i)
      watched[i] = {shares_[i].own_end.is_ours() ? shares_[i].own_end.get() : -1, 0, 0};
    if (::poll(watched, nfds_t(shares_.size()), 0) <= 0) return;
    size_t kept = 0;
    for (size_t i = 0; i < shares_.size(); ++i) {
      if (watched[i].fd >= 0 && (watched[i].revents & (POLLHUP | POLLERR))) {
        shares_[i].own_end.close();
        ended[ended_count++] = shares_[i].token;
      } else {
        if (kept != i) shares_[kept] = std::move(shares_[i]);
        ++kept;
      }
    }
    shares_.resize(kept);
  }
  for (size_t i = 0; i < ended_count; ++i) withdraw(caller, ended[i]);
}

namespace {

// Descriptors alone: the other types are Windows' or need a fabric manager.
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
    if (given) withdraw(caller, token);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  std::memcpy(out, &descriptor, sizeof descriptor);
  return CUDA_SUCCESS;
}

// The driver's error for a foreign descriptor (as measured on driver 580).
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

namespace custom {

CUresult cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType, unsigned long long flags) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  if (!shareableHandle || !known_handle(wire::HandleKind::memory_allocation, handle)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_exported_type(handleType)) return error;
  return leave(caller, export_object(caller, handle, flags, shareableHandle));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                        CUmemAllocationHandleType shHandleType) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_imported_type(shHandleType)) return error;
  uint64_t imported = 0;
  CUresult result = import_object(caller, wire::HandleKind::memory_allocation, osHandle, 0, imported);
  if (!result) {
    *handle = imported;
    caller.server->allocation_holders.hold(imported);
  }
  return leave(caller, result);
}

CUresult cuMemPoolExportToShareableHandle(void* handle_out, CUmemoryPool pool, CUmemAllocationHandleType handleType,
                                          unsigned long long flags) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  auto handle = reinterpret_cast<uint64_t>(pool);
  if (!handle_out || !known_handle(wire::HandleKind::memory_pool, handle)) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_exported_type(handleType)) return error;
  return leave(caller, export_object(caller, handle, flags, handle_out));
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle, CUmemAllocationHandleType handleType,
                                            unsigned long long flags) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  if (!pool_out) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult error = check_imported_type(handleType)) return error;
  uint64_t imported = 0;
  CUresult result = import_object(caller, wire::HandleKind::memory_pool, handle, flags, imported);
  if (!result) *pool_out = reinterpret_cast<CUmemoryPool>(imported);
  return leave(caller, result);
}

}  // namespace custom
}  // namespace gpuwire::client
