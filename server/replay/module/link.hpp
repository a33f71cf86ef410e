// The driver's linker at work: the state of the session's cuLink objects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <cuda.h>

#include "server/base/host_memory.hpp"
#include "server/module_cache/module_image.hpp"
#include "server/replay/module/jit_options.hpp"

namespace gpuwire::server {

inline constexpr size_t kLinksMax = 256;        // of one session, at a time
inline constexpr size_t kLinkInputsMax = 1024;  // of one link

struct Link {
  CUlinkState native = nullptr;
  std::unique_ptr<JitOptions> options;                     // the driver writes to its logs until the end
  std::vector<std::shared_ptr<const ModuleImage>> inputs;  // until the end, too
  std::span<const std::byte> image;                        // the driver's, once it is complete
  HostCharge charge;                                       // of the driver's form of the inputs
};

// Executor thread only. By the client's handle.
class LinkTable {
 public:
  Link* find(uint64_t handle);
  // Null: the handle is taken, or there are too many.
  Link* add(uint64_t handle);
  void remove(uint64_t handle) { links_.erase(handle); }
  std::map<uint64_t, Link>& all() { return links_; }

 private:
  std::map<uint64_t, Link> links_;
};

}  // namespace gpuwire::server
