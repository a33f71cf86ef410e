// The libraries and modules that earlier runs of this program used. The client prefetches them when the program uses
// the first.
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

// An image, its form in the program (library or module), and its first used kernel.
struct ProfiledImage {
  wire::HandleKind kind;
  SubjectDigest digest;
  std::string kernel;
};

// The section "images" of one program: a line for each image, in the order of first use. One thread at a time.
class ProfiledImages {
 public:
  explicit ProfiledImages(std::shared_ptr<WarmStart> program);

  // Returns the images of earlier runs.
  std::span<const ProfiledImage> earlier() const noexcept { return {images_.data(), earlier_}; }
  // In any form.
  bool holds(const SubjectDigest& image) const noexcept;

  // This run has used a kernel of the image for the first time.
  void used(wire::HandleKind kind, const SubjectDigest& image, std::string_view kernel);
  bool is_used(const SubjectDigest& image) const noexcept { return used_.contains(image); }
  // Removes the images that this run has not used: the program has changed.
  void forget_unused();

 private:
  const std::shared_ptr<WarmStart> program_;
  std::vector<ProfiledImage> images_;
  // The number of images from earlier runs.
  size_t earlier_ = 0;
  std::set<SubjectDigest> used_;
};

}  // namespace gpuwire::client
