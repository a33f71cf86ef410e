// The places of the special registers of a warp and of a block (PTX ISA 9.0, section 10). Each has 32 values of 4
// bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "server/software_device/execution/op.hpp"

namespace gpuwire::software_device {

inline constexpr uint32_t kSpecialBytes = kLanes * 4;

enum class ThreadSpecial : uint32_t {
  tid_x,
  tid_y,
  tid_z,
  laneid,
  warpid,
  lanemask_eq,
  lanemask_le,
  lanemask_lt,
  lanemask_ge,
  lanemask_gt,
  count_
};

enum class BlockSpecial : uint32_t {
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  nwarpid,
  smid,
  nsmid,
  dynamic_smem_size,
  total_smem_size,
  zero,
  one,
  envreg1,
  envreg2,
  grid_low,
  grid_high,
  reserved_smem_offset,
  cluster_ctaid_x,
  cluster_ctaid_y,
  cluster_ctaid_z,
  cluster_nctaid_x,
  cluster_nctaid_y,
  cluster_nctaid_z,
  clusterid_x,
  clusterid_y,
  clusterid_z,
  nclusterid_x,
  nclusterid_y,
  nclusterid_z,
  cluster_ctarank,
  cluster_nctarank,
  explicit_cluster,
  count_
};

// Registers that a handler reads each time.
enum class ClockSpecial : uint32_t { clock, clock_hi, clock64, globaltimer, globaltimer_lo, globaltimer_hi, gridid };

struct SpecialRegister {
  bool clock = false;
  ClockSpecial which{};
  Ref ref;
  bool predicate = false;
};

// `part`: 0..3 for .x .y .z .w. Returns nothing for a name that the device does not support.
std::optional<SpecialRegister> special_register(std::string_view name, uint32_t part);

}  // namespace gpuwire::software_device
