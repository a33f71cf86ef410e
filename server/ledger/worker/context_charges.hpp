// Charges of contexts: the memory of each and of its limits, and the release of all charges in it when it ends.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <unordered_map>

#include "protocol/threads/mutex.hpp"
#include "server/ledger/worker/charges.hpp"

namespace gpuwire::server {

// The memory of a green context on a GPU: queues and their parts (4 to 6 MiB, measured on an H200).
inline constexpr uint64_t kGreenContextBytes = uint64_t{8} << 20;

// The host memory of a context (20,192 KiB with driver 580).
inline constexpr uint64_t kContextHostBytes = uint64_t{24} << 20;

// Any thread.
class ContextCharges {
 public:
  explicit ContextCharges(LedgerParts& parts) : parts_(parts) {}

  bool charge_warm_primary();
  CUresult retain_primary(CUcontext* context, CUdevice device);
  CUresult release_primary(CUdevice device);
  CUresult reset_primary(CUdevice device);

  // Makes a call that creates a context on a device.
  template <class Create>
  CUresult create(CUcontext* context, CUdevice device, Create&& create) {
    return create_with(parts_.software ? 0 : kContextHostBytes, context, device, create);
  }
  CUresult destroy(CUcontext context);
  CUresult set_limit(CUlimit limit, size_t value);
  CUresult create_green(CUgreenCtx* green, CUdevResourceDesc descriptor, CUdevice device, unsigned flags);
  CUresult destroy_green(CUgreenCtx green);
  // Returns the owner of memory that is allocated in a context: a green context owns no memory, and memory allocated in
  // it outlives it.
  CUcontext owner(CUcontext context) const;
  // Empty: the ledger did not see the context's creation.
  std::optional<Place> place_of(CUcontext context) const;
  // The device's primary context; null: it is not retained.
  CUcontext primary(CUdevice device);
  // Reserves local memory of this size for every thread that can be resident, because the driver takes it at the launch
  // and keeps it. Called before a launch in the current context.
  CUresult reserve_frames(uint64_t bytes_per_thread);
  // Takes the memory of a destroyed stream, which stays with its context for the next stream. False: there is none.
  bool take_spare_stream(CUcontext context);
  void keep_spare_stream(CUcontext context);

 private:
  struct Limit {
    // The value of a new context, read once.
    uint64_t fresh = 0;
    // Bytes beyond that.
    uint64_t charged = 0;
  };
  struct Charged {
    CUdevice device = 0;
    // The bytes of the context itself, and of destroyed streams.
    uint64_t bytes = 0;
    uint64_t host_bytes = 0;
    unsigned spare_streams = 0;
    std::map<CUlimit, Limit> limits;
  };
  CUresult ended(CUdevice device, CUresult result) REQUIRES(primaries_mutex_);
  void give_back(CUdevice device, uint64_t bytes);
  void created(CUcontext context, CUdevice device, uint64_t bytes, uint64_t host_bytes);
  template <class Create>
  CUresult create_with(uint64_t host_bytes, CUcontext* context, CUdevice device, Create&& create) {
    auto column = parts_.column(device);
    if (!column) return CUDA_ERROR_OUT_OF_MEMORY;
    const uint64_t most = parts_.ledger.context_bytes(*column);
    auto on_device = [&] {
      // The broker measured this while there was no session; the driver offers no other figure.
      return take(
          parts_.ledger, *column, most, create, [&] { return most; },
          [&](uint64_t bytes) { created(*context, device, bytes, host_bytes); }, [] {});
    };
    return take(
        parts_.ledger, kHostColumn, host_bytes, on_device, [&] { return host_bytes; }, [](uint64_t) {}, [] {});
  }
  void gone(CUcontext context);
  uint64_t limit_bytes(CUdevice device, CUlimit limit, uint64_t value) const;
  // Null: the driver does not report this limit.
  Limit* limit_of(CUcontext context, CUdevice device, CUlimit limit) REQUIRES(limits_mutex_);

  LedgerParts& parts_;
  // Held over a call about a primary context and its charge; taken before all others.
  Mutex primaries_mutex_;
  // Active ones.
  std::map<CUdevice, CUcontext> primaries_ GUARDED_BY(primaries_mutex_);
  // Held over a call about a limit and its charge; taken before mutex_.
  Mutex limits_mutex_;
  struct Green {
    CUgreenCtx handle = nullptr;
    CUcontext primary = nullptr;
    CUdevice device = 0;
    uint64_t bytes = 0;
  };
  // A leaf.
  mutable Mutex mutex_;
  std::unordered_map<CUcontext, Charged> contexts_ GUARDED_BY(mutex_);
  // By the context created from it.
  std::unordered_map<CUcontext, Green> greens_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server
