// Which blocks of device memory earlier runs of this program have allocated in their first while: those are asked for
// ahead when it allocates the first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client_stub/driver/state/warm_start/warm_start.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

inline constexpr uint64_t kProfiledDevicesMax = 64;
inline constexpr size_t kProfiledSizesMax = 1024;  // of one run; more are not told apart

// The section "memory" of one program: a line for each block, in the order in which they were first allocated. One
// thread at a time.
class ProfiledAllocations {
 public:
  explicit ProfiledAllocations(std::shared_ptr<WarmStart> program);

  // The sizes, in bytes, of what earlier runs had on the device and this one has not: one for each block, in order.
  std::vector<uint64_t> awaited(int device) const;
  // This run has allocated one that was none of its own before.
  void used(int device, uint64_t bytes);
  // Has this run had less than half of what was known of its devices, in blocks or in bytes?
  bool mostly_unused() const;
  // From now on only those of its devices are known that this run has had: the others are not what the program is now.
  void forget_unused();

 private:
  using Size = std::pair<int, uint64_t>;  // device, bytes

  struct Block {
    Size size;
    uint32_t number = 0;  // of its size, from 1 on: what two processes write about the same block is the same
  };
  static std::string line_of(const Block& block);
  // False: it is known already, or there are as many as may be.
  bool add(const Block& block);
  bool is_used(const Block& block) const;
  bool uses_device(int device) const;

  const std::shared_ptr<WarmStart> program_;
  std::vector<Block> blocks_;
  size_t earlier_ = 0;             // so many of them were known from the start
  std::map<Size, uint32_t> used_;  // how many
};

}  // namespace gpuwire::client
