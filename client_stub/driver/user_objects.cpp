// User objects: counted here, since the destructor is a function of the program and no device work looks at them.
#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <unordered_map>
#include <vector>

#include "client/hand.hpp"
#include "client_stub/driver/graph.hpp"
#include "client_stub/driver/handles.hpp"

namespace gpuwire::client {
namespace {

struct UserObject {
  uint64_t handle = 0;
  CUhostFn destroy = nullptr;
  void* user = nullptr;
  int64_t references = 0;
};

struct Holder {
  std::unordered_map<UserObject*, int64_t> objects;  // with how many references
  bool launched = false;
  uint64_t stream = 0;  // of the newest launch
};

struct UserObjects {
  std::mutex mutex;  // a leaf: all below, and the counts
  std::unordered_map<uint64_t, Holder> holders;  // graphs and executable graphs
  std::atomic<size_t> count{0};  // holders.size(). Relaxed: who uses a graph synchronised with whoever made it
};

UserObjects& user_objects() noexcept {
  alignas(UserObjects) static std::byte storage[sizeof(UserObjects)];
  static auto* const all = new (storage) UserObjects;
  return *all;
}

UserObject* find_object(CUuserObject object) { return handles().find<UserObject>(wire::HandleKind::user_object, reinterpret_cast<uint64_t>(object)); }

// Takes references away; true: that was the last one. Under the lock.
bool drop(UserObject& object, int64_t count) {
  object.references -= count;
  return object.references <= 0;
}

// Calls the destructor, once the launches of the stream that still use the object are done. Without a lock.
void destroy(UserObject* object, const Holder* holder) {
  handles().forget(wire::HandleKind::user_object, object->handle);
  bool later = holder && holder->launched &&
               hand::cuLaunchHostFunc(reinterpret_cast<CUstream>(holder->stream), object->destroy, object->user, false) == CUDA_SUCCESS;
  if (!later) object->destroy(object->user);
  delete object;
}

}  // namespace

void copy_user_objects(uint64_t from, uint64_t to) {
  UserObjects& all = user_objects();
  if (all.count.load(std::memory_order_relaxed) == 0) return;
  std::lock_guard lock(all.mutex);
  auto found = all.holders.find(from);
  if (found == all.holders.end()) return;
  auto objects = found->second.objects;
  Holder& holder = all.holders[to];
  for (auto& [object, count] : objects) {
    holder.objects[object] += count;
    object->references += count;
  }
  all.count.store(all.holders.size(), std::memory_order_relaxed);
}

void release_user_objects(uint64_t owner) {
  UserObjects& all = user_objects();
  if (all.count.load(std::memory_order_relaxed) == 0) return;
  Holder holder;
  std::vector<UserObject*> last;
  {
    std::lock_guard lock(all.mutex);
    auto found = all.holders.find(owner);
    if (found == all.holders.end()) return;
    holder = std::move(found->second);
    all.holders.erase(found);
    all.count.store(all.holders.size(), std::memory_order_relaxed);
    for (auto& [object, count] : holder.objects) {
      if (drop(*object, count)) last.push_back(object);
    }
  }
  for (UserObject* object : last) destroy(object, &holder);
}

void note_user_object_launch(uint64_t exec, uint64_t wire_stream) noexcept {
  UserObjects& all = user_objects();
  if (all.count.load(std::memory_order_relaxed) == 0) [[likely]] return;
  std::lock_guard lock(all.mutex);
  auto found = all.holders.find(exec);
  if (found == all.holders.end()) return;
  found->second.launched = true;
  found->second.stream = wire_stream;
}

namespace hand {

CUresult cuUserObjectCreate(CUuserObject* out, void* user, CUhostFn function, unsigned int references, unsigned int flags) {
  Caller caller = enter(Needs::initialised);
  if (caller.error) return caller.error;
  if (!out || !function || references == 0 || references > INT32_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  auto* object = new (std::nothrow) UserObject{0, function, user, int64_t(references)};
  if (!object) return CUDA_ERROR_OUT_OF_MEMORY;
  object->handle = handles().create(wire::HandleKind::user_object, object);
  if (!object->handle) {
    delete object;
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = reinterpret_cast<CUuserObject>(object->handle);
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject given, unsigned int count) {
  if (CUresult error = enter(Needs::initialised).error) return error;
  UserObject* object = find_object(given);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(user_objects().mutex);
  object->references += count;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject given, unsigned int count) {
  if (CUresult error = enter(Needs::initialised).error) return error;
  UserObject* object = find_object(given);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  {
    std::lock_guard lock(user_objects().mutex);
    if (!drop(*object, count)) return CUDA_SUCCESS;
  }
  destroy(object, nullptr);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject given, unsigned int count, unsigned int flags) {
  if (CUresult error = enter(Needs::initialised).error) return error;
  UserObject* object = find_object(given);
  auto owner = reinterpret_cast<uint64_t>(graph);
  bool known = known_handle(wire::HandleKind::graph, owner);
  if (!known || !object || count == 0 || count > INT32_MAX || (flags & ~unsigned(CU_GRAPH_USER_OBJECT_MOVE)) != 0) return CUDA_ERROR_INVALID_VALUE;
  UserObjects& all = user_objects();
  std::lock_guard lock(all.mutex);
  all.holders[owner].objects[object] += count;
  all.count.store(all.holders.size(), std::memory_order_relaxed);
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->references += count;
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject given, unsigned int count) {
  if (CUresult error = enter(Needs::initialised).error) return error;
  UserObject* object = find_object(given);
  if (!object || count == 0 || count > INT32_MAX) return CUDA_ERROR_INVALID_VALUE;
  UserObjects& all = user_objects();
  {
    std::lock_guard lock(all.mutex);
    auto holder = all.holders.find(reinterpret_cast<uint64_t>(graph));
    if (holder == all.holders.end()) return CUDA_ERROR_INVALID_VALUE;
    auto held = holder->second.objects.find(object);
    if (held == holder->second.objects.end()) return CUDA_ERROR_INVALID_VALUE;
    int64_t released = std::min<int64_t>(count, held->second);
    held->second -= released;
    if (held->second == 0) holder->second.objects.erase(held);
    if (!drop(*object, released)) return CUDA_SUCCESS;
  }
  destroy(object, nullptr);
  return CUDA_SUCCESS;
}

}  // namespace hand
}  // namespace gpuwire::client
