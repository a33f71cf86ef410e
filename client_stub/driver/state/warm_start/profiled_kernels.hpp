// The kernels of an image that earlier programs of the user looked up. The client asks for them together with the first
// kernel that this program looks up, in one round trip. It does not ask for unused kernels, because the server's driver
// loads a kernel onto the GPU when it is asked about it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/driver/state/warm_start/warm_start.hpp"

namespace gpuwire::client {

inline constexpr size_t kPrefetchedKernelsMax = 128;  // of one image

// The section "kernels" of one image: a line for each name. One thread at a time.
class ProfiledKernels {
 public:
  explicit ProfiledKernels(std::shared_ptr<WarmStart> image);

  // Returns the first of those that earlier programs used.
  std::span<const std::string> ahead() const noexcept { return earlier_; }
  // The program has looked up a kernel.
  void used(std::string_view name);

 private:
  std::shared_ptr<WarmStart> image_;
  std::vector<std::string> earlier_;
};

}  // namespace gpuwire::client
