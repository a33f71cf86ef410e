// The words that may follow an instruction's name, other than types. Each has an enumerator, so that nothing is
// compared as text after parsing, and an unknown word is refused at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace gpuwire::software_device::ptx {

enum class Modifier : uint8_t {
  // rounding
  rn,
  rz,
  rm,
  rp,
  rna,
  rni,
  rzi,
  rmi,
  rpi,
  // arithmetic
  ftz,
  noftz,
  sat,
  cc,
  wide,
  hi,
  lo,
  approx,
  full,
  relu,
  satfinite,
  nan_result,
  xorsign,
  abs,
  clamp,
  wrap,
  shiftamt,
  l,
  r,
  // comparison; lo and hi above are also the unsigned "lower" and "higher"
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  ls,
  hs,
  equ,
  neu,
  ltu,
  leu,
  gtu,
  geu,
  num,
  nan,
  // boolean combination and atomic operations
  and_,
  or_,
  xor_,
  not_,
  exch,
  cas,
  add,
  inc,
  dec,
  min,
  max,
  popc,
  // classes for testp
  finite,
  infinite,
  number,
  notanumber,
  normal,
  subnormal,
  // warp and barrier
  sync,
  aligned,
  warp,
  arrive,
  red,
  all,
  any,
  uni,
  ballot,
  up,
  down,
  bfly,
  idx,
  match,
  noinc,
  wait,
  // spaces
  generic,
  global,
  shared,
  local,
  const_,
  param,
  to,
  // memory order, scope, caching
  weak,
  volatile_,
  relaxed,
  acquire,
  release,
  acq_rel,
  sc,
  cta,
  gpu,
  sys,
  cluster,
  mmio,
  nc,
  ca,
  cg,
  cs,
  lu,
  cv,
  wb,
  wt,
  level1_hint,
  level2_hint,
  proxy,
  async,
  tensormap,
  alias,
  cp,
  bulk,
  commit_group,
  wait_group,
  wait_all,
  commit,
  // vectors
  v2,
  v4,
  v8,
  // prmt
  f4e,
  b4e,
  rc8,
  ecl,
  ecr,
  rc16,
  // cvt
  pack,
  // textures and surfaces
  dim_1d,
  dim_2d,
  dim_3d,
  dim_a1d,
  dim_a2d,
  cube,
  acube,
  level,
  grad,
  g,
  b,
  a,
  trap,
  zero,
  // clusters and mbarrier
  shared_cluster,
  init,
  inval,
  expect_tx,
  complete_tx,
  arrive_drop,
  no_complete,
  test_wait,
  try_wait,
  parity,
  pending_count,
  mbarrier,
  mbarrier_bytes,
  mbarrier_init,
  bulk_group,
  read,
  launch_dependents,
  async_generic,
  count_
};

std::optional<Modifier> modifier_named(std::string_view word);

// A set of modifiers, for the checks "contains" and "are all of these allowed".
class ModifierSet {
 public:
  constexpr ModifierSet() = default;
  template <class... M>
  constexpr explicit ModifierSet(M... modifiers) {
    (insert(modifiers), ...);
  }
  constexpr void insert(Modifier m) {
    words_[static_cast<unsigned>(m) / 64] |= uint64_t{1} << (static_cast<unsigned>(m) % 64);
  }
  constexpr bool has(Modifier m) const {
    return words_[static_cast<unsigned>(m) / 64] >> (static_cast<unsigned>(m) % 64) & 1;
  }
  constexpr bool contains(const ModifierSet& other) const {
    for (unsigned i = 0; i < 3; ++i) {
      if (other.words_[i] & ~words_[i]) return false;
    }
    return true;
  }
  constexpr ModifierSet operator|(const ModifierSet& other) const {
    ModifierSet both = *this;
    for (unsigned i = 0; i < 3; ++i) both.words_[i] |= other.words_[i];
    return both;
  }

 private:
  uint64_t words_[3] = {};
};
static_assert(static_cast<unsigned>(Modifier::count_) <= 192);

}  // namespace gpuwire::software_device::ptx
