// Ranges of memory, and whether any of them holds an address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>

namespace gpuwire::client {

// A range may be in it several times. Asking takes logarithmic time in the number of the ranges; adding and removing
// take, besides, time for each bound of another range that lies within. No lock.
class RangeCounts {
 public:
  // May throw std::bad_alloc, and nothing is added then.
  void add(uint64_t begin, uint64_t bytes) {
    if (bytes == 0) return;
    auto first = bound(begin);
    Bounds::iterator last;
    try {
      last = bound(begin + bytes);
    } catch (...) {
      drop_unused(first);
      throw;
    }
    ++first->second.ends;
    ++last->second.ends;
    for (auto at = first; at != last; ++at) ++at->second.ranges;
  }
  // Precondition: add() was called with the same values, and no other remove() belongs to that call.
  void remove(uint64_t begin, uint64_t bytes) noexcept {
    if (bytes == 0) return;
    auto first = bounds_.find(begin), last = bounds_.find(begin + bytes);
    for (auto at = first; at != last; ++at) --at->second.ranges;
    --first->second.ends;
    --last->second.ends;
    drop_unused(first);
    drop_unused(last);
  }
  // Does any of the ranges hold a byte of this one?
  bool any(uint64_t begin, uint64_t bytes) const noexcept {
    if (bounds_.empty() || bytes == 0) return false;
    auto at = bounds_.upper_bound(begin);
    if (at != bounds_.begin() && std::prev(at)->second.ranges != 0) return true;
    // The first stretch that begins behind `begin` has a range, as an empty one does not follow another empty one.
    return at != bounds_.end() && at->first < begin + bytes;
  }
  bool empty() const noexcept { return bounds_.empty(); }
  void clear() noexcept { bounds_.clear(); }

 private:
  struct Stretch {
    // The number of ranges that hold the addresses from this bound up to the next one.
    size_t ranges = 0;
    // The number of ranges that begin or end at the bound.
    size_t ends = 0;
  };
  using Bounds = std::map<uint64_t, Stretch>;

  Bounds::iterator bound(uint64_t at) {
    auto [found, made] = bounds_.try_emplace(at);
    if (made && found != bounds_.begin()) found->second.ranges = std::prev(found)->second.ranges;
    return found;
  }
  void drop_unused(Bounds::iterator at) noexcept {
    if (at->second.ends == 0) bounds_.erase(at);
  }

  Bounds bounds_;
};

}  // namespace gpuwire::client
