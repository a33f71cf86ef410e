// The first steps of every driver call, generated or hand-written: checks that the driver is initialised, and finds the
// thread's current context and its session.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "protocol/wire/handle.hpp"

namespace gpuwire::client {

class ServerSession;
class Session;
struct ContextState;

enum class Needs : uint8_t {
  nothing,      // works before cuInit
  initialised,  // else CUDA_ERROR_NOT_INITIALIZED
  context,  // a current, live context, else CUDA_ERROR_INVALID_CONTEXT or CUDA_ERROR_CONTEXT_IS_DESTROYED; returns the
            // context's sticky error if it has one
  living_context,  // the same, but the sticky error is no obstacle: for calls that the server's driver has to check
                   // then, too
  context_if_any,  // `context` if one is current, otherwise `initialised`: for calls that check arguments before a
                   // missing context
};

struct Caller {
  // The connection of `server`.
  Session* session = nullptr;
  // Set, like `session`, unless the call has Needs::nothing.
  ServerSession* server = nullptr;
  // The number in the frame header.
  uint32_t context = 0;
  // The handle of the context that owns the memory and modules of the current one: owner().
  uint64_t context_handle = 0;
  // The current context (context.hpp). Set for Needs::context and living_context. Null for context_if_any if there is
  // none.
  ContextState* state = nullptr;
  // The call's result if it is not success; nothing else is set then.
  CUresult error = CUDA_SUCCESS;
  // Pinned memory at the addresses of this call is used by copies of a graph alone, and its region exists (to_places).
  // The call gives no kernel a pointer to it.
  bool for_graph_copies = false;
};

Caller enter(Needs needs) noexcept;
// Enters as enter(Needs::context) does. If the thread has no current context, the call is made in the context of the
// stream, module or function with this handle, or in that of the memory at this address (as measured on driver 580).
// Kernels, the default streams and memory of pools have no context of their own.
Caller enter_context_of(wire::HandleKind kind, uint64_t handle) noexcept;
Caller enter_context_at(uint64_t address) noexcept;
// Returns the program's error if both a call's arguments and its context (`entering`) are faulty and the arguments are
// checked first (as measured on driver 580).
CUresult argument_first(CUresult entering, CUresult argument) noexcept;
// Returns the context that owns this caller's allocations, modules and objects, except streams. Null without a current
// context.
ContextState* owner(const Caller& caller) noexcept;

// Converts the result of a forwarded call for the program: records sticky errors in the current context. A success
// becomes the deferred error of an earlier posted call, if the context has one. call() itself ignores a reply's
// `deferred`, because the notice of the same failure is always read before that reply.
CUresult leave(const Caller& caller, CUresult result) noexcept;

// Returns the server's ordinal of a device argument. `error`: CUDA_ERROR_INVALID_DEVICE.
int32_t server_device(CUdevice device, CUresult& error) noexcept;

// --- handles -------------------------------------------------------------------------------------------------------
// Any thread; lookups take no lock.

// Chooses a handle. Returns 0 if there are too many.
uint64_t create_handle(const Caller& caller, wire::HandleKind kind) noexcept;
// Returns whether this process was given the handle and has not destroyed it.
bool known_handle(wire::HandleKind kind, uint64_t handle) noexcept;
void forget_handle(wire::HandleKind kind, uint64_t handle) noexcept;

// An argument for a function may be a kernel handle.
inline bool known_function(uint64_t handle) noexcept {
  return known_handle(
      wire::handle_kind(handle) == wire::HandleKind::kernel ? wire::HandleKind::kernel : wire::HandleKind::function,
      handle);
}

// --- streams: a call resolves its stream once, and calls before_work() before it sends work -------------------------

// Returns the wire form of a stream argument: NULL and CU_STREAM_LEGACY are unchanged; a per-thread stream
// (CU_STREAM_PER_THREAD, or NULL in the _ptds/_ptsz forms: `per_thread`) is this thread's own stream of the context,
// which is made at its first use and announced to the server by before_work(). Sends nothing and does not wait.
// `error`: CUDA_ERROR_INVALID_HANDLE, or the reason why captures forbid work in the stream.
uint64_t resolve_stream(const Caller& caller, CUstream stream, bool per_thread, CUresult& error) noexcept;
// The arguments for the device may be addresses of pinned memory, or contain some. The device must be able to reach
// that memory before the frame is executed (host_regions).
void note_address(const Caller& caller, uint64_t address) noexcept;
void note_addresses_in(const Caller& caller, std::span<const std::byte> data) noexcept;
// For a call that is no work but whose bytes the driver reads at once, such as the parameters of a graph's node: the
// device can reach the memory at the noted addresses when the frame arrives.
void take_profiled_allocations(const Caller& caller) noexcept;
// Called before a call that takes memory or reports its amount. Returns cached blocks to the server's driver, except
// blocks whose free would have to wait for work.
void give_back_cached_memory(const Caller& caller) noexcept;
// Called after a lack of memory. Also frees those blocks, and prefetched libraries. Returns false if nothing was
// cached.
bool free_cached_memory(const Caller& caller) noexcept;
// Called by a call that releases memory, before it does: natively it waits for all work of its context. An error of
// that work is the call's result, as natively.
enum class GivenUp : uint8_t {
  at_server,  // by a frame that waits there: here only if the program could notice by memory or functions of its own
  here,
};
CUresult await_work(const Caller& caller, GivenUp what = GivenUp::at_server) noexcept;
// The step between resolving the stream and beginning a frame that is work in a stream, or waits for work; it follows
// the last noted address. Sends all data that the work may read: the program's changes in managed memory and in host
// regions, after making the wanted regions. Announces the thread's own streams to the server. From here on the program
// cannot access managed memory without a fault. Any result but success means that the session is over.
CUresult before_work(const Caller& caller) noexcept;
// Marks the event as foreign (EventState::foreign): by the API description, the call passes the event to the server,
// which may record it from here on.
void hand_over_event(uint64_t event) noexcept;
// The frame launches a graph in which the server may record foreign events. Lock: the send lock.
void note_foreign_records(const Caller& caller, uint64_t sequence) noexcept;
// Records that work was sent to a stream, so that cuStreamQuery is not answered from older state. Arguments: wire
// handle, the frame's sequence, and whether the work may write to memory of the program.
void note_stream_work(const Caller& caller, uint64_t stream, uint64_t sequence, bool writes_host = true) noexcept;

}  // namespace gpuwire::client
