// The contexts of a session: the native context behind the number in a frame header, and the replay's state for each.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <unordered_map>

#include "server/replay/stream/event_pool.hpp"
#include "server/replay/stream/passed_marks.hpp"
#include "server/replay/replay.hpp"
#include "server/replay/copy/staging.hpp"

namespace gpuwire::server {

class UploadOrder;

// A copy to the device whose source must stay until the device has read it.
struct Upload {
  StagingBlock block;
  std::shared_ptr<PooledEvent> done;
  bool told = false;  // the program takes it that the device has the data
};

struct Context {
  uint64_t handle = 0;  // the client's
  CUdevice device = 0;
  CUcontext native = nullptr;     // null: a primary context that is not active now
  CUresult error = CUDA_SUCCESS;  // why it could not be made active
  bool primary = false;
  CUgreenCtx green = nullptr;  // of a green context: `native` is the context made of it
  uint32_t base = 0;  // the owner of its objects: for a green context its primary context's number, otherwise its own
  unsigned flags = 0;
  std::shared_ptr<StagingPool> staging;
  std::shared_ptr<EventPool> events;
  PassedMarks passed;
  std::deque<Upload> uploads;       // oldest first
  std::shared_ptr<Upload> awaited;  // the newest that was reported and is waited for: its answers hold it, too
  CUstream beside = nullptr;        // waits for no other stream; made when first used, managed_memory.cpp
};

inline constexpr size_t kContextsMax = 1024;
// How long destroying a context waits for replies and notices about its last work to leave.
inline constexpr unsigned kContextDrainMs = 5000;

// The form of a context handle in a frame header.
constexpr uint32_t wire_context(uint64_t handle) { return uint32_t(handle); }

// Executor thread only.
class ContextTable {
 public:
  // `write`: makes words that report completed work (completion_words.hpp); null: events alone do. `order`: is notified
  // when a context ends; null: nobody is.
  explicit ContextTable(Replay& replay, WriteWord write = nullptr, UploadOrder* order = nullptr)
      : replay_(replay),
        driver_(replay.driver()),
        handles_(replay.handles()),
        write_word_(write),
        order_of_uploads_(order) {}
  ~ContextTable();

  // Makes the context with this number current on this thread; 0: none.
  CUresult make_current(uint32_t number);
  // Makes some context of the session current until the next frame, where the frame names none: libraries are of no
  // context, but the driver answers some questions about their kernels only when one is current.
  void enter_any();
  // Is this the executor, whose contexts these are? Any thread may ask.
  bool on_executor() const { return executor_.load(std::memory_order_relaxed) == std::this_thread::get_id(); }
  // No handle is bound to a context.
  bool empty() const { return order_.empty(); }
  // The one made current last, or null.
  Context* current() { return current_; }
  Context* find(uint32_t number);
  // The context that a stream of a frame belongs to, made current until the next frame: a program may copy on, and wait
  // for, streams of other contexts than its current one. The legacy stream is the current context's. Null: none is
  // current.
  Context* enter_stream(CUstream stream);

  // Binds a handle to a device's primary context and activates it. Binding it again changes nothing.
  CUresult retain_primary(uint64_t handle, CUdevice device, unsigned flags);
  CUresult release_primary(uint64_t handle);
  // The context and all in it go; the handle stays bound, and its next use starts it afresh.
  CUresult reset_primary(uint64_t handle);
  // Takes over a context that cuCtxCreate gave. False: the handle cannot be used.
  bool adopt(uint64_t handle, CUcontext native, CUdevice device);
  CUresult destroy(uint64_t handle);
  // A context with the resources of a bound primary context's device that the descriptor names. It ends with that
  // context at the latest.
  CUresult create_green(uint64_t handle, uint64_t primary, CUdevResourceDesc descriptor, unsigned flags);
  CUresult destroy_green(uint64_t handle);
  template <class Visit>
  void for_each(Visit&& visit) {
    for (uint32_t number : order_) visit(*contexts_[number]);
  }
  // Destroys all of them, newest first.
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
  std::deque<uint32_t> order_;  // of creation
  Context* current_ = nullptr;
  uint32_t current_number_ = 0;
  // Set by the first frame. Relaxed: nothing is published through it, and no other thread runs a call before.
  std::atomic<std::thread::id> executor_{};
};

}  // namespace gpuwire::server
