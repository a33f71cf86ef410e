#include "server/base/descriptors.hpp"

#include <cerrno>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace gpuwire::server {

size_t descriptor_limit() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? size_t(limit.rlim_cur) : 0;
}

size_t raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return descriptor_limit();
}

bool out_of_descriptors(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

SpareDescriptors::~SpareDescriptors() {
  while (give_up_one()) {}
}

void SpareDescriptors::refill() {
  while (open_.size() < count_) {
    int spare = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (spare < 0) return;
    open_.push_back(spare);
  }
}

bool SpareDescriptors::give_up_one() {
  if (open_.empty()) return false;
  ::close(open_.back());
  open_.pop_back();
  return true;
}

}  // namespace gpuwire::server
