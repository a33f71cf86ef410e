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

// The links of one session at the same time.
inline constexpr size_t kLinksMax = 256;
// The inputs of one link.
inline constexpr size_t kLinkInputsMax = 1024;

struct Link {
  CUlinkState native = nullptr;
  // The driver writes to the logs until the link ends.
  std::unique_ptr<JitOptions> options;
  // The driver uses the inputs until the link ends.
  std::vector<std::shared_ptr<const ModuleImage>> inputs;
  // The driver owns the image. Set once the link is complete.
  std::span<const std::byte> image;
  // The charge of the driver's form of the inputs.
  HostCharge charge;
};

// The links by the client's handle. Executor thread only.
class LinkTable {
 public:
  Link* find(uint64_t handle);
  // Adds a link. Returns null if the handle is taken, or there are too many.
  Link* add(uint64_t handle);
  void remove(uint64_t handle) { links_.erase(handle); }
  std::map<uint64_t, Link>& all() { return links_; }

 private:
  std::map<uint64_t, Link> links_;
};

}  // namespace gpuwire::server
