// The program images of a session, on their way in and loaded.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "protocol/fatbin/linked_image.hpp"
#include "server/module_cache/digest.hpp"
#include "server/module_cache/module_image.hpp"

namespace gpuwire::server {

class BulkReader;
class JitOptions;
class ModuleCache;

// Images of which a session sends pieces at the same time.
inline constexpr size_t kTransfersMax = 16;
// Images kept for a session after they have arrived, so that loading one a second time needs no cache.
inline constexpr size_t kRecentImagesMax = 64;
inline constexpr uint64_t kRecentImageBytesMax = 512ull << 20;

struct ParameterLayout {
  std::vector<uint32_t> offsets, sizes;  // bytes, of each
};

// Executor thread only.
class ModuleStore {
 public:
  // The object loaded under one handle, and the entries of the driver and the handle table because of it.
  struct Loaded {
    std::shared_ptr<const ModuleImage>
        image;  // a library is loaded with CU_LIBRARY_BINARY_IS_PRESERVED: its bytes stay
    std::shared_ptr<const fatbin::LinkedWrapper> wrapper;  // and the wrappers around them
    std::shared_ptr<JitOptions>
        options;                  // a library is compiled when it is first used: logs and times are written then
    CUlibrary beneath = nullptr;  // a module's that could only be loaded as a library
    std::vector<uint64_t> parts;  // handles of its functions or kernels, and of a library's modules and functions
    bool used = false;            // something in it has been looked up: a library is compiled by now
  };

  // `account`: of the images; outlives them all, null: nobody counts.
  ModuleStore(ModuleCache* cache, std::string tenant, HostMemory* account = nullptr)
      : cache_(cache), tenant_(std::move(tenant)), account_(account) {}

  enum class Offer : uint8_t {
    have,       // it is here
    wanted,     // its bytes are expected, from offset 0
    no_memory,  // the tenant may not have this much more of this machine's memory
  };
  // The client means to load this image.
  Offer offer(const Digest& digest, uint64_t bytes);
  // The next piece. Throws ProtocolFault when it is not the one that is due, or the image turns out to be another.
  void receive(const Digest& digest, uint64_t offset, bool last, BulkReader& bulk);
  // An image that was offered or has been used before; null: it must be offered (again).
  std::shared_ptr<const ModuleImage> find(const Digest& digest);

  Loaded* loaded(uint64_t handle);
  Loaded& add(uint64_t handle, Loaded loaded);
  void remove(uint64_t handle) { loaded_.erase(handle); }
  // The object that is being loaded under a handle, for look-ups that come behind it: the place has the driver's module
  // or library once it is loaded. Null: nothing is being loaded.
  std::shared_ptr<void*> begin_loading(uint64_t handle) { return loading_[handle] = std::make_shared<void*>(nullptr); }
  std::shared_ptr<void*> loading(uint64_t handle) const;
  void end_loading(uint64_t handle) { loading_.erase(handle); }
  // Which library a kernel is of; 0 if none.
  void note_kernel(uint64_t kernel, uint64_t library) { libraries_[kernel] = library; }
  uint64_t library_of(uint64_t kernel) const;
  void forget_kernel(uint64_t kernel) { libraries_.erase(kernel); }
  // Where the parameters of the driver's function or kernel lie, as it said when that was looked up: after a fault it
  // says no more. Null: not known. One for each function, however many handles it has.
  void note_parameters(const void* function, ParameterLayout layout) { layouts_[function] = std::move(layout); }
  const ParameterLayout* parameters_of(const void* function) const;
  void forget_parameters(const void* function) { layouts_.erase(function); }
  void clear();

 private:
  struct Transfer {
    std::shared_ptr<ModuleImage> image;
    uint64_t received = 0;
  };
  void remember(const Digest& digest, std::shared_ptr<const ModuleImage> image);

  ModuleCache* cache_;
  std::string tenant_;
  HostMemory* const account_;
  std::map<Digest, Transfer> transfers_;
  std::deque<std::pair<Digest, std::shared_ptr<const ModuleImage>>> recent_;  // newest last
  uint64_t recent_bytes_ = 0;
  std::unordered_map<uint64_t, Loaded> loaded_;
  std::unordered_map<uint64_t, std::shared_ptr<void*>> loading_;
  std::unordered_map<uint64_t, uint64_t> libraries_;  // by kernel
  std::unordered_map<const void*, ParameterLayout> layouts_;
};

}  // namespace gpuwire::server
