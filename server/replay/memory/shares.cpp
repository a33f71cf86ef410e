#include "server/replay/memory/shares.hpp"

#include <cstring>
#include <optional>

#include <sys/random.h>
#include <unistd.h>

#include "server/driver_table.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"

namespace gpuwire::server {
namespace {

// An owned descriptor, closed once the driver or the broker has its own copy.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }
  void* as_handle() const { return reinterpret_cast<void*>(intptr_t(number_)); }

 private:
  int number_;
};

ShareKind kind_of(uint64_t handle, const char* fault) {
  switch (wire::handle_kind(handle)) {
    case wire::HandleKind::memory_allocation: return ShareKind::memory;
    case wire::HandleKind::memory_pool: return ShareKind::pool;
    default: throw ProtocolFault{fault};
  }
}

ShareToken read_token(capnp::Data::Reader data) {
  ShareToken token;
  if (data.size() != token.size()) throw ProtocolFault{"a share's token of a wrong size"};
  std::copy(data.begin(), data.end(), token.begin());
  return token;
}

std::optional<ShareToken> new_token() {
  ShareToken token;
  if (::getrandom(token.data(), token.size(), 0) != ssize_t(token.size())) return std::nullopt;
  return token;
}

CUresult export_descriptor(const DriverTable& driver, ShareKind kind, void* native, uint64_t flags, int& descriptor) {
  if (kind == ShareKind::pool)
    return drive(driver.cuMemPoolExportToShareableHandle, static_cast<void*>(&descriptor),
                 static_cast<CUmemoryPool>(native), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, flags);
  return drive(driver.cuMemExportToShareableHandle, static_cast<void*>(&descriptor),
               CUmemGenericAllocationHandle(reinterpret_cast<uintptr_t>(native)),
               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, flags);
}

CUresult publish(Replay& replay, ShareKind kind, int descriptor, ShareToken& token) {
  ShareExchange* shares = replay.state().shares();
  if (!shares) return CUDA_ERROR_NOT_SUPPORTED;
  std::optional<ShareToken> fresh = new_token();
  if (!fresh) return CUDA_ERROR_OPERATING_SYSTEM;
  token = *fresh;
  return shares->publish(token, kind, replay.state().tenant(), descriptor) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult import_descriptor(Replay& replay, ShareKind kind, int descriptor, uint64_t flags, uint64_t handle) {
  const DriverTable& driver = replay.driver();
  const Descriptor shared(descriptor);
  void* native = nullptr;
  CUresult result;
  if (kind == ShareKind::pool) {
    CUmemoryPool pool = nullptr;
    result = drive(driver.cuMemPoolImportFromShareableHandle, &pool, shared.as_handle(),
                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, flags);
    native = pool;
  } else {
    CUmemGenericAllocationHandle memory = 0;
    result = drive(driver.cuMemImportFromShareableHandle, &memory, shared.as_handle(),
                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    native = reinterpret_cast<void*>(uintptr_t(memory));
  }
  if (result == CUDA_SUCCESS && !replay.handles().insert(wire::handle_kind(handle), handle, native))
    throw ProtocolFault{"share_import: a new handle that is malformed or taken"};
  return result;
}

}  // namespace

void share_export(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ShareExport>();
  const ShareKind kind = kind_of(params.getHandle(), "share_export: neither memory nor a pool");
  void* native = nullptr;
  ShareToken token{};
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  if (replay.handles().find(wire::handle_kind(params.getHandle()), params.getHandle(), native)) {
    int exported = -1;
    result = export_descriptor(replay.driver(), kind, native, params.getFlags(), exported);
    const Descriptor descriptor(exported);
    if (result == CUDA_SUCCESS) result = publish(replay, kind, descriptor.get(), token);
  }
  SmallMessage<> message;
  auto reply = message.root<schema::ShareExportReply>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  if (result == CUDA_SUCCESS) reply.setToken({token.data(), token.size()});
  call.answered = true;
  replay.outbox().reply(call.header.sequence, *message);
}

void share_import(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ShareImport>();
  const ShareKind kind = kind_of(params.getHandle(), "share_import: a handle for neither memory nor a pool");
  const ShareToken token = read_token(params.getToken());
  ShareExchange* shares = replay.state().shares();
  int descriptor = shares ? shares->claim(token, kind, replay.state().tenant()) : -1;
  // The error that the driver returns for an unknown descriptor (measured on driver 580).
  const CUresult unknown = kind == ShareKind::pool ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_UNKNOWN;
  finish(replay, call,
         descriptor < 0 ? unknown : import_descriptor(replay, kind, descriptor, params.getFlags(), params.getHandle()));
}

void share_withdraw(Replay& replay, Call& call) {
  const ShareToken token = read_token(call.message.getRoot<schema::ShareWithdraw>().getToken());
  if (ShareExchange* shares = replay.state().shares()) shares->withdraw(token);
  finish(replay, call, CUDA_SUCCESS);
}

namespace {

// Sends the client the address of imported memory and its size in the address space.
void reply_imported(Replay& replay, Call& call, CUresult result, CUdeviceptr address, uint64_t bytes) {
  SmallMessage<> message;
  auto reply = message.root<schema::ModuleGlobalReply>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  reply.setAddress(address);
  reply.setBytes(bytes);
  call.answered = true;
  replay.outbox().reply(call.header.sequence, *message);
}

}  // namespace

void open_ipc_memory(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::OpenIpcMemory>();
  CUipcMemHandle handle;
  if (params.getHandle().size() != sizeof handle) throw ProtocolFault{"open_ipc_memory: a handle of a wrong size"};
  std::memcpy(&handle, params.getHandle().begin(), sizeof handle);
  const DriverTable& driver = replay.driver();
  CUdeviceptr address = 0, base = 0;
  size_t bytes = 0;
  const CUresult result = drive(driver.cuIpcOpenMemHandle_v2, &address, handle, unsigned(params.getFlags()));
  const bool sized =
      result == CUDA_SUCCESS && drive(driver.cuMemGetAddressRange_v2, &base, &bytes, address) == CUDA_SUCCESS;
  reply_imported(replay, call, result, address, sized ? base + bytes - address : 0);
}

void import_pool_pointer(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::ImportPoolPointer>();
  CUmemPoolPtrExportData data;
  if (params.getData().size() != sizeof data) throw ProtocolFault{"import_pool_pointer: data of a wrong size"};
  std::memcpy(&data, params.getData().begin(), sizeof data);
  const DriverTable& driver = replay.driver();
  void* pool = nullptr;
  CUdeviceptr address = 0, base = 0;
  size_t bytes = 0;
  CUresult result = CUDA_ERROR_INVALID_VALUE;
  // Imported memory of a pool has the same duties as memory that is allocated from a pool.
  replay.sync_duties().note();
  if (replay.handles().find(wire::HandleKind::memory_pool, params.getPool(), pool))
    result = drive(driver.cuMemPoolImportPointer, &address, static_cast<CUmemoryPool>(pool), &data);
  if (result == CUDA_SUCCESS) {
    // The client must know the size of the range in the address space.
    result = drive(driver.cuMemGetAddressRange_v2, &base, &bytes, address);
    if (result != CUDA_SUCCESS) drive(driver.cuMemFree_v2, address);
  }
  reply_imported(replay, call, result, address, base + bytes - address);
}

}  // namespace gpuwire::server
