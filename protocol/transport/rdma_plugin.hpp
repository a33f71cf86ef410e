// The interface of a library that moves messages by RDMA and is loaded by name: a table of C functions, so that neither
// side needs the other's C++ library. ucx/ contains the only such library; rdma.hpp implements a connection on this
// interface.
//
// Threads: different ends may be used at the same time, one end by one thread at a time. The functions of Events are
// called inside send(), fetch(), progress() and close() of their end, and may call send() and fetch() of that end.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct GpuwireRdmaFabric;  // devices and their memory, opened once by a process
struct GpuwireRdmaEnd;     // one end of one connection

struct GpuwireRdmaEvents {
  // A message has arrived, from any sender. `data`: the message's bytes, valid only during the call; null: the bytes
  // wait at the sender, and `arrival` is to be passed to fetch(). Returns nonzero if the message was or will be taken,
  // 0 if it is refused and dropped.
  int (*arrived)(void* user, const void* header, size_t header_bytes, const void* data, size_t bytes, void* arrival);
  // The library no longer uses the memory that was passed to send() or fetch().
  void (*sent)(void* user, uint64_t tag, int ok);
  void (*fetched)(void* user, uint64_t tag, int ok);
  // No more messages will arrive or leave. `why`: a phrase, valid only during the call.
  void (*broken)(void* user, const char* why);
};

// The state of an operation.
enum GpuwireRdmaOutcome { kGpuwireRdmaDone = 0, kGpuwireRdmaUnderWay = 1, kGpuwireRdmaFailed = 2 };

struct GpuwireRdmaPlugin {
  // kGpuwireRdmaVersion.
  uint32_t version;
  // Size of this structure.
  uint32_t bytes;

  // Opens the devices. Returns null on failure, with the reason in `error`. `confined`: the library may use nothing
  // that reads another process's memory.
  GpuwireRdmaFabric* (*open)(int confined, char* error, size_t error_bytes);
  void (*close_fabric)(GpuwireRdmaFabric* fabric);

  // Creates an end without a peer. Messages are sent from and fetched into `memory`, which outlives the end.
  GpuwireRdmaEnd* (*make)(GpuwireRdmaFabric* fabric, const GpuwireRdmaEvents* events, void* user, void* memory,
                          size_t memory_bytes, char* error, size_t error_bytes);
  // Writes the address by which another end connects to this one. Returns the address's length; if it exceeds `room`,
  // nothing was written.
  size_t (*address)(GpuwireRdmaEnd* end, void* out, size_t room);
  // Sets the peer of this end, once. Returns nonzero on success; a later failure is reported by Events::broken.
  int (*connect)(GpuwireRdmaEnd* end, const void* address, size_t bytes, char* error, size_t error_bytes);
  // Sends a message. The header has at most kGpuwireRdmaHeaderBytesMax bytes. Header and data stay valid until the
  // outcome is done, or until Events::sent.
  int (*send)(GpuwireRdmaEnd* end, const void* header, size_t header_bytes, const void* data, size_t bytes,
              uint64_t tag);
  // Fetches all bytes of a waiting message, once, after arrived() has returned.
  int (*fetch)(GpuwireRdmaEnd* end, void* arrival, void* into, size_t bytes, uint64_t tag);
  // Drives the operations in flight. Returns 0 if there was no work.
  unsigned (*progress)(GpuwireRdmaEnd* end);
  // Returns a descriptor for poll() that becomes readable when there is work, after arm() has returned nonzero.
  int (*descriptor)(GpuwireRdmaEnd* end);
  // Prepares for a sleep on descriptor(). Returns 0 if there is work to do first.
  int (*arm)(GpuwireRdmaEnd* end);
  // Closes the end. Operations in flight are reported as failed; afterwards no function of Events is called. Returns 0
  // if the fabric may still use the memory, which then must never be freed.
  int (*close)(GpuwireRdmaEnd* end);
};

// The type of the library's only exported symbol.
using GpuwireRdmaGetPlugin = const GpuwireRdmaPlugin* (*)();

}  // extern "C"

inline constexpr uint32_t kGpuwireRdmaVersion = 1;
inline constexpr size_t kGpuwireRdmaHeaderBytesMax = 64;
inline constexpr const char* kGpuwireRdmaSymbol = "gpuwire_rdma_plugin";
inline constexpr const char* kGpuwireRdmaLibrary = "libgpuwire_rdma.so";
