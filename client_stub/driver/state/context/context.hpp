// Contexts as the stub knows them, and each thread's stack of current ones.
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
inline constexpr unsigned kContextLimits = 12;        // CUlimit values known to cuda.h 13.0, and room

// One context of the program. Never freed and its handle never reused: a destroyed context may still stand on a
// thread's stack, and its calls must then say so (CUDA_ERROR_CONTEXT_IS_DESTROYED).
struct ContextState {
  uint64_t handle = 0;
  ServerSession* server = nullptr;  // where it is
  int device = 0;                   // the program's ordinal
  bool primary = false;
  // The owner of its memory, modules, events and faults: for a green context the device's primary context, otherwise
  // itself.
  ContextState* base = this;
  bool is_green() const noexcept { return base != this; }
  uint64_t id = 0;  // cuCtxGetId

  // Is there a context behind it at the server: false for a primary one that is not retained, and after destruction.
  // Set before the handle is handed out or a posted frame can use it; read relaxed by enter(): a thread that races with
  // retain or destroy sees either.
  std::atomic<bool> alive{false};
  std::atomic<bool> destroyed{false};
  std::atomic<uint32_t> flags{0};

  // CUresult of the fault that ended the context's usefulness, 0: none, kPerhapsFaulty: another context of the device
  // has had one; that of `base` counts. A fault never leaves it again but by a reset of a primary context.
  std::atomic<int32_t> sticky{0};
  static constexpr int32_t kPerhapsFaulty = INT32_MAX;
  // First failure of a posted call that no call has reported yet. Written by the notice handler, taken by leave().
  std::atomic<int32_t> deferred{0};

  // Sequences of frames, see stream.hpp. `work`: newest work on any stream; `done`: everything up to it is known to be
  // done.
  std::atomic<uint64_t> work{0};
  std::atomic<uint64_t> done{0};
  // The newest work that may write to memory of the program, except work known to write only to the device's: in
  // streams that the NULL stream waits for, and in the others.
  std::atomic<uint64_t> host_writes{0}, host_writes_beside{0};
  // The newest frame behind which all work of the context has ended when the next one comes (CachedMemory).
  std::atomic<uint64_t> rested{0};
  // Has anything been sent to a stream that synchronises with the NULL stream? Never reset; read by a thread that freed
  // memory which such work may have used: relaxed.
  std::atomic<bool> blocking_work{false};
  StreamState legacy;  // the NULL stream; `work` there counts all streams that synchronise with it
  // Captures under way in this context, and those among them that began in a stream which synchronises with the NULL
  // stream.
  std::atomic<uint32_t> captures{0};
  std::atomic<uint32_t> blocking_captures{0};

  // For a primary context it also guards changes of `alive`, with the frames that report them to the server,
  // so that both have one order. No function of the program runs under it, and no reply is waited for.
  Mutex mutex;
  uint64_t limits[kContextLimits] GUARDED_BY(mutex) = {};  // ~0: not asked, or the query failed
  uint32_t usage GUARDED_BY(mutex) = 0;      // primary: retains, with those of green contexts; others: cuCtxAttach
  uint32_t greens GUARDED_BY(mutex) = 0;     // primary: the green contexts that hold it
  uint32_t preparing GUARDED_BY(mutex) = 0;  // primary: threads that are about to end it (prepare_end())
  uint64_t lives GUARDED_BY(mutex) = 0;      // primary: how often it has begun
};

// Is there work that may write to memory of the program, and is not known to be done?
bool host_writes_under_way(const ContextState& context) noexcept;

inline CUcontext as_cuda(const ContextState* context) {
  return context ? reinterpret_cast<CUcontext>(context->handle) : nullptr;
}

inline constinit std::atomic<uint64_t> next_thread_number{1};

// One thread's own state. Owned by the thread, freed when it ends.
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
    bool announced;  // does the server know it?
  };
  std::vector<OwnStream> own_streams;  // CU_STREAM_PER_THREAD, one per context used
};

// The thread's current context, or null. In the static TLS block: read in every driver call.
extern thread_local constinit ContextState* t_context __attribute__((tls_model("initial-exec")));

// Has the thread an own stream that the server does not know? Checked before all work.
extern thread_local constinit bool t_unannounced __attribute__((tls_model("initial-exec")));

// Created when first asked for. Null: no memory.
ThreadState* thread_state() noexcept;
// Returns the number of the calling thread; 0: there is no memory for its state.
inline uint64_t thread_number() noexcept {
  const ThreadState* thread = thread_state();
  return thread ? thread->number : 0;
}

// From a program's handle: null with `error` = CUDA_ERROR_INVALID_CONTEXT (never given out). Destroyed ones are found.
ContextState* find_context(CUcontext context) noexcept;
// `context`, or the current one for NULL; null: neither. `error` says why.
ContextState* context_or_current(CUcontext context, CUresult& error) noexcept;

// The known state of a context: success, CUDA_ERROR_CONTEXT_IS_DESTROYED or its sticky error.
inline CUresult context_health(const ContextState& context) noexcept {
  if (!context.alive.load(std::memory_order_relaxed)) [[unlikely]]
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  const int32_t sticky = context.base->sticky.load(std::memory_order_relaxed);
  return sticky == ContextState::kPerhapsFaulty ? CUDA_SUCCESS : CUresult(sticky);
}
// The same for a call of the program that enters the context: asks the server's driver where a fault of another context
// may have reached this one. Without locks.
CUresult health_at_entry(ContextState& context) noexcept;
// The context has had a fault, whose first report counts. A fault leaves all contexts that the device has at that time
// unusable (as measured on driver 580); which those were, only the server's driver knows. Any thread; sends nothing.
void note_fault(ContextState& context, CUresult fault) noexcept;

using gpuwire::cuda_abi::is_sticky;

// CUctx_flags that the program gave its context: kept, and how it wants its threads to wait holds for the whole
// session.
void set_flags(ContextState& context, Session& session, unsigned flags) noexcept;

// enter(Needs::context) for a given context instead of the current one.
Caller enter_context(ContextState& context) noexcept;

// The context is about to end: runs the libraries' callbacks on it, which may call the driver, and releases cached
// objects in it. It may continue to live all the same. No lock is held.
void prepare_end(ContextState& context) noexcept;
// The context is dead from here on, and all its objects are forgotten; its end is sent next. Behind prepare_end(). For
// a primary context its mutex is held.
void end_context(ContextState& context) noexcept;

// All objects of a context are gone at the server, and what the client has of them ends; called after the context has
// been marked dead, without locks held.
void forget_memory_of(const ContextState& context) noexcept;
void forget_modules_of(const ContextState& context) noexcept;
// Pinned memory that was made in the context is no region any more, and registered memory is not pinned. Before the
// server is notified.
void forget_host_memory_of(const ContextState& context) noexcept;

// cuCtxSynchronize in the current context, and in that of a caller which has entered.
CUresult synchronise_current_context() noexcept;
CUresult synchronise_entered(const Caller& caller) noexcept;

}  // namespace gpuwire::client
