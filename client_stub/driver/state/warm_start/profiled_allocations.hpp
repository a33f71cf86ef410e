// The blocks of device memory that earlier runs of this program allocated at their start. The client prefetches them
// when the program allocates the first.
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
inline constexpr size_t kProfiledSizesMax = 1024;  // of one run; further ones are not distinguished

// The section "memory" of one program: a line for each block, in the order of their first allocation. One thread at a
// time.
class ProfiledAllocations {
 public:
  explicit ProfiledAllocations(std::shared_ptr<WarmStart> program);

  // Returns the sizes, in bytes, of blocks that earlier runs had on the device and this run has not: one for each
  // block, in order.
  std::vector<uint64_t> awaited(int device) const;
  // This run has allocated a block that it did not have before.
  void used(int device, uint64_t bytes);
  // Returns whether this run has used less than half of its devices' entries, in blocks or in bytes.
  bool mostly_unused() const;
  // Removes the entries of this run's devices that it has not used: the program has changed.
  void forget_unused();

 private:
  // Device, bytes.
  using Size = std::pair<int, uint64_t>;

  struct Block {
    Size size;
    // Among blocks of its size, from 1 on: equal in two processes for one block.
    uint32_t number = 0;
  };
  static std::string line_of(const Block& block);
  // Returns false if the entry exists, or the section is full.
  bool add(const Block& block);
  bool is_used(const Block& block) const;
  bool uses_device(int device) const;

  const std::shared_ptr<WarmStart> program_;
  std::vector<Block> blocks_;
  // The number of entries from earlier runs.
  size_t earlier_ = 0;
  // How many.
  std::map<Size, uint32_t> used_;
};

}  // namespace gpuwire::client
