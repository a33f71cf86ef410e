// The first steps of every driver call: is the driver initialised, which context is current on this thread, which
// session serves it. Used by the generated functions and the hand-written ones.
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
};

struct Caller {
  Session* session = nullptr;       // the connection of `server`
  ServerSession* server = nullptr;  // both set unless Needs::nothing
  uint32_t context = 0;             // the number in the frame header
  uint64_t context_handle =
      0;  // the handle of the context whose memory and modules those of the current one are: owner()
  ContextState* state = nullptr;  // the current context, context.hpp; set for Needs::context and living_context
  CUresult error = CUDA_SUCCESS;  // not success: return it, and nothing else is set
  // Pinned memory at the addresses of this call is used by copies of a graph alone, and its region is made (to_places):
  // no kernel is given a pointer to it here.
  bool for_graph_copies = false;
};

Caller enter(Needs needs) noexcept;
// The program's error, if both a call's arguments and its context (`entering`) are faulty and the arguments come first
// (as measured on driver 580).
CUresult argument_first(CUresult entering, CUresult argument) noexcept;
// The context that owns this caller's allocations, modules and objects, streams apart. Null when there is no current
// one.
ContextState* owner(const Caller& caller) noexcept;

// The result of a forwarded call on its way to the program: records sticky errors in the current context. A success
// becomes the deferred error of an earlier posted call, if the context has one: this is where those surface (call()
// itself ignores a reply's `deferred`, because the notice with the same failure is always read before that reply).
CUresult leave(const Caller& caller, CUresult result) noexcept;

// The wire form of a device argument: the server's ordinal. error: CUDA_ERROR_INVALID_DEVICE.
int32_t server_device(CUdevice device, CUresult& error) noexcept;

// --- handles -------------------------------------------------------------------------------------------------------
// Any thread; lookups take no lock.

// Chooses a handle. 0: too many.
uint64_t create_handle(const Caller& caller, wire::HandleKind kind) noexcept;
// Is the handle one that this process was given and has not destroyed?
bool known_handle(wire::HandleKind kind, uint64_t handle) noexcept;
void forget_handle(wire::HandleKind kind, uint64_t handle) noexcept;

// --- streams: a call resolves its own once, and says so before it sends work ---------------------------------------

// The wire form of a stream argument: NULL and CU_STREAM_LEGACY unchanged; a per-thread stream (CU_STREAM_PER_THREAD,
// or NULL in the _ptds/_ptsz forms: `per_thread`) as this thread's own stream of the context, which is made at its
// first use and announced to the server by before_work(). A look-up: nothing is sent or waited for. error:
// CUDA_ERROR_INVALID_HANDLE, or the reason why no work may be sent there while streams capture.
uint64_t resolve_stream(const Caller& caller, CUstream stream, bool per_thread, CUresult& error) noexcept;
// The arguments for the device may be addresses of pinned memory, which the device must know before the frame leaves
// (host_regions): an address, or bytes that hold some.
void note_address(const Caller& caller, uint64_t address) noexcept;
void note_addresses_in(const Caller& caller, std::span<const std::byte> data) noexcept;
// For a call that is no work and whose bytes the driver reads at once, as the parameters of a graph's node: the device
// knows the memory at the noted addresses when the frame arrives.
void take_profiled_allocations(const Caller& caller) noexcept;
// Before a call that takes memory or reports its amount: cached blocks go back to the server's driver, except those
// whose free would have to wait for work.
void give_back_cached_memory(const Caller& caller) noexcept;
// Where there was no memory: those, too, and libraries that have come ahead of their use. False: nothing was kept.
bool free_cached_memory(const Caller& caller) noexcept;
// For a call that releases memory, before it does: natively it waits for all work of its context. An error of that work
// is the call's result, as natively.
enum class GivenUp : uint8_t {
  at_server,  // by a frame that waits there: here only if the program could notice by memory or functions of its own
  here,
};
CUresult await_work(const Caller& caller, GivenUp what = GivenUp::at_server) noexcept;
// The one step between resolving and beginning a frame that is work in a stream, or waits for some; after the last
// address was noted. Sends all data that the work may read: the program's changes in managed memory and in host
// regions, after making the wanted regions; and the thread's own streams that the server does not know. Managed memory
// is out of the program's reach from here on. Not success: the session is over.
CUresult before_work(const Caller& caller) noexcept;
// The API description's statement about events: the server gets this one and may record it by itself from here on
// (EventState::foreign).
void hand_over_event(uint64_t event) noexcept;
// By this frame the server records some of those, if it launches a graph with nodes for them. With the send lock held.
void note_foreign_records(const Caller& caller, uint64_t sequence) noexcept;
// Records that work was sent to a stream (so that cuStreamQuery cannot be answered from older state). wire handle,
// frame's sequence; may it write to memory of the program?
void note_stream_work(const Caller& caller, uint64_t stream, uint64_t sequence, bool writes_host = true) noexcept;

}  // namespace gpuwire::client
