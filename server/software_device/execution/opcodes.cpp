// The table of all instructions, and the list of PTX instructions that this device does not support.
#include <unordered_map>
#include <unordered_set>

#include "server/software_device/execution/lowering.hpp"

namespace gpuwire::software_device {
namespace {

std::unordered_map<std::string_view, const OpcodeEntry*> make_table() {
  std::unordered_map<std::string_view, const OpcodeEntry*> table;
  for (auto family : {integer_opcodes(), bit_opcodes(), float_opcodes(), special_function_opcodes(), compare_opcodes(),
                      convert_opcodes(), move_opcodes(), memory_opcodes(), atomic_opcodes(), control_opcodes(),
                      warp_opcodes(), texture_opcodes(), mbarrier_opcodes()}) {
    for (const OpcodeEntry& entry : family) table.emplace(entry.name, &entry);
  }
  return table;
}

}  // namespace

const OpcodeEntry* find_opcode(std::string_view name) {
  static const auto table = make_table();
  auto at = table.find(name);
  return at == table.end() ? nullptr : at->second;
}

bool known_to_ptx(std::string_view name) {
  static const std::unordered_set<std::string_view> names = {
      "txq",          "istypep",  "sured",     "suq",          "wmma",      "mma",
      "ldmatrix",     "stmatrix", "movmatrix", "wgmma",        "tcgen05",   "multimem",
      "createpolicy", "alloca",   "stacksave", "stackrestore", "tensormap", "clusterlaunchcontrol",
      "vadd",         "vsub",     "vabsdiff",  "vmin",         "vmax",      "vshl",
      "vshr",         "vmad",     "vset",      "vadd2",        "vsub2",     "vavrg2",
      "vabsdiff2",    "vmin2",    "vmax2",     "vset2",        "vadd4",     "vsub4",
      "vavrg4",       "vmin4",    "vmax4",     "vset4",
  };
  return names.contains(name);
}

}  // namespace gpuwire::software_device
