// The sizes of the parameters of a program's kernels, by the program's own image: a launch sends this many bytes of the
// program's memory to the server, whose figure is not trusted.
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

// The output of the server's linker comes from the server, too: for such images the program's inputs count. The oldest
// linked images are forgotten. Any thread.
class LinkedImages {
 public:
  static constexpr size_t kMost = 256;

  void add(const ProgramImage::Digest& image, std::shared_ptr<const fatbin::KernelParameterTable> inputs);
  // Null: it is none that was linked here.
  std::shared_ptr<const fatbin::KernelParameterTable> find(const ProgramImage::Digest& image) const;

 private:
  using Linked = std::pair<ProgramImage::Digest, std::shared_ptr<const fatbin::KernelParameterTable>>;
  mutable Mutex mutex_;
  std::deque<Linked> images_ GUARDED_BY(mutex_);  // the newest last
};
// The process's; never destroyed.
LinkedImages& linked_images();

// For one image. Reading a large one takes time, so the used kernels are recorded for the next programs: a line for
// each kernel, in the section "parameters" of the image. Any thread. Lock: mutex_, held around the store's.
class KernelParameters {
 public:
  KernelParameters(std::shared_ptr<WarmStart> earlier, const ProgramImage::Digest& image);

  // From here on the image's facts can be looked up. `stays`: its bytes do until forget_image(), and an image with
  // records of earlier programs is read only for a kernel without one. Otherwise it is read now.
  void read(std::shared_ptr<const ProgramImage> image, bool stays);
  void forget_image() noexcept;

  // None: the image does not say it.
  std::optional<fatbin::ParameterLayout> of(const std::string& kernel);

  // A line of the section, and its meaning. None: it is invalid. For tests, too.
  static std::string line(const std::string& kernel, const fatbin::ParameterLayout& layout);
  static std::optional<std::pair<std::string, fatbin::ParameterLayout>> read_line(std::string_view line);

 private:
  void read_image() REQUIRES(mutex_);

  Mutex mutex_;
  const std::shared_ptr<WarmStart> warm_start_;
  fatbin::KernelParameterTable earlier_ GUARDED_BY(mutex_), table_ GUARDED_BY(mutex_);
  const std::shared_ptr<const fatbin::KernelParameterTable> linked_;  // of an image that was linked here
  std::shared_ptr<const ProgramImage> image_ GUARDED_BY(mutex_);      // that has not been read yet
};

}  // namespace gpuwire::client
