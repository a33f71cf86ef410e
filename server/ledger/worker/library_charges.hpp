// Charges of libraries: the driver loads a library's code and variables into each context at the first use there.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "protocol/threads/mutex.hpp"
#include "server/ledger/worker/ptx_bytes.hpp"

namespace gpuwire::server {

struct LedgerParts;
struct Place;

// Any thread.
class LibraryCharges {
 public:
  explicit LibraryCharges(LedgerParts& parts) : parts_(parts) {}

  // Records a library and its memory in each context of use. Precondition: the memory is already charged at `place`,
  // the first one.
  void loaded(CUlibrary library, VariableBytes bytes, const Place& place);
  // Calls `unload`.
  template <class Unload>
  CUresult free(CUlibrary library, Unload&& unload) {
    // The driver may return the same handle to another thread at once.
    auto entry = take_out(library);
    CUresult result = unload();
    if (entry && result == CUDA_SUCCESS) freed(entry.mapped());
    if (entry && result != CUDA_SUCCESS) put_back(std::move(entry));
    return result;
  }
  void has_kernel(CUlibrary library, CUkernel kernel);

  // Charges the library in the current context, or without one on the first device, before a call by which the driver
  // may load it there. Not CUDA_SUCCESS: the memory does not fit.
  CUresult use(CUlibrary library);
  // use() for a kernel's library; a handle that is not a kernel's charges nothing.
  CUresult use(CUkernel kernel);
  CUresult use(CUfunction function) { return use(reinterpret_cast<CUkernel>(function)); }
  // use() for a call about the kernel on a device, regardless of the current context.
  CUresult use(CUkernel kernel, CUdevice device);
  void drop(CUcontext context);

 private:
  struct Library {
    VariableBytes bytes;
    // With the charged column; null: charged before there was a context.
    std::map<CUcontext, uint32_t> contexts;
    // Columns charged with managed variables, which outlive contexts.
    std::map<uint32_t, uint64_t> managed;
    std::vector<CUkernel> kernels;
  };
  using Libraries = std::unordered_map<CUlibrary, Library>;
  Libraries::node_type take_out(CUlibrary library);
  void put_back(Libraries::node_type entry);
  void freed(const Library& library);
  CUlibrary library_of(CUkernel kernel);
  CUresult use_at(CUlibrary library, const Place& place);

  LedgerParts& parts_;
  // Taken before the ledger's.
  Mutex mutex_;
  Libraries libraries_ GUARDED_BY(mutex_);
  std::unordered_map<CUkernel, CUlibrary> kernels_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server
