#include "client_stub/driver/state/graph/user_objects.hpp"

#include <algorithm>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"

namespace gpuwire::client {
namespace {

// Drops references. Returns true if none is left. Lock: held.
bool drop(UserObject& object, int64_t count) {
  object.references -= count;
  return object.references <= 0;
}

}  // namespace

// Calls the destructor when the launches of the stream that still use the object are done. Lock: none.
void UserObjects::destroy(UserObject& object, const Holder* holder) {
  handles().forget(wire::HandleKind::user_object, object.handle);
  bool later = holder && holder->launched;
  if (later) {
    const Caller caller = enter(Needs::context);
    const HostCallback callback{.host_function = object.destroy,
                                .stream = reinterpret_cast<CUstream>(holder->stream),
                                .user_data = object.user};
    later = !caller.error && send_host_callback(caller, callback, false) == CUDA_SUCCESS;
  }
  if (!later) object.destroy(object.user);
  delete &object;
}

void UserObjects::copy(uint64_t from, uint64_t to) {
  if (none()) return;
  MutexLock lock(mutex_);
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
    MutexLock lock(mutex_);
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
    MutexLock lock(mutex_);
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
  MutexLock lock(mutex_);
  auto found = holders_.find(exec);
  if (found == holders_.end()) return;
  found->second.launched = true;
  found->second.stream = wire_stream;
}

void UserObjects::retain(UserObject& object, int64_t count) noexcept {
  MutexLock lock(mutex_);
  object.references += count;
}

void UserObjects::release(UserObject& object, int64_t count) {
  {
    MutexLock lock(mutex_);
    if (!drop(object, count)) return;
  }
  destroy(object, nullptr);
}

void UserObjects::retain_for(uint64_t graph, UserObject& object, int64_t count, bool moved) {
  MutexLock lock(mutex_);
  holders_[graph].objects[&object] += count;
  note_size();
  if (!moved) object.references += count;
}

bool UserObjects::release_of(uint64_t graph, UserObject& object, int64_t count) {
  {
    MutexLock lock(mutex_);
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

}  // namespace gpuwire::client
