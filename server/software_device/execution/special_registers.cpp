#include "server/software_device/execution/special_registers.hpp"

namespace gpuwire::software_device {
namespace {

constexpr Ref at(ThreadSpecial which) { return {Area::thread, static_cast<uint32_t>(which) * kSpecialBytes}; }
constexpr Ref at(BlockSpecial which) { return {Area::block, static_cast<uint32_t>(which) * kSpecialBytes}; }

struct VectorRow {
  std::string_view name;
  Ref part[4];
};

constexpr Ref kZero = at(BlockSpecial::zero);
constexpr Ref kOne = at(BlockSpecial::one);

constexpr VectorRow kVectors[] = {
    {"%tid", {at(ThreadSpecial::tid_x), at(ThreadSpecial::tid_y), at(ThreadSpecial::tid_z), kZero}},
    {"%ntid", {at(BlockSpecial::ntid_x), at(BlockSpecial::ntid_y), at(BlockSpecial::ntid_z), kOne}},
    {"%ctaid", {at(BlockSpecial::ctaid_x), at(BlockSpecial::ctaid_y), at(BlockSpecial::ctaid_z), kZero}},
    {"%nctaid", {at(BlockSpecial::nctaid_x), at(BlockSpecial::nctaid_y), at(BlockSpecial::nctaid_z), kOne}},
    {"%clusterid",
     {at(BlockSpecial::clusterid_x), at(BlockSpecial::clusterid_y), at(BlockSpecial::clusterid_z), kZero}},
    {"%nclusterid",
     {at(BlockSpecial::nclusterid_x), at(BlockSpecial::nclusterid_y), at(BlockSpecial::nclusterid_z), kOne}},
    {"%cluster_ctaid",
     {at(BlockSpecial::cluster_ctaid_x), at(BlockSpecial::cluster_ctaid_y), at(BlockSpecial::cluster_ctaid_z), kZero}},
    {"%cluster_nctaid",
     {at(BlockSpecial::cluster_nctaid_x), at(BlockSpecial::cluster_nctaid_y), at(BlockSpecial::cluster_nctaid_z),
      kOne}},
};

struct ScalarRow {
  std::string_view name;
  Ref ref;
};

constexpr ScalarRow kScalars[] = {
    {"%laneid", at(ThreadSpecial::laneid)},
    {"%warpid", at(ThreadSpecial::warpid)},
    {"%nwarpid", at(BlockSpecial::nwarpid)},
    {"%smid", at(BlockSpecial::smid)},
    {"%nsmid", at(BlockSpecial::nsmid)},
    {"%lanemask_eq", at(ThreadSpecial::lanemask_eq)},
    {"%lanemask_le", at(ThreadSpecial::lanemask_le)},
    {"%lanemask_lt", at(ThreadSpecial::lanemask_lt)},
    {"%lanemask_ge", at(ThreadSpecial::lanemask_ge)},
    {"%lanemask_gt", at(ThreadSpecial::lanemask_gt)},
    {"%dynamic_smem_size", at(BlockSpecial::dynamic_smem_size)},
    {"%total_smem_size", at(BlockSpecial::total_smem_size)},
    {"%aggr_smem_size", at(BlockSpecial::total_smem_size)},
    {"%cluster_ctarank", at(BlockSpecial::cluster_ctarank)},
    {"%cluster_nctarank", at(BlockSpecial::cluster_nctarank)},
    // A cooperative launch passes the address of its workspace here, high half first (cooperative_groups,
    // cudaCGGetIntrinsicHandle).
    {"%envreg1", at(BlockSpecial::envreg1)},
    {"%envreg2", at(BlockSpecial::envreg2)},
    {"%reserved_smem_offset_begin", kZero},
    {"%reserved_smem_offset_end", kZero},
    {"%reserved_smem_offset_cap", kZero},
};

struct ClockRow {
  std::string_view name;
  ClockSpecial which;
};

constexpr ClockRow kClocks[] = {
    {"%clock", ClockSpecial::clock},
    {"%clock_hi", ClockSpecial::clock_hi},
    {"%clock64", ClockSpecial::clock64},
    {"%globaltimer", ClockSpecial::globaltimer},
    {"%globaltimer_lo", ClockSpecial::globaltimer_lo},
    {"%globaltimer_hi", ClockSpecial::globaltimer_hi},
    {"%gridid", ClockSpecial::gridid},
};

}  // namespace

std::optional<SpecialRegister> special_register(std::string_view name, uint32_t part) {
  for (const VectorRow& row : kVectors) {
    if (row.name == name && part < 4) return SpecialRegister{.ref = row.part[part]};
  }
  for (const ScalarRow& row : kScalars) {
    if (row.name == name) return SpecialRegister{.ref = row.ref};
  }
  for (const ClockRow& row : kClocks) {
    if (row.name == name) return SpecialRegister{.clock = true, .which = row.which};
  }
  if (name == "%is_explicit_cluster")
    return SpecialRegister{.ref = at(BlockSpecial::explicit_cluster), .predicate = true};
  return std::nullopt;
}

}  // namespace gpuwire::software_device
