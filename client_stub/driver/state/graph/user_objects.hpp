// User objects: references that graphs and the program hold to an object of the program, whose destructor is called
// with the last one. The client alone counts them, because no device work uses the objects.
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
  // Lock: that of UserObjects.
  int64_t references = 0;
};

// The user objects of one session's graphs. Any thread; one leaf lock, not held while a destructor runs. Without user
// objects in graphs each call costs one atomic load.
class UserObjects final : public SessionPart {
 public:
  explicit UserObjects(SessionParts& parts) noexcept : SessionPart(parts) {}

  // Keep the references with the graphs: copy() gives `to` all references of `from`, and release() ends those of a
  // graph.
  void copy(uint64_t from, uint64_t to);
  void release(uint64_t owner);
  // Notes the update of the executable graph `to`: it holds the objects of `from`, and no longer its former ones.
  void replace(uint64_t from, uint64_t to);
  // Notes a launch: the objects of an executable graph are not released before its launch is done.
  void note_launch(uint64_t exec, uint64_t wire_stream) noexcept;

  // Change the number of the program's own references.
  void retain(UserObject& object, int64_t count) noexcept;
  void release(UserObject& object, int64_t count);
  // Gives a graph `count` references: the program's own with `moved`, otherwise additional ones.
  void retain_for(uint64_t graph, UserObject& object, int64_t count, bool moved);
  // Releases references of a graph. Returns false if the graph holds none.
  bool release_of(uint64_t graph, UserObject& object, int64_t count);

  void ended(SessionEnd) noexcept override {}      // they go with the program's graphs
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  struct Holder {
    // The objects with the numbers of their references.
    std::unordered_map<UserObject*, int64_t> objects;
    bool launched = false;
    // The stream of the newest launch.
    uint64_t stream = 0;
  };
  static void destroy(UserObject& object, const Holder* holder);
  void note_size() noexcept REQUIRES(mutex_) { count_.store(holders_.size(), std::memory_order_relaxed); }
  bool none() const noexcept { return count_.load(std::memory_order_relaxed) == 0; }

  // Also guards the objects' counts.
  Mutex mutex_;
  // By graph or executable graph.
  std::unordered_map<uint64_t, Holder> holders_ GUARDED_BY(mutex_);
  // The size of holders_. Relaxed: a thread that uses a graph has synchronised with the thread that made it.
  std::atomic<size_t> count_{0};
};

}  // namespace gpuwire::client
