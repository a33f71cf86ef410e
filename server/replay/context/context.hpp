// The contexts of a session: the native context behind the number in a frame header, and the replay's state for each.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <unordered_map>

#include "server/replay/completion/event_pool.hpp"
#include "server/replay/completion/passed_marks.hpp"
#include "server/replay/replay.hpp"
#include "server/replay/copy/staging.hpp"

namespace gpuwire::server {

class UploadOrder;

// A copy to the device whose source must stay until the device has read it.
struct Upload {
  StagingBlock block;
  std::shared_ptr<PooledEvent> done;
  // The program was told that the device has the data.
  bool told = false;
};

struct Context {
  // The client's handle.
  uint64_t handle = 0;
  CUdevice device = 0;
  // Null for a primary context that is not active now.
  CUcontext native = nullptr;
  // The reason why activate() failed.
  CUresult error = CUDA_SUCCESS;
  bool primary = false;
  // Set for a green context, from which `native` was created.
  CUgreenCtx green = nullptr;
  // The owner of the context's objects: for a green context its primary context's number, otherwise its own.
  uint32_t base = 0;
  unsigned flags = 0;
  std::shared_ptr<StagingPool> staging;
  std::shared_ptr<EventPool> events;
  PassedMarks passed;
  // The oldest upload is first.
  std::deque<Upload> uploads;
  // The newest upload that was reported and is awaited. Its pending answers hold it, too.
  std::shared_ptr<Upload> awaited;
  // A stream that waits for no other, made at its first use (managed_memory.cpp).
  CUstream beside = nullptr;
};

inline constexpr size_t kContextsMax = 1024;
// The time for which the destruction of a context waits until replies and notices about its last work are sent.
inline constexpr unsigned kContextDrainMs = 5000;

// Returns the number by which a frame header names a context handle.
constexpr uint32_t wire_context(uint64_t handle) { return uint32_t(handle); }

// Executor thread only.
class ContextTable {
 public:
  // `write`: writes the words that report completed work (completion_words.hpp); null: only events report it. `order`:
  // is notified when a context ends; may be null.
  explicit ContextTable(Replay& replay, WriteWord write = nullptr, UploadOrder* order = nullptr)
      : replay_(replay),
        driver_(replay.driver()),
        handles_(replay.handles()),
        write_word_(write),
        order_of_uploads_(order) {}
  ~ContextTable();

  // Makes the context with this number current on this thread; 0 stands for none.
  CUresult make_current(uint32_t number);
  // Makes some context of the session current until the next frame, if the frame names none: libraries belong to no
  // context, but the driver answers some queries about their kernels only while a context is current.
  void enter_any();
  // Returns whether the calling thread is the executor, which owns the contexts. Any thread.
  bool on_executor() const { return executor_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  // Returns whether no handle is bound to a context.
  bool empty() const { return order_.empty(); }
  // Returns the context that was made current last, or null.
  Context* current() { return current_; }
  Context* find(uint32_t number);
  // Makes the context of a frame's stream current until the next frame, and returns it: a program may copy on, and wait
  // for, streams of contexts other than its current one. The legacy stream belongs to the current context. Null: no
  // context is current.
  Context* enter_stream(CUstream stream);

  // Binds a handle to a device's primary context and activates it. Binding it again changes nothing.
  CUresult retain_primary(uint64_t handle, CUdevice device, unsigned flags);
  CUresult release_primary(uint64_t handle);
  // Resets the context and destroys all objects in it. The handle stays bound; its next use activates the context
  // again.
  CUresult reset_primary(uint64_t handle);
  // Takes ownership of a context that cuCtxCreate returned. Returns false if the handle cannot be used.
  bool adopt(uint64_t handle, CUcontext native, CUdevice device);
  CUresult destroy(uint64_t handle);
  // Creates a green context with those resources of the primary context's device that the descriptor names. It ends
  // with the primary context at the latest.
  CUresult create_green(uint64_t handle, uint64_t primary, CUdevResourceDesc descriptor, unsigned flags);
  CUresult destroy_green(uint64_t handle);
  template <class Visit>
  void for_each(Visit&& visit) {
    for (uint32_t number : order_) visit(*contexts_[number]);
  }
  // Destroys all contexts, newest first.
  void end();

 private:
  CUresult activate(Context& context);
  void drain(Context& context);
  void abandon(Context& context);
  void forget_current();
  Context& add(uint64_t handle, CUdevice device);
  void remove(uint64_t handle);
  void end_greens_of(uint32_t primary);

  Replay& replay_;
  const DriverTable& driver_;
  HandleTable& handles_;
  const WriteWord write_word_;
  UploadOrder* const order_of_uploads_;
  std::unordered_map<uint32_t, std::unique_ptr<Context>> contexts_;
  // The numbers of the contexts, in order of their creation.
  std::deque<uint32_t> order_;
  Context* current_ = nullptr;
  uint32_t current_number_ = 0;
  // Set by the first frame. Relaxed: nothing is published through it, and no other thread runs a call before the first
  // frame.
  std::atomic<std::thread::id> executor_{};
};

}  // namespace gpuwire::server
