// User objects: references that graphs and the program hold on something of the program's, whose destructor is called
// with the last one. Counted here alone, since no device work looks at them.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <unordered_map>

#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

struct UserObject {
  uint64_t handle = 0;
  CUhostFn destroy = nullptr;
  void* user = nullptr;
  int64_t references = 0;  // under the lock of UserObjects
};

// The user objects of one session's graphs. Any thread; one leaf lock, not held while a destructor runs. Without user
// objects in graphs each call costs one atomic load.
class UserObjects final : public SessionPart {
 public:
  explicit UserObjects(SessionParts& parts) noexcept : SessionPart(parts) {}

  // References move with the graphs: all that `from` holds, `to` holds, too; all that a graph held ends with it.
  void copy(uint64_t from, uint64_t to);
  void release(uint64_t owner);
  // The executable graph `to` was updated: it holds the objects of `from`, and no longer its former ones.
  void replace(uint64_t from, uint64_t to);
  // An executable graph was launched: its objects are not released before the launch is done.
  void note_launch(uint64_t exec, uint64_t wire_stream) noexcept;

  // The program's own references.
  void retain(UserObject& object, int64_t count) noexcept;
  void release(UserObject& object, int64_t count);
  // A graph takes `count` references: the program's own when `moved`, otherwise additional ones.
  void retain_for(uint64_t graph, UserObject& object, int64_t count, bool moved);
  // False: the graph holds none.
  bool release_of(uint64_t graph, UserObject& object, int64_t count);

  void ended(SessionEnd) noexcept override {}      // they go with the program's graphs
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  struct Holder {
    std::unordered_map<UserObject*, int64_t> objects;  // with how many references
    bool launched = false;
    uint64_t stream = 0;  // of the newest launch
  };
  static void destroy(UserObject& object, const Holder* holder);
  void note_size() noexcept REQUIRES(mutex_) { count_.store(holders_.size(), std::memory_order_relaxed); }
  bool none() const noexcept { return count_.load(std::memory_order_relaxed) == 0; }

  Mutex mutex_;                                                      // it guards the objects' counts, too
  std::unordered_map<uint64_t, Holder> holders_ GUARDED_BY(mutex_);  // graphs and executable graphs
  std::atomic<size_t> count_{0};  // holders_.size(). Relaxed: a thread that uses a graph synchronised with its maker
};

}  // namespace gpuwire::client
