// The state of the session's cuLink objects.
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

inline constexpr size_t kLinksMax = 256;        // of one session at the same time
inline constexpr size_t kLinkInputsMax = 1024;  // of one link

struct Link {
  CUlinkState native = nullptr;
  std::unique_ptr<JitOptions> options;                     // the driver writes to its logs until the link ends
  std::vector<std::shared_ptr<const ModuleImage>> inputs;  // used by the driver until the link ends
  std::span<const std::byte> image;                        // owned by the driver; set once the link is complete
  HostCharge charge;                                       // for the driver's form of the inputs
};

// The links by the client's handle. Executor thread only.
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
