#include "client_stub/driver/state/warm_start/profiled_kernels.hpp"

#include <utility>

namespace gpuwire::client {

ProfiledKernels::ProfiledKernels(std::shared_ptr<WarmStart> image) : image_(std::move(image)) {
  for (std::string& name : image_->lines(WarmStartSection::kernels)) {
    if (earlier_.size() == kPrefetchedKernelsMax) return;
    if (WarmStart::holds(name)) earlier_.push_back(std::move(name));
  }
}

void ProfiledKernels::used(std::string_view name) {
  if (WarmStart::holds(name)) image_->add(WarmStartSection::kernels, std::string(name), false);
}

}  // namespace gpuwire::client
