// The program images of a session: those being received and those loaded.
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

// The bound of images that a session sends at the same time.
inline constexpr size_t kTransfersMax = 16;
// Images stored for a session after their arrival, so that a second load needs no cache.
inline constexpr size_t kRecentImagesMax = 64;
inline constexpr uint64_t kRecentImageBytesMax = 512ull << 20;

struct ParameterLayout {
  // The bytes of each parameter.
  std::vector<uint32_t> offsets, sizes;
};

// Executor thread only.
class ModuleStore {
 public:
  // The object loaded under one handle, and the handles of its parts.
  struct Loaded {
    // A library is loaded with CU_LIBRARY_BINARY_IS_PRESERVED, so its bytes stay.
    std::shared_ptr<const ModuleImage> image;
    // The wrapper around the image's containers.
    std::shared_ptr<const fatbin::LinkedWrapper> wrapper;
    // A library is compiled when it is first used. Its logs and times are written then.
    std::shared_ptr<JitOptions> options;
    // The library of a module that could only be loaded as one.
    CUlibrary beneath = nullptr;
    // The handles of its functions or kernels, and of a library's modules and functions.
    std::vector<uint64_t> parts;
    // A look-up in it has run, so a library is compiled by now.
    bool used = false;
  };

  // `account`: is charged for the images; outlives all of them; null: nothing is charged.
  ModuleStore(ModuleCache* cache, std::string tenant, HostMemory* account = nullptr)
      : cache_(cache), tenant_(std::move(tenant)), account_(account) {}

  enum class Offer : uint8_t {
    // The image is stored.
    have,
    // The image's bytes are expected, from offset 0.
    wanted,
    // The tenant's host memory has no room for the image.
    no_memory,
  };
  // Records that the client will load this image.
  Offer offer(const Digest& digest, uint64_t bytes);
  // Receives the next piece. Throws ProtocolFault if it is not the expected piece, or the image does not match its
  // digest.
  void receive(const Digest& digest, uint64_t offset, bool last, BulkReader& bulk);
  // Returns a stored image, or null if the client must offer it (again).
  std::shared_ptr<const ModuleImage> find(const Digest& digest);

  Loaded* loaded(uint64_t handle);
  Loaded& add(uint64_t handle, Loaded loaded);
  void remove(uint64_t handle) { loaded_.erase(handle); }
  // The object that is being loaded under a handle, for look-ups after the load's frame: the pointer holds the driver's
  // module or library once it is loaded. Null: nothing is being loaded.
  std::shared_ptr<void*> begin_loading(uint64_t handle) { return loading_[handle] = std::make_shared<void*>(nullptr); }
  std::shared_ptr<void*> loading(uint64_t handle) const;
  void end_loading(uint64_t handle) { loading_.erase(handle); }
  // The library of a kernel; library_of() returns 0 if there is none.
  void note_kernel(uint64_t kernel, uint64_t library) { libraries_[kernel] = library; }
  uint64_t library_of(uint64_t kernel) const;
  void forget_kernel(uint64_t kernel) { libraries_.erase(kernel); }
  // The parameter layout of the driver's function or kernel, recorded at its look-up, because the driver does not
  // report it after a fault. Null: unknown. A function has one layout, however many handles it has.
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
  // The newest image is last.
  std::deque<std::pair<Digest, std::shared_ptr<const ModuleImage>>> recent_;
  uint64_t recent_bytes_ = 0;
  std::unordered_map<uint64_t, Loaded> loaded_;
  std::unordered_map<uint64_t, std::shared_ptr<void*>> loading_;
  // The library of each kernel.
  std::unordered_map<uint64_t, uint64_t> libraries_;
  std::unordered_map<const void*, ParameterLayout> layouts_;
};

}  // namespace gpuwire::server
