#include "protocol/fatbin/kernel_parameters.hpp"

#include <doctest/doctest.h>
#include <elf.h>

#include <cstring>
#include <string>
#include <vector>

#include "test/protocol/fatbin/fatbin_builder.hpp"

namespace {

using namespace gpuwire::fatbin;
using test::Bytes;
using Numbers = std::vector<uint32_t>;

KernelParameterTable of_ptx(std::string_view text) {
  KernelParameterTable table;
  read_ptx_parameters(text, table);
  return table;
}

// One attribute of a section ".nv.info.KERNEL".
Bytes attribute(uint8_t stored, uint8_t what, uint16_t value, const Bytes& rest = {}) {
  Bytes out(4);
  out[0] = stored;
  out[1] = what;
  test::put<uint16_t>(out, 2, value);
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

Bytes parameter(uint16_t ordinal, uint16_t offset, uint32_t size) {
  Bytes value(12);
  test::put<uint16_t>(value, 4, ordinal);
  test::put<uint16_t>(value, 6, offset);
  test::put<uint32_t>(value, 8, size << 18 | 0x1f000);
  return attribute(4, 0x17, 12, value);
}

Bytes all_bytes(uint16_t bytes) { return attribute(3, 0x19, bytes); }

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes out;
  for (const Bytes& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

// A cubin with nothing but what it says of one kernel.
Bytes cubin(const std::string& kernel, const Bytes& info) {
  const std::string names = std::string(1, '\0') + ".shstrtab" + '\0' + ".nv.info." + kernel + '\0';
  const size_t names_at = sizeof(Elf64_Ehdr), info_at = names_at + names.size(), table_at = info_at + info.size();
  Bytes out(table_at + 3 * sizeof(Elf64_Shdr));
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_shoff = table_at;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  header.e_shstrndx = 1;
  Elf64_Shdr sections[3] = {};
  sections[1].sh_name = 1;
  sections[1].sh_type = SHT_STRTAB;
  sections[1].sh_offset = names_at;
  sections[1].sh_size = names.size();
  sections[2].sh_name = 11;
  sections[2].sh_type = SHT_LOPROC;
  sections[2].sh_offset = info_at;
  sections[2].sh_size = info.size();
  std::memcpy(out.data(), &header, sizeof header);
  std::memcpy(out.data() + names_at, names.data(), names.size());
  if (!info.empty()) std::memcpy(out.data() + info_at, info.data(), info.size());
  std::memcpy(out.data() + table_at, sections, sizeof sections);
  return out;
}

KernelParameterTable of_cubin(const Bytes& bytes) {
  KernelParameterTable table;
  read_cubin_parameters(bytes, table);
  return table;
}

}  // namespace

TEST_CASE("A PTX text says where each parameter of its kernels lies, and how long it is") {
  const auto table = of_ptx(R"(
    .version 8.0 .target sm_75 .address_size 64
    .func (.param .b32 r) helper(.param .b64 far) { ret; }
    // .entry hidden(.param .u64 x)
    .visible .entry none { ret; }
    .entry empty() { ret; }
    .visible .entry mixed(.param .u8 a, .param .u64 .ptr .global .align 128 b, .param .v2 .f32 c,
                          .param .align 16 .b8 d[12], /* .param .u64 e, */ .param .f16x2 f[2][3], .param .b128 g)
    .maxntid 128, 1, 1 { .reg .b32 entry; ret; }
  )");
  CHECK(table.size() == 3);
  CHECK(table.at("none") == ParameterLayout{});
  CHECK(table.at("empty") == ParameterLayout{});
  CHECK(table.at("mixed").offsets == Numbers{0, 8, 16, 32, 44, 80});
  CHECK(table.at("mixed").sizes == Numbers{1, 8, 8, 12, 24, 16});
  CHECK(table.at("mixed").bytes == 96);
}

TEST_CASE("A kernel with a parameter that has no known size, or more than any kernel may have, is left out") {
  for (const char* list :
       {".param .texref t", ".param .b8 large[32765]", ".param .b8 open[]", ".param .align 0 .b8 x[4]", ".param .u64",
        ".param .v4 x", "a", ".param .b8 a[65536][65536]", ".param .u64 .u32 x", ".param .b8 x[4"}) {
    CAPTURE(list);
    const auto table = of_ptx(".entry gone(" + std::string(list) + ") { ret; } .entry there(.param .u32 x) { ret; }");
    CHECK_FALSE(table.contains("gone"));
  }
  CHECK(of_ptx(".entry k(.param .b8 large[32764]) { ret; }").at("k").bytes == kParameterBytesMax);
}

TEST_CASE("A cubin says where each parameter of its kernels lies, in whatever order they stand") {
  const auto table = of_cubin(cubin("k", joined({attribute(4, 0x0a, 8, Bytes(8)), all_bytes(20), parameter(2, 16, 4),
                                                 parameter(1, 8, 8), parameter(0, 0, 8), attribute(2, 0x1b, 255)})));
  REQUIRE(table.contains("k"));
  CHECK(table.at("k").offsets == Numbers{0, 8, 16});
  CHECK(table.at("k").sizes == Numbers{8, 8, 4});
  CHECK(of_cubin(cubin("none", joined({attribute(2, 0x1b, 255)}))).at("none") == ParameterLayout{});
}

TEST_CASE("A cubin's parameters of a kernel count only as a whole") {
  const Bytes good = joined({all_bytes(12), parameter(0, 0, 8), parameter(1, 8, 4)});
  CHECK(of_cubin(cubin("k", good)).contains("k"));
  const std::vector<Bytes> bad{
      joined({all_bytes(16), parameter(0, 0, 8)}),                             // one is told in another way
      joined({all_bytes(12), parameter(1, 8, 4)}),                             // the first is missing
      joined({all_bytes(8), parameter(0, 0, 8), parameter(0, 0, 8)}),          // one stands there twice
      joined({all_bytes(8), attribute(4, 0x17, 8, Bytes(8))}),                 // one is cut short
      joined({all_bytes(12), parameter(0, 0, 8), attribute(4, 0x17, 60000)}),  // one reaches beyond the section
      joined({good, Bytes(3)}),
  };
  for (const Bytes& info : bad) CHECK(of_cubin(cubin("k", info)).empty());
}

TEST_CASE("A damaged cubin says nothing, or what it still says, and nothing outside of it is read") {
  const Bytes whole = cubin("k", joined({all_bytes(8), parameter(0, 0, 8)}));
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) of_cubin({whole.begin(), whole.begin() + long(bytes)});
  for (size_t at = 0; at < whole.size(); ++at) {
    for (uint8_t value : {0x00, 0x7f, 0xff}) {
      Bytes changed = whole;
      changed[at] = value;
      for (const auto& [name, layout] : of_cubin(changed)) CHECK(layout.bytes <= kParameterBytesMax);
    }
  }
}

TEST_CASE("The first entry of a fat binary that has a kernel's parameters counts") {
  const std::string odd = ".entry k(.param .texref t) { ret; }", text = ".entry k(.param .u32 x) { ret; }";
  const Bytes code = cubin("other", joined({all_bytes(4), parameter(0, 0, 4)}));
  const std::string_view elf(reinterpret_cast<const char*>(code.data()), code.size());
  const Bytes entries = joined({test::build_entry({.contents = odd}), test::build_entry({.contents = text}),
                                test::build_entry({.kind = test::kElf, .contents = elf, .flags = test::kZstd})});
  const auto read = read_entries(entries);
  REQUIRE(read.has_value());
  KernelParameterTable table;
  read_entries_parameters(*read, table);
  CHECK(table.at("k").sizes == Numbers{4});
  CHECK(table.at("other").sizes == Numbers{4});
}
