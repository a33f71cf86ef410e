// Contexts: what each takes by itself, and by its limits; and the end of all that is in it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

namespace gpuwire::server {

struct LedgerParts;

// What a green context takes by itself on a GPU: queues and what belongs to them (4 to 6 MiB, measured on an H200).
inline constexpr uint64_t kGreenContextBytes = uint64_t{8} << 20;

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
    uint64_t bytes = 0;
    if (!reserve(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = create();
    if (result == CUDA_SUCCESS) created(*context, device, bytes);
    else give_back(device, bytes);
    return result;
  }
  CUresult destroy(CUcontext context);
  CUresult set_limit(CUlimit limit, size_t value);
  CUresult create_green(CUgreenCtx* green, CUdevResourceDesc descriptor, CUdevice device, unsigned flags);
  CUresult destroy_green(CUgreenCtx green);
  // Whose memory it is that is allocated in a context: a green context has none of its own, and what is allocated in it
  // outlives it.
  CUcontext owner(CUcontext context) const;
  // Before a kernel whose threads need so much local memory is launched in the current context: the driver takes it for
  // every thread that can be resident, and keeps it.
  CUresult reserve_frames(uint64_t bytes_per_thread);
  // What a stream has taken stays with its context when it is destroyed, for the next one. False: there is none to
  // take.
  bool take_spare_stream(CUcontext context);
  void keep_spare_stream(CUcontext context);

 private:
  struct Limit {
    uint64_t fresh = 0;    // as it was when it was first looked at: what a fresh context has
    uint64_t charged = 0;  // bytes beyond that
  };
  struct Charged {
    CUdevice device = 0;
    uint64_t bytes = 0;  // of its own, and of spare streams
    unsigned spare_streams = 0;
    std::map<CUlimit, Limit> limits;
  };
  CUresult ended(CUdevice device, CUresult result);
  bool reserve(CUdevice device, uint64_t& bytes);
  void give_back(CUdevice device, uint64_t bytes);
  void created(CUcontext context, CUdevice device, uint64_t bytes);
  void gone(CUcontext context);
  uint64_t limit_bytes(CUdevice device, CUlimit limit, uint64_t value) const;
  // With limits_mutex_. Null: the driver does not tell this limit.
  Limit* limit_of(CUcontext context, CUdevice device, CUlimit limit);

  LedgerParts& parts_;
  std::mutex primaries_mutex_;  // over a call about a primary context, and its charge; outside of all others
  std::map<CUdevice, CUcontext> primaries_;  // active ones
  std::mutex limits_mutex_;                  // over a call about a limit, and its charge; outside of mutex_
  struct Green {
    CUgreenCtx handle = nullptr;
    CUcontext primary = nullptr;
    CUdevice device = 0;
    uint64_t bytes = 0;
  };
  mutable std::mutex mutex_;  // over the maps; a leaf
  std::unordered_map<CUcontext, Charged> contexts_;
  std::unordered_map<CUcontext, Green> greens_;  // by the context made of it
};

}  // namespace gpuwire::server
