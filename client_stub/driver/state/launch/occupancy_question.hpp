// A question about the occupancy of a function (section "Occupancy" of the driver API), apart from the function, the
// context and the device.
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
  // Of blocks and dynamic_bytes.
  unsigned flags = 0;
  unsigned block_threads = 0;
  uint64_t number = 0;  // blocks: bytes of dynamic shared memory for each block; dynamic_bytes: blocks
  // Of the others. `attrs` is not read: the attributes are in the list.
  CUlaunchConfig config{};
  std::vector<CUlaunchAttribute> attributes;

  bool about_config() const noexcept {
    return kind == OccupancyKind::active_clusters || kind == OccupancyKind::cluster_size;
  }
  // The whole question: equal for questions that the driver cannot distinguish. Bytes of an attribute's value beyond
  // its own do not count if the attribute is a known one.
  std::string key() const;
  // Names it nothing that another process has not: no stream, and attributes that are numbers alone?
  bool travels() const noexcept;
  // One line of words; parse() reads it back. For the wire.
  std::string text() const;
  static std::optional<OccupancyQuestion> parse(std::string_view text);
};

}  // namespace gpuwire::client
