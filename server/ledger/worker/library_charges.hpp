// Libraries: the driver gives each context in which one is used code and variables of its own, at the first use there.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "server/ledger/worker/ptx_bytes.hpp"

namespace gpuwire::server {

struct LedgerParts;
struct Place;

// Any thread.
class LibraryCharges {
 public:
  explicit LibraryCharges(LedgerParts& parts) : parts_(parts) {}

  // Its memory in each place of use; before it is loaded that is charged at `place`, the first such place.
  void loaded(CUlibrary library, VariableBytes bytes, const Place& place);
  // Calls `unload`.
  template <class Unload>
  CUresult free(CUlibrary library, Unload&& unload) {
    auto entry = take_out(library);  // the driver may give the same number to another thread at once
    CUresult result = unload();
    if (entry && result == CUDA_SUCCESS) freed(entry.mapped());
    if (entry && result != CUDA_SUCCESS) put_back(std::move(entry));
    return result;
  }
  void has_kernel(CUlibrary library, CUkernel kernel);

  // Before a call by which the driver may put the library into the current context; without one, on the first device.
  // Not CUDA_SUCCESS: there is no room for it.
  CUresult use(CUlibrary library);
  // Likewise; a handle that is not a kernel's charges nothing.
  CUresult use(CUkernel kernel);
  CUresult use(CUfunction function) { return use(reinterpret_cast<CUkernel>(function)); }
  // Before a call about the kernel on a device, whatever is current.
  CUresult use(CUkernel kernel, CUdevice device);
  void drop(CUcontext context);

 private:
  struct Library {
    VariableBytes bytes;
    std::map<CUcontext, uint32_t> contexts;  // with the column that is charged; null: where no context is yet
    std::map<uint32_t, uint64_t> managed;    // columns that are charged managed variables, which outlive contexts
    std::vector<CUkernel> kernels;
  };
  using Libraries = std::unordered_map<CUlibrary, Library>;
  Libraries::node_type take_out(CUlibrary library);
  void put_back(Libraries::node_type entry);
  void freed(const Library& library);
  CUlibrary library_of(CUkernel kernel);
  CUresult use_at(CUlibrary library, const Place& place);

  LedgerParts& parts_;
  std::mutex mutex_;  // outside of the ledger's
  Libraries libraries_;
  std::unordered_map<CUkernel, CUlibrary> kernels_;
};

}  // namespace gpuwire::server
