// Host functions of the client in a stream of the server: the stream stops at each until the client has run it.
#pragma once

#include <cuda.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace gpuwire::server {

class Replay;

inline constexpr size_t kCallbacksMax = 64u << 10;
inline constexpr unsigned kCallbackEndMs = 1000;

// Any thread. Its state is shared with every trampoline in the driver, which may outlive a session that ends in a fault.
class HostCallbacks {
 public:
  enum class Kind : uint8_t { host_function = 0, stream_callback = 1 };

  explicit HostCallbacks(Replay& replay);
  ~HostCallbacks();

  // Executor: puts the callback on the stream. `repeats`: it goes into a graph and may run any number of times.
  CUresult enqueue(Replay& replay, CUstream stream, uint64_t callback, Kind kind, bool repeats);
  // Executor: the client has run it. False: it was not asked to.
  bool done(uint64_t callback);
  // Those that the client has yet to answer before their streams go on. A graph's count only while they run.
  size_t unanswered() const;
  // No callback waits for the client any more. False: one is still being sent to it, after kCallbackEndMs.
  bool end();

 private:
  struct Shared;
  struct Trampoline;
  std::shared_ptr<bool> hold_for_data(Replay& replay, CUstream stream);
  static void CUDA_CB run_host_function(void* user);
  static void CUDA_CB run_stream_callback(CUstream stream, CUresult status, void* user);
  static void run(Trampoline& trampoline, CUresult status);

  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Trampoline>> repeating_;  // live as long as the session: the driver does not say when a graph is gone
};

}  // namespace gpuwire::server
