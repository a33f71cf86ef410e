#include "test/server/software_device/execution/arithmetic_forms.hpp"

#include <map>
#include <optional>
#include <span>

#include "server/software_device/execution/engine.hpp"
#include "server/software_device/execution/lowering.hpp"
#include "server/software_device/ptx/modifiers.hpp"

namespace gpuwire::software_device::test {
namespace {

using Words = std::vector<std::string>;

// Groups of modifiers, of each of which an instruction has at most one.
const std::vector<Words>& exclusive_groups() {
  static const std::vector<Words> groups = {
      {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi"},
      {"and", "or", "xor"},
      {"finite", "infinite", "number", "notanumber", "normal", "subnormal"},
      {"clamp", "wrap"},
      {"l", "r"},
      {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"},
      {"approx", "full"},
  };
  return groups;
}
const Words kSizes = {"hi", "lo", "wide"};
const Words kComparisons = {"eq", "ne",  "lt",  "le",  "gt",  "ge",  "lo",  "ls",  "hi",
                            "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
const Words kFlags = {"ftz", "sat", "cc", "relu", "NaN", "shiftamt", "pack", "add"};

bool compares(std::string_view opcode) { return opcode == "set" || opcode == "setp"; }

// Operands as letters: T, U, V the types in order, D the first one's double width, w a word, a an amount, p a
// predicate, i an immediate.
struct ShapeRow {
  Words opcodes;
  std::string results, sources;
};

const std::vector<ShapeRow>& shape_rows() {
  static const std::vector<ShapeRow> rows = {
      {{"add", "sub", "mul", "div", "rem", "min", "max", "and", "or", "xor", "copysign", "mul24", "addc", "subc"},
       "T",
       "TT"},
      {{"mad", "fma", "mad24", "sad", "madc"}, "T", "TTT"},
      {{"neg", "abs", "not", "cnot", "brev", "sqrt", "rcp", "rsqrt", "sin", "cos", "ex2", "lg2", "tanh"}, "T", "T"},
      {{"popc", "clz", "bfind"}, "w", "T"},
      {{"bfe"}, "T", "Taa"},
      {{"bfi"}, "T", "TTaa"},
      {{"shl", "shr", "szext"}, "T", "Ta"},
      {{"shf"}, "T", "TTa"},
      {{"prmt"}, "T", "TTw"},
      {{"fns"}, "w", "waa"},
      {{"bmsk"}, "T", "aa"},
      {{"lop3"}, "T", "TTTi"},
      {{"dp4a", "dp2a", "vabsdiff4"}, "w", "www"},
      {{"testp"}, "p", "T"},
      {{"setp"}, "pp", "TT"},
      {{"set"}, "T", "UU"},
      {{"selp"}, "T", "TTp"},
      {{"slct"}, "T", "TTU"},
      {{"cvt"}, "T", "U"},
  };
  return rows;
}

const ShapeRow* row_of(std::string_view opcode) {
  for (const ShapeRow& row : shape_rows()) {
    if (std::find(row.opcodes.begin(), row.opcodes.end(), opcode) != row.opcodes.end()) return &row;
  }
  return nullptr;
}

std::string letters_of_sources(const Form& form) {
  std::string sources = row_of(form.opcode)->sources;
  const bool wide = form.has("wide") && !compares(form.opcode);
  if (wide && sources == "TTT") sources = "TTD";
  if (compares(form.opcode) && (form.has("and") || form.has("or") || form.has("xor"))) sources += 'p';
  if (form.opcode == "cvt" && form.has("pack")) sources = form.types.size() == 3 ? "www" : "ww";
  if (form.opcode == "cvt" && !form.has("pack") && form.types[0].ends_with("x2")) sources = "UU";
  return sources;
}

std::string doubled(std::string_view type) {
  return type.substr(0, 1) == "u" ? "u" + std::to_string(2 * bits_of(type)) : "s" + std::to_string(2 * bits_of(type));
}

FormOperand operand(char letter, const Form& form) {
  switch (letter) {
    case 'T': return {form.types[0]};
    case 'U': return {form.types[1]};
    case 'D': return {doubled(form.types[0])};
    case 'a': return {"u32", true};
    case 'p': return {"pred"};
    case 'i': return {"u32", false, true};
    default: return {"b32"};
  }
}

std::string register_class(std::string_view type) {
  const uint32_t bytes = register_bytes(type);
  return bytes == 0 ? "p" : bytes == 2 ? "rs" : bytes == 4 ? "r" : "rd";
}

// Returns the instruction, with sources %CLASS1.. and results %CLASS0 (and %p9).
std::string instruction_of(const Form& form, uint32_t table) {
  const FormShape shape = shape_of(form);
  std::string text = form.text() + " %" + register_class(shape.results[0].type) + "0";
  if (shape.results.size() > 1) text += "|%p9";
  for (size_t k = 0; k < shape.sources.size(); ++k) {
    text += shape.sources[k].selects_table ? ", " + std::to_string(table)
                                           : ", %" + register_class(shape.sources[k].type) + std::to_string(k + 1);
  }
  return text + ";\n";
}

const char kHead[] =
    ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u64 in, .param .u64 out)\n{\n"
    ".reg .pred %p<10>; .reg .b16 %rs<6>; .reg .b32 %r<10>; .reg .b64 %rd<10>;\n";

bool accepted(const Form& form) {
  const std::string text = kHead + instruction_of(form, 0) + "ret;\n}\n";
  const std::string_view view = text;
  return compile_ptx({&view, 1}).has_value();
}

const Words& all_types() {
  static const Words types = {"pred", "b8",  "b16", "b32", "b64",   "u8",   "u16",    "u32", "u64", "s8",
                              "s16",  "s32", "s64", "f16", "f16x2", "bf16", "bf16x2", "f32", "f64"};
  return types;
}

std::vector<Words> type_lists(const Form& form) {
  size_t count = 1;
  if (form.opcode == "cvt" || form.opcode == "set" || form.opcode == "slct" || form.opcode == "dp4a" ||
      form.opcode == "dp2a")
    count = 2;
  if (form.opcode == "vabsdiff4") count = 3;
  std::vector<Words> lists = {{}};
  for (size_t k = 0; k < count; ++k) {
    std::vector<Words> longer;
    for (const Words& list : lists) {
      for (const std::string& type : all_types()) {
        longer.push_back(list);
        longer.back().push_back(type);
      }
    }
    lists = std::move(longer);
  }
  if (form.opcode == "cvt" && form.has("pack")) {
    for (size_t i = lists.size(); i-- > 0;) {
      lists.push_back(lists[i]);
      lists.back().push_back("b32");
    }
  }
  return lists;
}

// Returns every choice of at most one modifier of each group, among the table's allowed ones.
std::vector<Words> modifier_lists(const OpcodeEntry& entry) {
  std::vector<Words> groups = exclusive_groups();
  groups.push_back(compares(entry.name) ? kComparisons : kSizes);
  for (const std::string& flag : kFlags) groups.push_back({flag});
  std::vector<Words> lists = {{}};
  for (const Words& group : groups) {
    const size_t before = lists.size();
    for (const std::string& word : group) {
      const auto modifier = ptx::modifier_named(word);
      if (!modifier || !entry.allowed.has(*modifier)) continue;
      for (size_t i = 0; i < before; ++i) {
        lists.push_back(lists[i]);
        lists.back().push_back(word);
      }
    }
  }
  return lists;
}

// Whether the groups above have all of the table's modifiers.
bool knows_all_modifiers(const OpcodeEntry& entry) {
  ptx::ModifierSet known;
  const auto add = [&](const Words& words) {
    for (const std::string& word : words) known.insert(*ptx::modifier_named(word));
  };
  for (const Words& group : exclusive_groups()) add(group);
  add(kSizes);
  add(kComparisons);
  add(kFlags);
  return known.contains(entry.allowed);
}

}  // namespace

std::string Form::text() const {
  std::string out = opcode;
  for (const std::string& word : modifiers) out += "." + word;
  for (const std::string& type : types) out += "." + type;
  return out;
}

uint32_t bits_of(std::string_view type) {
  if (type == "pred") return 1;
  if (type.ends_with("x2")) return 32;
  uint32_t bits = 0;
  for (const char c : type) {
    if (c >= '0' && c <= '9') bits = 10 * bits + static_cast<uint32_t>(c - '0');
  }
  return bits;
}

uint32_t register_bytes(std::string_view type) { return type == "pred" ? 0 : std::max(2u, bits_of(type) / 8); }

bool uses_carry(const Form& form) {
  return form.has("cc") || form.opcode == "addc" || form.opcode == "subc" || form.opcode == "madc";
}

FormShape shape_of(const Form& form) {
  FormShape shape;
  for (const char letter : row_of(form.opcode)->results) shape.results.push_back(operand(letter, form));
  if (form.has("wide") && !compares(form.opcode)) shape.results[0] = operand('D', form);
  if (form.opcode == "cvt" && form.has("pack")) shape.results[0] = operand('w', form);
  for (const char letter : letters_of_sources(form)) shape.sources.push_back(operand(letter, form));
  return shape;
}

size_t words_of(const Form& form) { return shape_of(form).sources.size() + (uses_carry(form) ? 1 : 0); }

std::string kernel_of_form(const Form& form, uint32_t table) {
  const FormShape shape = shape_of(form);
  const std::string words = std::to_string(8 * words_of(form));
  std::string text =
      std::string(kHead) +
      ".reg .b64 %in, %out; .reg .b32 %thread, %n, %x;\n"
      "mov.u32 %thread, %tid.x; mov.u32 %n, %ntid.x; mov.u32 %x, %ctaid.x; mad.lo.u32 %thread, %n, %x, %thread;\n"
      "ld.param.u64 %in, [in]; ld.param.u64 %out, [out];\n"
      "mad.wide.u32 %in, %thread, " +
      words + ", %in; mad.wide.u32 %out, %thread, 16, %out;\n";
  for (size_t k = 0; k < shape.sources.size(); ++k) {
    const std::string number = std::to_string(k + 1), from = "[%in+" + std::to_string(8 * k) + "]";
    const uint32_t bytes = register_bytes(shape.sources[k].type);
    if (bytes == 0) {
      text += "ld.global.u32 %x, " + from + "; setp.ne.u32 %p" + number + ", %x, 0;\n";
    } else {
      text += "ld.global.b" + std::to_string(8 * bytes) + " %" + register_class(shape.sources[k].type) + number + ", " +
              from + ";\n";
    }
  }
  if (uses_carry(form))
    text += "ld.global.u32 %x, [%in+" + std::to_string(8 * shape.sources.size()) + "]; add.cc.u32 %x, %x, -1;\n";
  text += instruction_of(form, table);
  if (uses_carry(form)) text += "addc.u32 %x, 0, 0; st.global.u32 [%out+8], %x;\n";
  const uint32_t bytes = register_bytes(shape.results[0].type);
  if (bytes == 0) {
    text += "selp.u32 %x, 1, 0, %p0; st.global.u32 [%out], %x;\n";
    if (shape.results.size() > 1) text += "selp.u32 %x, 1, 0, %p9; st.global.u32 [%out+8], %x;\n";
  } else {
    text += "st.global.b" + std::to_string(8 * bytes) + " [%out], %" + register_class(shape.results[0].type) + "0;\n";
  }
  return text + "ret;\n}\n";
}

std::vector<Form> accepted_forms(std::vector<std::string>& unknown, std::vector<std::string>& others) {
  std::vector<Form> forms;
  for (const auto family : {integer_opcodes(), bit_opcodes(), float_opcodes(), special_function_opcodes(),
                            compare_opcodes(), convert_opcodes()}) {
    for (const OpcodeEntry& entry : family) {
      if (row_of(entry.name) == nullptr || !knows_all_modifiers(entry)) {
        unknown.emplace_back(entry.name);
        continue;
      }
      for (const Words& modifiers : modifier_lists(entry)) {
        Form form{std::string(entry.name), modifiers, {}};
        for (Words& types : type_lists(form)) {
          form.types = std::move(types);
          if (accepted(form)) forms.push_back(form);
        }
      }
    }
  }
  for (const auto family : {move_opcodes(), memory_opcodes(), atomic_opcodes(), control_opcodes(), warp_opcodes(),
                            texture_opcodes(), mbarrier_opcodes()}) {
    for (const OpcodeEntry& entry : family) others.emplace_back(entry.name);
  }
  return forms;
}

}  // namespace gpuwire::software_device::test
