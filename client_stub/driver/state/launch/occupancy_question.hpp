// A query about the occupancy of a function (section "Occupancy" of the driver API), without the function, the context
// and the device.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpuwire::client {

enum class OccupancyKind : uint8_t { blocks, dynamic_bytes, active_clusters, cluster_size };
inline constexpr unsigned kOccupancyKinds = 4;

struct OccupancyQuestion {
  OccupancyKind kind = OccupancyKind::blocks;
  // For blocks and dynamic_bytes.
  unsigned flags = 0;
  unsigned block_threads = 0;
  // Blocks: bytes of dynamic shared memory for each block; dynamic_bytes: blocks.
  uint64_t number = 0;
  // For the others. `attrs` is not read: the attributes are in the list.
  CUlaunchConfig config{};
  std::vector<CUlaunchAttribute> attributes;

  bool about_config() const noexcept {
    return kind == OccupancyKind::active_clusters || kind == OccupancyKind::cluster_size;
  }
  // The whole query; equal for queries that the driver cannot distinguish. Of a known attribute's value, only its own
  // bytes count.
  std::string key() const;
  // Returns whether other processes can send the query: it names no stream, and its attributes are numbers.
  bool travels() const noexcept;
  // Formats the query as one line of words, which parse() reads.
  std::string text() const;
  static std::optional<OccupancyQuestion> parse(std::string_view text);
};

}  // namespace gpuwire::client
