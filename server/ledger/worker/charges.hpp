// The common part of the wrappers of the driver's functions: the books of held memory.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "protocol/threads/mutex.hpp"
#include "server/driver_table.hpp"
#include "server/ledger/worker/saturating.hpp"
#include "server/ledger/worker/session_ledger.hpp"
#include "server/ledger/worker/take.hpp"

namespace gpuwire::server {

// Memory that is charged until it is freed or its context ends.
struct Held {
  uint32_t column = 0;
  uint64_t bytes = 0;
  // Null: it belongs to no context.
  CUcontext context = nullptr;
  // Not 0: the chunk of a small allocation; the chunk is charged instead.
  uint64_t chunk = 0;
  // Others may hold it: it stays charged when it is freed.
  bool left = false;
};

// The driver takes small allocations from chunks of 2 MiB, and releases a chunk when nothing is left in it (measured on
// an H200). A chunk is charged as a whole, so that the memory really taken never exceeds the charge. Any thread.
class ChunkBook {
 public:
  static constexpr uint64_t kChunkBytes = 2u << 20;
  static constexpr uint64_t kSmallBytesMax = 1u << 20;

  static uint64_t chunk_of(CUdeviceptr address) { return address / kChunkBytes; }
  // True: the chunk is new.
  bool enter(uint32_t column, uint64_t chunk, uint64_t bytes);
  // True: the chunk is empty.
  bool leave(uint32_t column, uint64_t chunk, uint64_t bytes);
  // Whether `bytes` might fit into the existing chunks.
  bool has_room(uint32_t column, uint64_t bytes) const;

 private:
  struct Chunk {
    unsigned allocations = 0;
  };
  struct Column {
    uint64_t chunks = 0, bytes = 0;
  };
  // A leaf.
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Chunk> chunks_ GUARDED_BY(mutex_);
  std::unordered_map<uint32_t, Column> columns_ GUARDED_BY(mutex_);
};

// Held memory by address or handle. Any thread.
class HeldBook {
 public:
  explicit HeldBook(SessionLedger& ledger, ChunkBook* chunks = nullptr) : ledger_(ledger), chunks_(chunks) {}

  void put(uint64_t key, Held held);
  // Removes an entry before the driver frees its memory, because the driver may return the same address or handle to
  // another thread at once.
  std::optional<Held> take(uint64_t key);
  // Releases the charge of freed memory.
  void freed(const Held& held);
  // Calls `free`, and releases the charge of the key's memory if there is an entry.
  template <class Free>
  CUresult free(uint64_t key, Free&& free) {
    std::optional<Held> held = take(key);
    CUresult result = free();
    if (held && result == CUDA_SUCCESS) freed(*held);
    if (held && result != CUDA_SUCCESS) put(key, *held);
    return result;
  }
  // Marks the key's memory as held by others.
  void leave(uint64_t key);
  // Releases the charges of a context that has ended.
  void drop(CUcontext context);

 private:
  SessionLedger& ledger_;
  ChunkBook* const chunks_;
  // Taken before the mutex of the chunks.
  Mutex mutex_;
  std::unordered_map<uint64_t, Held> held_ GUARDED_BY(mutex_);
};

// The context and the device of a call.
struct Place {
  CUcontext context = nullptr;
  CUdevice device = 0;
  uint32_t column = 0;
};

class PoolCharges;
class VirtualMemoryCharges;
class ContextCharges;
class GraphCharges;
class FrameCharges;
class LibraryCharges;

// The state of the wrappers. A process has one instance, because driver functions have no argument to pass it in.
struct LedgerParts {
  LedgerParts(const DriverTable& driver, SessionLedger& ledger, std::vector<uint32_t> columns, bool software);
  ~LedgerParts();

  // The driver's table without the wrappers.
  const DriverTable driver;
  SessionLedger& ledger;
  // By the driver's index of the device.
  const std::vector<uint32_t> columns;
  // The software device takes the requested bytes exactly.
  const bool software;

  ChunkBook chunks;
  HeldBook memory, host, arrays, modules, streams;
  // The driver's host memory for modules.
  HeldBook module_code;
  std::unique_ptr<PoolCharges> pools;
  std::unique_ptr<VirtualMemoryCharges> virtual_memory;
  std::unique_ptr<ContextCharges> contexts;
  std::unique_ptr<GraphCharges> graphs;
  std::unique_ptr<FrameCharges> frames;
  std::unique_ptr<LibraryCharges> libraries;

  // Finds the current context's place. Returns the error of a call without a context, or on a device that is not the
  // session's.
  CUresult here(Place& place) const;
  std::optional<uint32_t> column(CUdevice device) const;
  std::optional<uint32_t> column(const CUmemLocation& location) const;
  // Returns the driver's memory for an allocation of `bytes`.
  uint64_t taken(uint64_t bytes) const;
};

LedgerParts& ledger_parts();

// Declared for its type only.
template <class Function>
Function function_of(Function DriverTable::*);

// Replaces a function of the table by its wrapper; a function that the driver lacks stays null.
template <class Function>
void wrap(Function& place, Function wrapper) {
  if (place) place = wrapper;
}

void wrap_memory(DriverTable& table);
void wrap_host_memory(DriverTable& table);
void wrap_virtual_memory(DriverTable& table);
void wrap_pools(DriverTable& table);
void wrap_graphs(DriverTable& table);
void wrap_launches(DriverTable& table);
void wrap_streams(DriverTable& table);
void wrap_arrays(DriverTable& table);
void wrap_modules(DriverTable& table);
void wrap_libraries(DriverTable& table);
void wrap_contexts(DriverTable& table);
void wrap_memory_info(DriverTable& table);

}  // namespace gpuwire::server
