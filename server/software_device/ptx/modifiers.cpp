#include "server/software_device/ptx/modifiers.hpp"

#include <algorithm>
#include <array>

#include "server/software_device/ptx/types.hpp"

namespace gpuwire::software_device::ptx {
namespace {

struct NamedModifier {
  std::string_view word;
  Modifier modifier;
};

constexpr auto kModifiers = [] {
  using enum Modifier;
  std::array table = std::to_array<NamedModifier>({
      {"rn", rn},
      {"rz", rz},
      {"rm", rm},
      {"rp", rp},
      {"rna", rna},
      {"rni", rni},
      {"rzi", rzi},
      {"rmi", rmi},
      {"rpi", rpi},
      {"ftz", ftz},
      {"noftz", noftz},
      {"sat", sat},
      {"cc", cc},
      {"wide", wide},
      {"hi", hi},
      {"lo", lo},
      {"approx", approx},
      {"full", full},
      {"relu", relu},
      {"satfinite", satfinite},
      {"NaN", nan_result},
      {"xorsign", xorsign},
      {"abs", abs},
      {"clamp", clamp},
      {"wrap", wrap},
      {"shiftamt", shiftamt},
      {"l", l},
      {"r", r},
      {"eq", eq},
      {"ne", ne},
      {"lt", lt},
      {"le", le},
      {"gt", gt},
      {"ge", ge},
      {"ls", ls},
      {"hs", hs},
      {"equ", equ},
      {"neu", neu},
      {"ltu", ltu},
      {"leu", leu},
      {"gtu", gtu},
      {"geu", geu},
      {"num", num},
      {"nan", nan},
      {"and", and_},
      {"or", or_},
      {"xor", xor_},
      {"not", not_},
      {"exch", exch},
      {"cas", cas},
      {"add", add},
      {"inc", inc},
      {"dec", dec},
      {"min", min},
      {"max", max},
      {"popc", popc},
      {"finite", finite},
      {"infinite", infinite},
      {"number", number},
      {"notanumber", notanumber},
      {"normal", normal},
      {"subnormal", subnormal},
      {"sync", sync},
      {"aligned", aligned},
      {"warp", warp},
      {"arrive", arrive},
      {"red", red},
      {"all", all},
      {"any", any},
      {"uni", uni},
      {"ballot", ballot},
      {"up", up},
      {"down", down},
      {"bfly", bfly},
      {"idx", idx},
      {"match", match},
      {"noinc", noinc},
      {"wait", wait},
      {"global", global},
      {"shared", shared},
      {"shared::cta", shared},
      {"local", local},
      {"const", const_},
      {"param", param},
      {"param::entry", param},
      {"param::func", param},
      {"to", to},
      {"weak", weak},
      {"volatile", volatile_},
      {"relaxed", relaxed},
      {"acquire", acquire},
      {"release", release},
      {"acq_rel", acq_rel},
      {"sc", sc},
      {"cta", cta},
      {"gpu", gpu},
      {"sys", sys},
      {"gl", gpu},
      {"cluster", cluster},
      {"mmio", mmio},
      {"nc", nc},
      {"ca", ca},
      {"cg", cg},
      {"cs", cs},
      {"lu", lu},
      {"cv", cv},
      {"wb", wb},
      {"wt", wt},
      {"proxy", proxy},
      {"async", async},
      {"tensormap", tensormap},
      {"alias", alias},
      {"bulk", bulk},
      {"commit_group", commit_group},
      {"wait_group", wait_group},
      {"wait_all", wait_all},
      {"v2", v2},
      {"v4", v4},
      {"v8", v8},
      {"f4e", f4e},
      {"b4e", b4e},
      {"rc8", rc8},
      {"ecl", ecl},
      {"ecr", ecr},
      {"rc16", rc16},
      {"pack", pack},
      {"1d", dim_1d},
      {"2d", dim_2d},
      {"3d", dim_3d},
      {"a1d", dim_a1d},
      {"a2d", dim_a2d},
      {"cube", cube},
      {"acube", acube},
      {"level", level},
      {"grad", grad},
      {"g", g},
      {"b", b},
      {"a", a},
      {"trap", trap},
      {"zero", zero},
      {"shared::cluster", shared_cluster},
      {"init", init},
      {"inval", inval},
      {"expect_tx", expect_tx},
      {"complete_tx", complete_tx},
      {"arrive_drop", arrive_drop},
      {"noComplete", no_complete},
      {"test_wait", test_wait},
      {"try_wait", try_wait},
      {"parity", parity},
      {"pending_count", pending_count},
      {"mbarrier", mbarrier},
      {"mbarrier::complete_tx::bytes", mbarrier_bytes},
      {"mbarrier_init", mbarrier_init},
      {"bulk_group", bulk_group},
      {"read", read},
      {"launch_dependents", launch_dependents},
      {"async::generic", async_generic},
      {"async::shared::cta", async_generic},
      {"async::shared::cluster", async_generic},
      {"async::global", async_generic},
  });
  std::sort(table.begin(), table.end(),
            [](const NamedModifier& left, const NamedModifier& right) { return left.word < right.word; });
  return table;
}();

struct NamedType {
  std::string_view word;
  Type type;
};

constexpr NamedType kTypes[] = {
    {"pred", Type::pred}, {"b8", Type::b8},         {"b16", Type::b16}, {"b32", Type::b32}, {"b64", Type::b64},
    {"u8", Type::u8},     {"u16", Type::u16},       {"u32", Type::u32}, {"u64", Type::u64}, {"s8", Type::s8},
    {"s16", Type::s16},   {"s32", Type::s32},       {"s64", Type::s64}, {"f16", Type::f16}, {"f16x2", Type::f16x2},
    {"bf16", Type::bf16}, {"bf16x2", Type::bf16x2}, {"f32", Type::f32}, {"f64", Type::f64},
};

}  // namespace

std::optional<Modifier> modifier_named(std::string_view word) {
  if (word == "L1" || word.starts_with("L1::")) return Modifier::level1_hint;
  if (word == "L2" || word.starts_with("L2::")) return Modifier::level2_hint;
  auto at = std::lower_bound(kModifiers.begin(), kModifiers.end(), word,
                             [](const NamedModifier& row, std::string_view key) { return row.word < key; });
  if (at == kModifiers.end() || at->word != word) return std::nullopt;
  return at->modifier;
}

std::optional<Type> type_named(std::string_view word) {
  for (const NamedType& row : kTypes) {
    if (row.word == word) return row.type;
  }
  return std::nullopt;
}

std::string_view name_of(Type type) {
  for (const NamedType& row : kTypes) {
    if (row.type == type) return row.word;
  }
  return "none";
}

}  // namespace gpuwire::software_device::ptx
