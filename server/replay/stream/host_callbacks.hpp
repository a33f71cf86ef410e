// Host functions of the client in a stream of the server: the stream stops at each until the client has run it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gpuwire::server {

class Replay;

inline constexpr size_t kCallbacksMax = 64u << 10;
inline constexpr unsigned kCallbackEndMs = 1000;

// Any thread. Every trampoline in the driver shares the state, because it may outlive a session that ends in a fault.
class HostCallbacks {
 public:
  enum class Kind : uint8_t { host_function = 0, stream_callback = 1 };

  explicit HostCallbacks(Replay& replay);
  ~HostCallbacks();

  // Executor: puts the callback on the stream, or into the graph that the stream is being captured into.
  CUresult enqueue(Replay& replay, CUstream stream, uint64_t callback, Kind kind);
  // Executor: stores the function that a host node of a graph calls; the client is asked each time it runs. Valid until
  // the session ends, since the driver does not report when the last graph with it is gone.
  CUresult for_graph(uint64_t callback, CUDA_HOST_NODE_PARAMS& node);
  // Executor: returns the client's number of a function that for_graph() stored or a capture has put into a graph, or 0
  // if the node is none of these.
  uint64_t number_of(const CUDA_HOST_NODE_PARAMS& node) const;
  // Any thread: records that the client has run the callback. Returns false if no run was requested.
  bool done(uint64_t callback);
  // Returns the number of callbacks whose streams wait for an answer of the client or will do so. A graph's callback
  // counts only while it runs.
  size_t unanswered() const;
  // Executor: returns whether a stream may wait at a callback now, or at a callback of a graph once it is launched.
  bool may_stand() const { return !repeating_.empty() || unanswered() != 0; }
  // Each run of a callback has a number. newest_run() returns the newest; answered_up_to() returns whether all runs up
  // to a number have been answered. Any thread.
  uint64_t newest_run() const;
  bool answered_up_to(uint64_t run) const;
  // Executor: forgets the callbacks in the streams of a context that has ended; the driver skips them after a fault.
  void forget_context(uint32_t number);
  // Returns whether a stream waits for an answer now. Any thread.
  bool awaiting() const;
  // Ends all waits for the client. Returns false if a callback's notice is still being sent after kCallbackEndMs.
  bool end();

 private:
  struct Shared;
  struct Trampoline;
  CUresult capture(Replay& replay, CUstream stream, uint64_t callback);
  static void CUDA_CB run_host_function(void* user);
  static void CUDA_CB run_stream_callback(CUstream stream, CUresult status, void* user);
  static void run(Trampoline& trampoline, CUresult status);

  std::shared_ptr<Shared> shared_;
  // The trampolines of graphs, by address.
  std::unordered_map<void*, std::unique_ptr<Trampoline>> repeating_;
};

}  // namespace gpuwire::server
