// Contexts: what each takes by itself, and by its limits; and the end of all that is in it.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>

namespace gpuwire::server {

struct LedgerParts;

// What a green context takes by itself on a GPU: queues and what belongs to them.
inline constexpr uint64_t kGreenContextBytes = uint64_t{64} << 20;

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
  // Whose memory it is that is allocated in a context: a green context has none of its own, and what is allocated in it outlives it.
  CUcontext owner(CUcontext context) const;

 private:
  struct Charged {
    CUdevice device = 0;
    uint64_t bytes = 0;
    std::map<CUlimit, uint64_t> limits;  // beyond what a fresh context has
  };
  CUresult ended(CUdevice device, CUresult result);
  bool reserve(CUdevice device, uint64_t& bytes);
  void give_back(CUdevice device, uint64_t bytes);
  void created(CUcontext context, CUdevice device, uint64_t bytes);
  void gone(CUcontext context);
  uint64_t limit_bytes(CUdevice device, CUlimit limit, uint64_t value) const;

  LedgerParts& parts_;
  std::mutex primaries_mutex_;  // over a call about a primary context, and its charge; outside of all others
  std::map<CUdevice, CUcontext> primaries_;  // active ones
  struct Green {
    CUgreenCtx handle = nullptr;
    CUcontext primary = nullptr;
    CUdevice device = 0;
    uint64_t bytes = 0;
  };
  mutable std::mutex mutex_;    // over the maps; a leaf
  std::unordered_map<CUcontext, Charged> contexts_;
  std::unordered_map<CUcontext, Green> greens_;  // by the context made of it
};

}  // namespace gpuwire::server
