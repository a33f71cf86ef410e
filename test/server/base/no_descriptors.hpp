// Takes all free descriptors of the process during a test.
#pragma once

#include <algorithm>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace gpuwire::test {

// While an object exists, this process cannot open a descriptor.
class NoDescriptors {
 public:
  NoDescriptors() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(few.rlim_cur, kFew);
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int taken; (taken = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken_.push_back(taken);
  }
  ~NoDescriptors() {
    for (int taken : taken_) ::close(taken);
    ::setrlimit(RLIMIT_NOFILE, &before_);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

 private:
  static constexpr rlim_t kFew = 256;
  rlimit before_{};
  std::vector<int> taken_;
};

}  // namespace gpuwire::test
