// The interface of a library that moves messages by RDMA and is loaded by name: a table of C functions, so that neither
// side needs the other's C++ library. ucx/ has the existing library; rdma.hpp makes a connection of it.
//
// Threads: different ends may be used at the same time, one end by one thread at a time. Functions of Events are called
// inside send(), fetch(), progress() and close() of their end, and may call send() and fetch() of it.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct GpuwireRdmaFabric;  // opened once by a process: devices and their memory
struct GpuwireRdmaEnd;     // one end of one connection

struct GpuwireRdmaEvents {
  // A message, from any sender. `data`: its bytes, only during the call; null: they wait at the sender, and `arrival`
  // is to be given to fetch(). Not 0: it was or will be taken; 0: it is refused, and dropped.
  int (*arrived)(void* user, const void* header, size_t header_bytes, const void* data, size_t bytes, void* arrival);
  // The memory of send() or fetch() is not used any more.
  void (*sent)(void* user, uint64_t tag, int ok);
  void (*fetched)(void* user, uint64_t tag, int ok);
  // Nothing will come or go any more. `why`: a phrase, only during the call.
  void (*broken)(void* user, const char* why);
};

// The state of an operation.
enum GpuwireRdmaOutcome { kGpuwireRdmaDone = 0, kGpuwireRdmaUnderWay = 1, kGpuwireRdmaFailed = 2 };

struct GpuwireRdmaPlugin {
  uint32_t version;  // kGpuwireRdmaVersion
  uint32_t bytes;    // of this structure

  // Null: `error` says why not. `confined`: nothing may be used that reads another process's memory.
  GpuwireRdmaFabric* (*open)(int confined, char* error, size_t error_bytes);
  void (*close_fabric)(GpuwireRdmaFabric* fabric);

  // An end without a peer. `memory`: the memory that its messages are sent from and fetched into, as long as it lives.
  GpuwireRdmaEnd* (*make)(GpuwireRdmaFabric* fabric, const GpuwireRdmaEvents* events, void* user, void* memory,
                          size_t memory_bytes, char* error, size_t error_bytes);
  // By which another end connects to this one. Returns how many bytes it has; more than `room`: nothing was written.
  size_t (*address)(GpuwireRdmaEnd* end, void* out, size_t room);
  // Messages go to this peer from now on. Once. Not 0: done; a later failure is reported as broken.
  int (*connect)(GpuwireRdmaEnd* end, const void* address, size_t bytes, char* error, size_t error_bytes);
  // The header is at most kGpuwireRdmaHeaderBytesMax. It and the data stay until the outcome is done, or sent().
  int (*send)(GpuwireRdmaEnd* end, const void* header, size_t header_bytes, const void* data, size_t bytes,
              uint64_t tag);
  // All bytes of a message that waits, once, after arrived() has returned.
  int (*fetch)(GpuwireRdmaEnd* end, void* arrival, void* into, size_t bytes, uint64_t tag);
  // Drives the operations in flight. 0: there was no work.
  unsigned (*progress)(GpuwireRdmaEnd* end);
  // For poll(): readable when there is something to do, once arm() has agreed to a sleep.
  int (*descriptor)(GpuwireRdmaEnd* end);
  // 0: there is something to do first.
  int (*arm)(GpuwireRdmaEnd* end);
  // Operations in flight are reported as failed, then no function of Events is called any more. 0: the fabric may still
  // use the memory, which has to stay for good.
  int (*close)(GpuwireRdmaEnd* end);
};

// The one symbol of such a library.
using GpuwireRdmaGetPlugin = const GpuwireRdmaPlugin* (*)();

}  // extern "C"

inline constexpr uint32_t kGpuwireRdmaVersion = 1;
inline constexpr size_t kGpuwireRdmaHeaderBytesMax = 64;
inline constexpr const char* kGpuwireRdmaSymbol = "gpuwire_rdma_plugin";
inline constexpr const char* kGpuwireRdmaLibrary = "libgpuwire_rdma.so";
