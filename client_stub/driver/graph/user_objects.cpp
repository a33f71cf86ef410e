#include "client_stub/driver/graph/user_objects.hpp"

#include <algorithm>
#include <new>
#include <vector>

#include "client/custom.hpp"
#include "client_stub/driver/handle/handle_table.hpp"
#include "client_stub/driver/session/server_session.hpp"

namespace gpuwire::client {
namespace {

UserObject* find_object(CUuserObject object) {
  return handles().find<UserObject>(wire::HandleKind::user_object, reinterpret_cast<uint64_t>(object));
}

// Takes references away; true: that was the last one. Under the lock.
bool drop(UserObject& object, int64_t count) {
  object.references -= count;
  return object.references <= 0;
}

}  // namespace

// Calls the destructor, once the launches of the stream that still use the object are done. Without a lock.
void UserObjects::destroy(UserObject& object, const Holder* holder) {
  handles().forget(wire::HandleKind::user_object, object.handle);
  bool later = holder && holder->launched &&
               custom::cuLaunchHostFunc(reinterpret_cast<CUstream>(holder->stream), object.destroy, object.user,
                                        false) == CUDA_SUCCESS;
  if (!later) object.destroy(object.user);
  delete &object;
}

void UserObjects::copy(uint64_t from, uint64_t to) {
  if (none()) return;
  std::lock_guard lock(mutex_);
  auto found = holders_.find(from);
  if (found == holders_.end()) return;
  auto objects = found->second.objects;
  Holder& holder = holders_[to];
  for (auto& [object, count] : objects) {
    holder.objects[object] += count;
    object->references += count;
  }
  note_size();
}

void UserObjects::replace(uint64_t from, uint64_t to) {
  if (none()) return;
  Holder before;
  std::vector<UserObject*> last;
  {
    std::lock_guard lock(mutex_);
    auto found = holders_.find(from);
    const auto objects = found == holders_.end() ? decltype(Holder::objects){} : found->second.objects;
    for (auto& [object, count] : objects) object->references += count;
    Holder& holder = holders_[to];
    before = holder;
    holder.objects = objects;
    for (auto& [object, count] : before.objects) {
      if (drop(*object, count)) last.push_back(object);
    }
    note_size();
  }
  for (UserObject* object : last) destroy(*object, &before);
}

void UserObjects::release(uint64_t owner) {
  if (none()) return;
  Holder holder;
  std::vector<UserObject*> last;
  {
    std::lock_guard lock(mutex_);
    auto found = holders_.find(owner);
    if (found == holders_.end()) return;
    holder = std::move(found->second);
    holders_.erase(found);
    note_size();
    for (auto& [object, count] : holder.objects) {
      if (drop(*object, count)) last.push_back(object);
    }
  }
  for (UserObject* object : last) destroy(*object, &holder);
}

void UserObjects::note_launch(uint64_t exec, uint64_t wire_stream) noexcept {
  if (none()) [[likely]]
    return;
  std::lock_guard lock(mutex_);
  auto found = holders_.find(exec);
  if (found == holders_.end()) return;
  found->second.launched = true;
  found->second.stream = wire_stream;
}

void UserObjects::retain(UserObject& object, int64_t count) noexcept {
  std::lock_guard lock(mutex_);
  object.references += count;
}

void UserObjects::release(UserObject& object, int64_t count) {
  {
    std::lock_guard lock(mutex_);
    if (!drop(object, count)) return;
  }
  destroy(object, nullptr);
}

void UserObjects::retain_for(uint64_t graph, UserObject& object, int64_t count, bool moved) {
  std::lock_guard lock(mutex_);
  holders_[graph].objects[&object] += count;
  note_size();
  if (!moved) object.references += count;
}

bool UserObjects::release_of(uint64_t graph, UserObject& object, int64_t count) {
  {
    std::lock_guard lock(mutex_);
    auto holder = holders_.find(graph);
    if (holder == holders_.end()) return false;
    auto held = holder->second.objects.find(&object);
    if (held == holder->second.objects.end()) return false;
    int64_t released = std::min(count, held->second);
    held->second -= released;
    if (held->second == 0) holder->second.objects.erase(held);
    if (!drop(object, released)) return true;
  }
  destroy(object, nullptr);
  return true;
}

namespace custom {

CUresult cuUserObjectCreate(CUuserObject* out, void* user, CUhostFn function, unsigned int references,
                            unsigned int flags) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
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

CUresult cuUserObjectRetain(CUuserObject given, unsigned int count) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  UserObject* object = find_object(given);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  caller.server->user_objects.retain(*object, count);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject given, unsigned int count) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  UserObject* object = find_object(given);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  caller.server->user_objects.release(*object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject given, unsigned int count, unsigned int flags) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  UserObject* object = find_object(given);
  auto owner = reinterpret_cast<uint64_t>(graph);
  bool known = known_handle(wire::HandleKind::graph, owner);
  if (!known || !object || count == 0 || count > INT32_MAX || (flags & ~unsigned(CU_GRAPH_USER_OBJECT_MOVE)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  caller.server->user_objects.retain_for(owner, *object, count, (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0);
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject given, unsigned int count) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  UserObject* object = find_object(given);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  bool released = caller.server->user_objects.release_of(reinterpret_cast<uint64_t>(graph), *object, count);
  return released ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace custom
}  // namespace gpuwire::client
