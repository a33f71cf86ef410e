// What every driver call begins with: is the driver initialised, which context is current on this thread, which session
// serves it. Used by the generated functions and the hand-written ones.
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
  living_context,  // the same, but the sticky error is no obstacle: for what the server's driver is to judge then, too
};

struct Caller {
  Session* session = nullptr;       // the connection of `server`
  ServerSession* server = nullptr;  // both set unless Needs::nothing
  uint32_t context = 0;             // what goes into the frame header
  uint64_t context_handle =
      0;  // the handle of the context whose memory and modules those of the current one are: owner()
  ContextState* state = nullptr;  // the current context, context.hpp; set for Needs::context and living_context
  CUresult error = CUDA_SUCCESS;  // not success: return it, and nothing else is set
};

Caller enter(Needs needs) noexcept;
// Of what is wrong with a call and what has befallen its context (`entering`), the one that the program is told where
// the arguments come first (as measured on driver 580).
CUresult argument_first(CUresult entering, CUresult argument) noexcept;
// The context that what this caller allocates, loads or creates belongs to, streams apart. Null when there is no
// current one.
ContextState* owner(const Caller& caller) noexcept;

// The result of a forwarded call on its way to the program: notes sticky errors in the current context. A success
// becomes the deferred error of an earlier posted call, if the context has one: this is where those surface (call()
// itself ignores a reply's `deferred`, because the notice that tells the same failure is always read before that
// reply).
CUresult leave(const Caller& caller, CUresult result) noexcept;

// What travels for a device argument: the server's ordinal. error: CUDA_ERROR_INVALID_DEVICE.
int32_t server_device(CUdevice device, CUresult& error) noexcept;

// --- handles -------------------------------------------------------------------------------------------------------
// Any thread; lookups take no lock.

// Chooses a handle. 0: too many.
uint64_t create_handle(const Caller& caller, wire::HandleKind kind) noexcept;
// Is it one that this process was given and has not destroyed?
bool known_handle(wire::HandleKind kind, uint64_t handle) noexcept;
void forget_handle(wire::HandleKind kind, uint64_t handle) noexcept;

// --- streams: a call resolves its own once, and says so before it sends work ---------------------------------------

// What travels for a stream argument: NULL and CU_STREAM_LEGACY as they are, a per-thread stream (CU_STREAM_PER_THREAD,
// or NULL in the _ptds/_ptsz forms: `per_thread`) as this thread's own stream of the context, which is made when first
// asked for; the server hears of it by before_work(). A look-up: nothing is sent or waited for. error:
// CUDA_ERROR_INVALID_HANDLE, or why no work may be sent there while streams capture.
uint64_t resolve_stream(const Caller& caller, CUstream stream, bool per_thread, CUresult& error) noexcept;
// What a call tells the device may be addresses of pinned memory, which the device must know before the frame leaves
// (host_regions): an address, or bytes that hold some.
void note_address(const Caller& caller, uint64_t address) noexcept;
void note_addresses_in(const Caller& caller, std::span<const std::byte> data) noexcept;
// Before what takes memory or tells how much there is: what the client keeps goes back to the server's driver, but for
// blocks whose free would have to wait for work.
void give_back_kept_memory(const Caller& caller) noexcept;
// Where there was no memory: those, too, and libraries that have come ahead of their use. False: nothing was kept.
bool free_kept_memory(const Caller& caller) noexcept;
// The one step between resolving and beginning a frame that is work in a stream, or waits for some; after the last
// address was noted. Sends what that work may look at: what the program has written to managed memory and to host
// regions, of which it makes those that are wanted; and the thread's own streams that the server has not heard of.
// Managed memory is out of the program's reach from here on. Not success: the session is over.
CUresult before_work(const Caller& caller) noexcept;
// Notes that work was sent to a stream (so that cuStreamQuery cannot be answered from what was known before). wire
// handle, frame's sequence; may it write to memory of the program?
void note_stream_work(const Caller& caller, uint64_t stream, uint64_t sequence, bool writes_host = true) noexcept;

}  // namespace gpuwire::client
