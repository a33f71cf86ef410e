// The stub's state of contexts, and each thread's stack of current contexts.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "client_stub/driver/state/stream/stream.hpp"
#include "protocol/cuda_abi/sticky.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

struct Caller;
struct Device;
class ServerSession;
class Session;

inline constexpr unsigned kContextFlagsKnown = 0xff;  // CU_CTX_FLAGS_MASK of cuda.h 13.0
// The CUlimit values that cuda.h 13.0 has, and room for more.
inline constexpr unsigned kContextLimits = 12;

// One context of the program. The object is never freed and its handle never reused: a destroyed context may still be
// on a thread's stack, and calls in it must return CUDA_ERROR_CONTEXT_IS_DESTROYED.
struct ContextState {
  uint64_t handle = 0;
  // The server at which the context is.
  ServerSession* server = nullptr;
  // The program's ordinal of the device.
  int device = 0;
  bool primary = false;
  // The owner of its memory, modules, events and faults: for a green context the device's primary context, otherwise
  // itself.
  ContextState* base = this;
  bool is_green() const noexcept { return base != this; }
  // The id that cuCtxGetId returns.
  uint64_t id = 0;

  // The server has the context: false for a primary context that is not retained, and after destruction. Set before the
  // program gets the handle or a posted frame can use it. enter() reads it relaxed: a thread that races with retain or
  // destroy sees either value.
  std::atomic<bool> alive{false};
  std::atomic<bool> destroyed{false};
  std::atomic<uint32_t> flags{0};

  // The CUresult of the fault that made the context unusable; 0: none; kPerhapsFaulty: another context of the device
  // has had a fault. The value of `base` counts. Only a reset of a primary context removes a fault.
  std::atomic<int32_t> sticky{0};
  static constexpr int32_t kPerhapsFaulty = INT32_MAX;
  // The first failure of a posted call that no call has reported yet. The notice handler writes it, leave() takes it.
  std::atomic<int32_t> deferred{0};

  // Sequences of frames (stream.hpp). `work` is the newest work on any stream; all work up to `done` is known to be
  // done.
  std::atomic<uint64_t> work{0};
  std::atomic<uint64_t> done{0};
  // The newest work that may write to memory of the program, except work known to write only to the device's: in
  // streams that the NULL stream waits for, and in the others.
  std::atomic<uint64_t> host_writes{0}, host_writes_beside{0};
  // The newest frame before which all work of the context has ended when the next frame arrives (CachedMemory).
  std::atomic<uint64_t> rested{0};
  // Work has been sent to a stream that synchronises with the NULL stream. Never reset. Relaxed: a thread reads it that
  // has freed memory which such work may have used.
  std::atomic<bool> blocking_work{false};
  // The NULL stream. Its `work` counts all streams that synchronise with it.
  StreamState legacy;
  // Captures under way in this context, and those among them that began in a stream which synchronises with the NULL
  // stream.
  std::atomic<uint32_t> captures{0};
  std::atomic<uint32_t> blocking_captures{0};

  // For a primary context the mutex also guards changes of `alive`, together with the frames that report them to the
  // server, so that both have one order. While it is held, no function of the program runs, and no thread waits for a
  // reply.
  Mutex mutex;
  // ~0 for a limit that was not queried, or whose query failed.
  uint64_t limits[kContextLimits] GUARDED_BY(mutex) = {};
  // The retains of a primary context, with those of green contexts; for other contexts the count of cuCtxAttach.
  uint32_t usage GUARDED_BY(mutex) = 0;
  // The green contexts that retain a primary context.
  uint32_t greens GUARDED_BY(mutex) = 0;
  // The threads that are about to end a primary context (prepare_end()).
  uint32_t preparing GUARDED_BY(mutex) = 0;
  // The number of times that a primary context has begun.
  uint64_t lives GUARDED_BY(mutex) = 0;
};

// Returns whether work that may write to memory of the program is not known to be done.
bool host_writes_under_way(const ContextState& context) noexcept;

inline CUcontext as_cuda(const ContextState* context) {
  return context ? reinterpret_cast<CUcontext>(context->handle) : nullptr;
}

inline constinit std::atomic<uint64_t> next_thread_number{1};

// The state of one thread, which owns it. Freed when the thread ends.
struct ThreadState {
  // Unlike its address, a thread's number is never that of another thread.
  uint64_t number = next_thread_number.fetch_add(1, std::memory_order_relaxed);
  // back() is the current context, which t_context repeats.
  std::vector<ContextState*> stack;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  // The thread runs a host function of the program.
  bool in_callback = false;
  struct OwnStream {
    ContextState* context;
    uint64_t stream;
    // The server knows the stream.
    bool announced;
  };
  // The thread's CU_STREAM_PER_THREAD, one for each context that it has used.
  std::vector<OwnStream> own_streams;
};

// The thread's current context, or null. It is in the static TLS block, because every driver call reads it.
extern thread_local constinit ContextState* t_context __attribute__((tls_model("initial-exec")));

// The thread has a stream of its own that the server does not know. Checked before all work.
extern thread_local constinit bool t_unannounced __attribute__((tls_model("initial-exec")));

// Returns the thread's state, which the first call creates; null if there is no memory.
ThreadState* thread_state() noexcept;
// Returns the number of the calling thread; 0: there is no memory for its state.
inline uint64_t thread_number() noexcept {
  const ThreadState* thread = thread_state();
  return thread ? thread->number : 0;
}

// Returns whether this thread runs a host function of the program, which must not wait for the device
// (CUDA_ERROR_NOT_PERMITTED).
bool in_host_callback() noexcept;
// Ends the streams of its own (CU_STREAM_PER_THREAD) of a thread that ends.
void end_own_streams(const ThreadState& thread) noexcept;

// Returns the context of a program's handle, even a destroyed one; null, with `error` = CUDA_ERROR_INVALID_CONTEXT, if
// the handle was never given out.
ContextState* find_context(CUcontext context) noexcept;
// Returns the context of the handle, or the current one for NULL. Null: there is none, and `error` is the call's
// result.
ContextState* context_or_current(CUcontext context, CUresult& error) noexcept;

// Returns the known state of a context: success, CUDA_ERROR_CONTEXT_IS_DESTROYED or its sticky error.
inline CUresult context_health(const ContextState& context) noexcept {
  if (!context.alive.load(std::memory_order_relaxed)) [[unlikely]]
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const int32_t sticky = context.base->sticky.load(std::memory_order_relaxed);
  return sticky == ContextState::kPerhapsFaulty ? CUDA_SUCCESS : CUresult(sticky);
}
// Returns the state of a context for a call of the program that enters it: asks the server's driver if a fault of
// another context may have reached this one. Lock: none.
CUresult health_at_entry(ContextState& context) noexcept;
// Notes a fault of the context, whose first report counts. A fault makes all contexts unusable that the device has at
// that time (as measured on driver 580); only the server's driver knows which those were. Sends nothing. Any thread.
void note_fault(ContextState& context, CUresult fault) noexcept;

using gpuwire::cuda_abi::is_sticky;

// Stores the flags that the program gave its context. Their part about waiting threads applies to the whole session.
void set_flags(ContextState& context, Session& session, unsigned flags) noexcept;

// Enters a call for a given context instead of the current one, as enter(Needs::context) does.
Caller enter_context(ContextState& context) noexcept;

// Prepares the end of the context: runs the libraries' callbacks on it, which may call the driver, and releases cached
// objects in it. The context may live on. Lock: none.
void prepare_end(ContextState& context) noexcept;
// Ends the context and forgets all its objects; the caller then sends its end. Precondition: prepare_end() has run.
// Lock: for a primary context, its mutex.
void end_context(ContextState& context) noexcept;

// End the client's state of a context's objects, which the server has destroyed. Precondition: the context is marked
// dead. Lock: none.
void forget_memory_of(const ContextState& context) noexcept;
void forget_modules_of(const ContextState& context) noexcept;
// Ends the regions of pinned memory that was allocated in the context, and its registrations. Called before the server
// is notified.
void forget_host_memory_of(const ContextState& context) noexcept;

// cuCtxSynchronize in the current context, and in that of a caller that has entered.
CUresult synchronise_current_context() noexcept;
CUresult synchronise_entered(const Caller& caller) noexcept;

}  // namespace gpuwire::client
