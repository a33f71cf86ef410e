#include "server/software_device/driver/managed_memory/managed_advice.hpp"

#include <iterator>

namespace gpuwire::software_device {

// Returns the run that begins with that page, after splitting a run that contains it.
ManagedAdvice::Runs::iterator ManagedAdvice::split(uint64_t page) {
  const auto next = runs_.lower_bound(page);
  if (next != runs_.end() && next->first == page) {
    return next;
  }
  return runs_.emplace_hint(next, page, std::prev(next)->second);
}

void ManagedAdvice::join() {
  for (auto run = std::next(runs_.begin()); run != runs_.end();) {
    run = run->second == std::prev(run)->second ? runs_.erase(run) : std::next(run);
  }
}

PageAdvice ManagedAdvice::common(uint64_t offset, uint64_t bytes) const {
  const MutexLock lock(mutex_);
  const uint64_t last = (offset + bytes - 1) / kAdvicePageBytes;
  auto run = std::prev(runs_.upper_bound(offset / kAdvicePageBytes));
  PageAdvice all = run->second;
  for (++run; run != runs_.end() && run->first <= last; ++run) {
    const PageAdvice& here = run->second;
    all.read_mostly = all.read_mostly && here.read_mostly;
    all.accessed_by &= here.accessed_by;
    all.accessed_by_host = all.accessed_by_host && here.accessed_by_host;
    all.preferred = all.preferred == here.preferred ? all.preferred : PageAdvice::Location{};
    all.prefetched = all.prefetched == here.prefetched ? all.prefetched : PageAdvice::Location{};
  }
  return all;
}

}  // namespace gpuwire::software_device
