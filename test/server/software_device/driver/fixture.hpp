// A driver with two small devices, and helpers for every test.
#pragma once

#include <cuda.h>
#include <doctest/doctest.h>

#include <cstddef>
#include <future>
#include <string>
#include <vector>

namespace gpuwire::software_device::test {

inline constexpr int kDevices = 2;
inline constexpr size_t kMemoryBytes = size_t{256} << 20;

// A context of its own on a device, current while it lives.
class CurrentContext {
 public:
  explicit CurrentContext(int device = 0);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  CUcontext handle = nullptr;
};

// Kernels: add_one(u32* p), fill(u32* p, u32 value, u32 count), store_far(u32* p, u64 offset), hang(u32* flag) spins
// until *flag != 0, say(u32 n) prints "n=%d\n", shared_sum(u32* p) with 1 KiB of static shared memory, die() traps;
// variables counter (u32, 5) and limits (4 u32).
extern const char* const kPtx;

CUmodule load(const char* ptx = kPtx);
CUfunction function(CUmodule module, const char* name);
CUdeviceptr allocate(size_t bytes);
std::vector<unsigned> read(CUdeviceptr address, size_t count);
void write(CUdeviceptr address, const std::vector<unsigned>& values);
CUresult launch(CUfunction function, void** parameters, CUstream stream = nullptr, unsigned blocks = 1,
                unsigned threads = 1);
// Launches add_one on one word.
CUresult launch_add_one(CUfunction function, CUdeviceptr address, CUstream stream = nullptr);

// A host function that waits for the test's signal.
struct Barrier {
  std::promise<void> gate;
  std::shared_future<void> opened = gate.get_future().share();
  static void CUDA_CB wait(void* self) { static_cast<Barrier*>(self)->opened.wait(); }
};

}  // namespace gpuwire::software_device::test
