// Which kernels of an image earlier programs of the user have looked up: they are asked for together with the first one
// that this program looks up, so that they cost one round trip and not one each. Kernels that nobody has used are not:
// the server's driver loads a kernel onto the card when it is asked about it.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/driver/module/image_lines.hpp"

namespace gpuwire::client {

inline constexpr size_t kKernelsAheadMax = 128;   // of one image
inline constexpr size_t kKnownKernelsMax = 1024;  // of one image, those that are not asked for included

// Those of one image: a line for each name, in the folder "kernels". One thread at a time.
class KnownKernels {
 public:
  KnownKernels(std::string folder, const ProgramImage::Digest& image);

  // Those that earlier programs used first.
  std::span<const std::string> ahead() const noexcept {
    return {earlier_.data(), std::min(earlier_.size(), kKernelsAheadMax)};
  }

  // The program has looked up one that was not asked for ahead. An image of which programs use one kernel needs no
  // file.
  void used(std::string_view name);

 private:
  ImageLines lines_;
  std::vector<std::string> earlier_;
  std::optional<std::string> only_;  // the only one that was used, and is written down with the second
};

}  // namespace gpuwire::client
