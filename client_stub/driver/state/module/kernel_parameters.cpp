#include "client_stub/driver/state/module/kernel_parameters.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "client_stub/driver/process/read_number.hpp"

namespace gpuwire::client {

void LinkedImages::add(const ProgramImage::Digest& image, std::shared_ptr<const fatbin::KernelParameterTable> inputs) {
  MutexLock lock(mutex_);
  images_.emplace_back(image, std::move(inputs));
  if (images_.size() > kMost) images_.pop_front();
}

std::shared_ptr<const fatbin::KernelParameterTable> LinkedImages::find(const ProgramImage::Digest& image) const {
  MutexLock lock(mutex_);
  auto found = std::find_if(images_.rbegin(), images_.rend(), [&](const Linked& one) { return one.first == image; });
  return found == images_.rend() ? nullptr : found->second;
}

LinkedImages& linked_images() {
  static auto* images = new LinkedImages;
  return *images;
}

KernelParameters::KernelParameters(std::shared_ptr<WarmStart> earlier, const ProgramImage::Digest& image)
    : warm_start_(std::move(earlier)), linked_(linked_images().find(image)) {
  for (const std::string& text : warm_start_->lines(WarmStartSection::parameters)) {
    if (auto read = read_line(text)) earlier_.insert(*std::move(read));
  }
}

void KernelParameters::read(std::shared_ptr<const ProgramImage> image, bool stays) {
  MutexLock lock(mutex_);
  image_ = std::move(image);
  if (!stays || earlier_.empty()) read_image();
}

void KernelParameters::forget_image() noexcept {
  MutexLock lock(mutex_);
  image_.reset();
}

void KernelParameters::read_image() {
  if (!image_) return;
  table_ = linked_ ? *linked_ : image_->kernel_parameters();
  image_.reset();
}

std::optional<fatbin::ParameterLayout> KernelParameters::of(const std::string& kernel) {
  MutexLock lock(mutex_);
  if (auto known = earlier_.find(kernel); known != earlier_.end()) return known->second;
  read_image();
  auto found = table_.find(kernel);
  if (found == table_.end()) return std::nullopt;
  if (warm_start_->kept() && WarmStart::holds(kernel)) {
    warm_start_->add(WarmStartSection::parameters, line(kernel, found->second), true);
    earlier_.insert(*found);
  }
  return found->second;
}

std::string KernelParameters::line(const std::string& kernel, const fatbin::ParameterLayout& layout) {
  std::string text = fmt::format("{}", layout.offsets.size());
  for (size_t i = 0; i < layout.offsets.size(); ++i) text += fmt::format(" {} {}", layout.offsets[i], layout.sizes[i]);
  return text + ' ' + kernel;
}

std::optional<std::pair<std::string, fatbin::ParameterLayout>> KernelParameters::read_line(std::string_view line) {
  auto number = [&](uint32_t& out) {
    if (!read_number(line, out) || !line.starts_with(' ')) return false;
    line.remove_prefix(1);
    return true;
  };
  uint32_t count = 0;
  if (!number(count)) return std::nullopt;
  std::pair<std::string, fatbin::ParameterLayout> read;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t offset = 0, size = 0;
    if (!number(offset) || !number(size) || !read.second.add(offset, size)) return std::nullopt;
  }
  if (!WarmStart::holds(line)) return std::nullopt;
  read.first = line;
  return read;
}

}  // namespace gpuwire::client
