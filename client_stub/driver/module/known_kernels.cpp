#include "client_stub/driver/module/known_kernels.hpp"

#include <algorithm>
#include <utility>

namespace gpuwire::client {

KnownKernels::KnownKernels(std::string folder, const ProgramImage::Digest& image) : lines_(std::move(folder), image) {
  if (!lines_.kept()) return;
  for (std::string& name : lines_.read()) {
    if (earlier_.size() == kKnownKernelsMax) return;
    if (ImageLines::holds(name) && std::find(earlier_.begin(), earlier_.end(), name) == earlier_.end())
      earlier_.push_back(std::move(name));
  }
}

void KnownKernels::used(std::string_view name) {
  if (!lines_.kept() || !ImageLines::holds(name) || earlier_.size() == kKnownKernelsMax) return;
  if (std::find(earlier_.begin(), earlier_.end(), name) != earlier_.end()) return;
  if (earlier_.empty() && !only_) {
    only_ = name;
    return;
  }
  std::string lines;
  // Once: what else is used from here on has the file already.
  if (only_ && !only_->empty()) lines = *only_ + '\n';
  only_ = "";
  lines_.append(lines.append(name) += '\n');
}

}  // namespace gpuwire::client
