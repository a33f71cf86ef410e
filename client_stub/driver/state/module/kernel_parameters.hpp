// The sizes of the parameters of a program's kernels, from the program's own image: a launch sends this many bytes of
// the program's memory to the server, so the server's figures are not trusted.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "client_stub/driver/state/module/program_image.hpp"
#include "client_stub/driver/state/warm_start/warm_start.hpp"
#include "protocol/fatbin/kernel_parameters.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// The parameters of linked images. A linked image comes from the server, too, so the program's inputs count. The oldest
// images are forgotten. Any thread.
class LinkedImages {
 public:
  static constexpr size_t kMost = 256;

  void add(const ProgramImage::Digest& image, std::shared_ptr<const fatbin::KernelParameterTable> inputs);
  // Returns null if the image was not linked by this process.
  std::shared_ptr<const fatbin::KernelParameterTable> find(const ProgramImage::Digest& image) const;

 private:
  using Linked = std::pair<ProgramImage::Digest, std::shared_ptr<const fatbin::KernelParameterTable>>;
  mutable Mutex mutex_;
  // The newest is last.
  std::deque<Linked> images_ GUARDED_BY(mutex_);
};
// The linked images of this process; never destroyed.
LinkedImages& linked_images();

// The parameters of one image. To read a large image takes time, so the used kernels are recorded for the next
// programs: a line for each kernel, in the section "parameters" of the image. Any thread. Lock: mutex_, held around the
// store's.
class KernelParameters {
 public:
  KernelParameters(std::shared_ptr<WarmStart> earlier, const ProgramImage::Digest& image);

  // Makes the image's facts available. With `stays`, its bytes stay until forget_image(), and an image with records of
  // earlier programs is read only for a kernel without one. Otherwise the image is read now.
  void read(std::shared_ptr<const ProgramImage> image, bool stays);
  void forget_image() noexcept;

  // Returns the layout of a kernel, or nothing if the image does not contain it.
  std::optional<fatbin::ParameterLayout> of(const std::string& kernel);

  // Format and read a line of the section. read_line() returns nothing for an invalid line. For tests, too.
  static std::string line(const std::string& kernel, const fatbin::ParameterLayout& layout);
  static std::optional<std::pair<std::string, fatbin::ParameterLayout>> read_line(std::string_view line);

 private:
  void read_image() REQUIRES(mutex_);

  Mutex mutex_;
  const std::shared_ptr<WarmStart> warm_start_;
  fatbin::KernelParameterTable earlier_ GUARDED_BY(mutex_), table_ GUARDED_BY(mutex_);
  // The parameters of an image that this process has linked.
  const std::shared_ptr<const fatbin::KernelParameterTable> linked_;
  // Set until the image has been read.
  std::shared_ptr<const ProgramImage> image_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
