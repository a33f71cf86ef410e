// Which libraries and modules earlier runs of this program have used: those are loaded ahead when it begins to use the
// first.
#pragma once

#include <cstddef>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/driver/state/warm_start/warm_start.hpp"
#include "protocol/wire/handle.hpp"

namespace gpuwire::client {

inline constexpr size_t kProfiledImagesMax = 256;  // of one program

// An image, what the program makes of it (a library or a module), and the first kernel of it that was used.
struct ProfiledImage {
  wire::HandleKind kind;
  ProgramImage::Digest digest;
  std::string kernel;
};

// The section "images" of one program: a line for each, in the order in which they were first used. One thread at a
// time.
class ProfiledImages {
 public:
  explicit ProfiledImages(std::shared_ptr<WarmStart> program);

  // Those that earlier runs used.
  std::span<const ProfiledImage> earlier() const noexcept { return {images_.data(), earlier_}; }
  bool holds(const ProgramImage::Digest& image) const noexcept;  // in whatever form

  // This run has used a kernel of an image for the first time.
  void used(wire::HandleKind kind, const ProgramImage::Digest& image, std::string_view kernel);
  bool is_used(const ProgramImage::Digest& image) const noexcept { return used_.contains(image); }
  // From now on only those are known that this run has used: the others are not what the program is now.
  void forget_unused();

 private:
  const std::shared_ptr<WarmStart> program_;
  std::vector<ProfiledImage> images_;
  size_t earlier_ = 0;  // so many of them were known from the start
  std::set<ProgramImage::Digest> used_;
};

}  // namespace gpuwire::client
