// Which kernels of an image earlier programs of the user have looked up: they are asked for together with the first one
// that this program looks up, so that they cost one round trip and not one each. Kernels that nobody has used are not:
// the server's driver loads a kernel onto the card when it is asked about it.
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
