// User objects: the calls.
#include <cstdint>
#include <new>

#include "client/custom.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/graph/user_objects.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/session/server_session.hpp"

namespace gpuwire::client {
namespace hand {
namespace {

UserObject* find_object(CUuserObject object) {
  return handles().find<UserObject>(wire::HandleKind::user_object, reinterpret_cast<uint64_t>(object));
}

}  // namespace

CUresult cuUserObjectCreate(const Caller& caller, CUuserObject* out, void* user, CUhostFn function,
                            unsigned int references, unsigned int flags) {
  if (!out || !function || references == 0 || references > INT32_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
    return CUDA_ERROR_INVALID_VALUE;
  auto* object = new (std::nothrow) UserObject{0, function, user, int64_t(references)};
  if (!object) return CUDA_ERROR_OUT_OF_MEMORY;
  object->handle = handles().create(wire::HandleKind::user_object, caller.server, object);
  if (!object->handle) {
    delete object;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = reinterpret_cast<CUuserObject>(object->handle);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(const Caller& caller, CUuserObject given, unsigned int count) {
  UserObject* object = find_object(given);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  caller.server->user_objects.retain(*object, count);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(const Caller& caller, CUuserObject given, unsigned int count) {
  UserObject* object = find_object(given);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  caller.server->user_objects.release(*object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(const Caller& caller, CUgraph graph, CUuserObject given, unsigned int count,
                                 unsigned int flags) {
  UserObject* object = find_object(given);
  auto owner = reinterpret_cast<uint64_t>(graph);
  bool known = known_handle(wire::HandleKind::graph, owner);
  if (!known || !object || count == 0 || count > INT32_MAX || (flags & ~unsigned(CU_GRAPH_USER_OBJECT_MOVE)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  caller.server->user_objects.retain_for(owner, *object, count, (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0);
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(const Caller& caller, CUgraph graph, CUuserObject given, unsigned int count) {
  UserObject* object = find_object(given);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  bool released = caller.server->user_objects.release_of(reinterpret_cast<uint64_t>(graph), *object, count);
  return released ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace hand
}  // namespace gpuwire::client
