#include "protocol/fatbin/kernel_parameters.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "protocol/fatbin/ptx_lexer.hpp"

namespace gpuwire::fatbin {

bool ParameterLayout::add(uint64_t offset, uint64_t size) {
  if (offsets.size() == kParametersMax || offset > kParameterBytesMax || size > kParameterBytesMax - offset)
    return false;
  offsets.push_back(uint32_t(offset));
  sizes.push_back(uint32_t(size));
  bytes = std::max(bytes, uint32_t(offset + size));
  return true;
}

namespace {

// --- PTX -----------------------------------------------------------------------------------------------------------

// Returns nothing for a type without a size, or with a size that no parameter type has.
std::optional<uint64_t> parameter_type_bytes(std::string_view word) {
  constexpr uint64_t kBitsMax = 1024, kCountMax = 16;
  auto type = ptx_type(word);
  if (!type || type->bits < 8 || type->bits > kBitsMax || type->count == 0 || type->count > kCountMax)
    return std::nullopt;
  return type->bits * type->count / 8;
}

// ".v2" -> 2.
std::optional<uint64_t> vector_items(std::string_view word) {
  if (!word.starts_with(".v") || word.find_first_not_of("0123456789", 2) != std::string_view::npos) return std::nullopt;
  return ptx_number(word.substr(2));
}

// The parameters of one kernel ("Parallel Thread Execution ISA", kernel entry points and the .param space): in the
// order of the text, each at the next multiple of its alignment.
class PtxEntry {
 public:
  // The next token of `lexer` is the one behind ".entry".
  explicit PtxEntry(PtxLexer& lexer) : lexer_(lexer) { advance(); }

  // Returns false if the size of a parameter is unknown.
  bool read() {
    if (!token_.is_word()) return false;
    name_ = token_.text;
    advance();
    if (!skip('(')) return true;
    if (skip(')')) return true;
    do {
      if (!read_parameter()) return false;
    } while (skip(','));
    return token_.is(')');
  }
  std::string_view name() const { return name_; }
  ParameterLayout& layout() { return layout_; }

 private:
  void advance() { token_ = lexer_.next(); }
  bool skip(char symbol) {
    if (!token_.is(symbol)) return false;
    advance();
    return true;
  }
  // Reads the number behind ".align".
  bool read_alignment(uint64_t& alignment) {
    auto to = token_.kind == PtxToken::Kind::number ? ptx_number(token_.text) : std::nullopt;
    if (!to || *to == 0 || *to > kParameterBytesMax) return false;
    alignment = *to;
    advance();
    return true;
  }

  bool read_parameter() {
    if (token_.text != ".param") return false;
    advance();
    std::optional<uint64_t> element;
    uint64_t vector = 1, alignment = 0;
    // True if the following attributes describe the target of the pointer.
    bool points = false;
    while (token_.is_dotted()) {
      const std::string_view word = token_.text;
      advance();
      uint64_t pointee = 0;
      if (word == ".ptr") points = true;
      else if (word == ".align") {
        if (!read_alignment(points ? pointee : alignment)) return false;
      } else if (points) continue;
      else if (auto items = vector_items(word)) vector = *items;
      else if (element || !(element = parameter_type_bytes(word))) return false;
    }
    constexpr uint64_t kVectorMax = 16;
    if (!element || vector == 0 || vector > kVectorMax || !token_.is_word()) return false;
    advance();
    uint64_t bytes = *element * vector;
    alignment = std::max(alignment, bytes);
    while (skip('[')) {
      auto count = token_.kind == PtxToken::Kind::number ? ptx_number(token_.text) : std::nullopt;
      if (!count || *count > kParameterBytesMax) return false;
      advance();
      if (!skip(']')) return false;
      bytes *= *count;
      if (bytes > kParameterBytesMax) return false;
    }
    return layout_.add((uint64_t(layout_.bytes) + alignment - 1) / alignment * alignment, bytes);
  }

  PtxLexer& lexer_;
  PtxToken token_;
  std::string_view name_;
  ParameterLayout layout_;
};

}  // namespace

void read_ptx_parameters(std::string_view ptx, KernelParameterTable& table) {
  PtxLexer lexer(ptx);
  for (PtxToken token = lexer.next(); token.kind != PtxToken::Kind::end; token = lexer.next()) {
    if (token.text != ".entry") continue;
    PtxEntry entry(lexer);
    if (entry.read()) table.try_emplace(std::string(entry.name()), std::move(entry.layout()));
  }
}

namespace {

// --- cubins --------------------------------------------------------------------------------------------------------

// A section ".nv.info.KERNEL" is a list of attributes: a byte with the form of the value, a byte with the attribute's
// number, 16 bits, and, if these are a length, as many bytes. The format was found by experiment with ptxas of CUDA
// 13.0; cuobjdump prints the attributes as EIATTR_*.
constexpr std::string_view kInfoSection = ".nv.info.";
constexpr uint8_t kStoredByLength = 4;
constexpr uint8_t kParameter = 0x17;       // EIATTR_KPARAM_INFO
constexpr uint8_t kLargeParameter = 0x45;  // EIATTR_KPARAM_INFO_V2, for kernels with a parameter beyond 16 KiB
constexpr uint8_t kParameterBytes = 0x19;  // EIATTR_CBANK_PARAM_SIZE: the bytes of all parameters

struct ParameterInfo {
  uint32_t index;
  uint16_t ordinal, offset;
  uint32_t packed;  // the upper 14 bits are the size; in the second kind, the lower 16 bits
};
static_assert(sizeof(ParameterInfo) == 12);
constexpr unsigned kSizeShift = 18;
constexpr uint32_t kLargeSizeMask = 0xffff;

template <class T>
std::optional<T> read_at(std::span<const uint8_t> bytes, uint64_t offset) {
  if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

std::optional<std::span<const uint8_t>> contents(std::span<const uint8_t> file, const Elf64_Shdr& section) {
  if (section.sh_type == SHT_NOBITS || section.sh_offset > file.size() ||
      section.sh_size > file.size() - section.sh_offset)
    return std::nullopt;
  return file.subspan(section.sh_offset, section.sh_size);
}

std::optional<ParameterLayout> read_info(std::span<const uint8_t> info) {
  struct Found {
    uint32_t offset, size;
  };
  std::map<uint16_t, Found> parameters;  // by ordinal, because they are in any order
  uint32_t all_bytes = 0;
  while (!info.empty()) {
    struct Head {
      uint8_t stored, what;
      uint16_t value;
    };
    auto head = read_at<Head>(info, 0);
    if (!head) return std::nullopt;
    info = info.subspan(sizeof(Head));
    if (head->stored != kStoredByLength) {
      if (head->what == kParameterBytes) all_bytes = head->value;
      continue;
    }
    if (head->value > info.size()) return std::nullopt;
    if (head->what == kParameter || head->what == kLargeParameter) {
      auto parameter = read_at<ParameterInfo>(info.first(head->value), 0);
      if (!parameter) return std::nullopt;
      const uint32_t size =
          head->what == kParameter ? parameter->packed >> kSizeShift : parameter->packed & kLargeSizeMask;
      if (!parameters.try_emplace(parameter->ordinal, Found{parameter->offset, size}).second) return std::nullopt;
    }
    info = info.subspan(head->value);
  }
  ParameterLayout layout;
  uint16_t due = 0;
  for (const auto& [ordinal, parameter] : parameters) {
    if (ordinal != due++ || !layout.add(parameter.offset, parameter.size)) return std::nullopt;
  }
  // A parameter in an unknown form would be missing.
  if (layout.bytes != all_bytes) return std::nullopt;
  return layout;
}

}  // namespace

void read_cubin_parameters(std::span<const uint8_t> cubin, KernelParameterTable& table) {
  auto header = read_at<Elf64_Ehdr>(cubin, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shoff > cubin.size())
    return;
  const auto sections = cubin.subspan(header->e_shoff);
  auto section_at = [&](uint64_t index) { return read_at<Elf64_Shdr>(sections, index * sizeof(Elf64_Shdr)); };
  const auto first = section_at(0);
  if (!first) return;
  // Values that exceed the header's fields are in the first section.
  const uint64_t count = header->e_shnum ? header->e_shnum : first->sh_size;
  const auto names_section = section_at(header->e_shstrndx == SHN_XINDEX ? first->sh_link : header->e_shstrndx);
  const auto names = names_section ? contents(cubin, *names_section) : std::nullopt;
  if (!names || names->empty() || names->back() != 0) return;
  for (uint64_t i = 0; i < std::min(count, sections.size() / sizeof(Elf64_Shdr)); ++i) {
    const auto section = section_at(i);
    if (section->sh_name >= names->size()) continue;
    const std::string_view name(reinterpret_cast<const char*>(names->data()) + section->sh_name);
    if (!name.starts_with(kInfoSection)) continue;
    const auto info = contents(cubin, *section);
    auto layout = info ? read_info(*info) : std::nullopt;
    if (layout) table.try_emplace(std::string(name.substr(kInfoSection.size())), *std::move(layout));
  }
}

void read_entries_parameters(std::span<const Entry> entries, KernelParameterTable& table) {
  for (const Entry& entry : entries) {
    if (entry.kind == Kind::other) continue;
    auto contents = decompress(entry);
    if (!contents) continue;
    if (entry.kind == Kind::cubin) read_cubin_parameters(*contents, table);
    else read_ptx_parameters({reinterpret_cast<const char*>(contents->data()), contents->size()}, table);
  }
}

}  // namespace gpuwire::fatbin
