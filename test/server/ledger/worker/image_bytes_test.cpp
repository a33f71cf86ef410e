// The charge of an image is never less than its memory, in any spelling.
#include "server/ledger/worker/image_bytes.hpp"

#include <elf.h>

#include <cstring>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace gpuwire::server {
namespace {

constexpr uint64_t kMiB = 1u << 20;

std::optional<VariableBytes> bytes_of(std::string_view text) {
  auto bytes = ptx_device_bytes({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  if (bytes) bytes->plain -= text.size();
  return bytes;
}
uint64_t plain(std::string_view text) {
  auto bytes = bytes_of(text);
  return bytes ? bytes->plain : UINT64_MAX;
}

TEST_CASE("the bytes of a program are those of its variables and its code") {
  CHECK(plain(".global .u32 a;") == 4);
  CHECK(plain(".visible .global .align 16 .v4 .f32 a[10];") == 160);
  CHECK(plain(".global .b8 a[0x10][4] = {1, 2, 3};") == 64);
  CHECK(plain(".const .b64 a, b[3];.extern .global .b8 c[];") == 8 + 24 + 1);
  CHECK(plain("ld.global.u32 %r1, [a]; st.global.f32 [b], %f1;") == 0);
  CHECK(plain(".global .b8 a[99999999999999999999999];") > UINT64_MAX / 2);
  auto managed = bytes_of(".global .attribute(.managed) .align 8 .b8 a[7]; .global .b8 b[5];");
  REQUIRE(managed);
  CHECK(managed->managed == 7);
  CHECK(managed->plain == 5);
}

// A declaration, and the bytes of .nv.global and .nv.global.init by ptxas of CUDA 13.0.
struct Spelling {
  const char* text;
  uint64_t bytes;
};

TEST_CASE("no spelling that ptxas takes makes a variable cheaper") {
  const Spelling spellings[] = {
      {".visible .global /* ; */ .align 8 .b8 big[4096];", 4096},
      {".global .b8 a /* x */ [ /* y */ 0x40 /* z */ ] // foo ;\n ;", 64},
      {".global.b8 a[64];", 64},
      {".visible.global .b8 a[64];", 64},
      {".target sm_90.global .b8 a[64];", 64},
      {".target sm_90, debug .global .b8 a[64];", 64},
      {".func ld .global .b8 a[64];", 64},
      {".file 1 \"x\".global .b8 a[64];", 64},
      {".file 1 \"/*\"\n.global .b8 a[64];", 64},
      {".file 1 \"a\\\"\n.global .b8 a[64];", 64},
      {".file 1 \"a//\"\n.global .b8 a[64];", 64},
      {"// foo \\\n .global .b8 a[64];", 64},
      {"{ L:.global .b8 a[64]; ret; }", 64},
      {"{ .loc 1 2 3 .global .b8 a[64]; ret; }", 64},
      {"{ .reg .b32 ld; .global .b8 a[64]; ld .global .b32 x, [a]; }", 64},
      {".global .b8 a[010];", 8},
      {".global .b8 a[0b1000];", 8},
      {".global .b8 a[0B100];", 4},
      {".global .b8 a[0X40];", 64},
      {".global .b8 a[16U];", 16},
      {".global .b8 a[WARP_SZ];", 32},
      {".global .b32 a[2][3][4][5];", 480},
      {".global .b32 a[3]\n[4];", 48},
      {".global .b8 a[] = {1,2,3,4};", 4},
      {".global .b8 a[][100] = {{1},{2}};", 200},
      {".global .b32 a, b[3], c = 5, d[2]={1,2};", 28},
      {".global .b8 a[64] = {1,2} , b[128];", 192},
      {".global .f16x2 a[10];", 40},
      {".global .b128 a[10];", 160},
      {".global .v2.b64 a[10];", 160},
      {".global .samplerref t[5];", 100},
      {".global .texref t[5];", 260},
      {".global .surfref t[5];", 140},
      {".global .align 1048576 .b8 a; .global .align 1048576 .b8 b;", 1048577},
      {".common .global .b8 a[64];", 64},
      {".weak .global .b8 a[64];", 64},
      {".extern .global .b8 a[64];", 64},
      {".global .b32 r<100>; { ld.global.b32 x, [r5]; st.global.b32 [r6], x; }", 8},
      {".global .b8 %a[64];", 64},
      {".global .b8 a[64]; /* /* */ .global .b8 b[64]; /* */", 128},
  };
  for (const Spelling& spelling : spellings) {
    INFO(spelling.text);
    auto bytes = bytes_of(spelling.text);
    REQUIRE(bytes);
    CHECK(bytes->plain >= spelling.bytes);
    // The charge is not much larger, except for large alignments and declarations by number.
    if (spelling.bytes < 1024 && !std::strchr(spelling.text, '<')) CHECK(bytes->plain <= 4 * spelling.bytes);
  }
}

TEST_CASE("text in comments and strings declares nothing, and a pointer to a space is no variable") {
  CHECK(plain("// .global .b8 a[64];") == 0);
  CHECK(plain("// foo \r .global .b8 a[64];") == 0);
  CHECK(plain("/* .global .b8 a[64]; */") == 0);
  CHECK(plain("/* .global .b8 a[64];") == 0);
  CHECK(plain(".file 1 \"a\n.global .b8 a[64];\n\"") == 0);
  CHECK(plain(".entry g(.param .u64 .ptr .global .align 8 p, .param .u64 .ptr .const q)") == 0);
  CHECK(plain("{ @%p1 ld.global.u32 %r1, [a]; @!%p1 st.volatile.global.v4.f32 [a], {x, y, z, w}; }") == 0);
  CHECK(plain("{ cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [a], [b], c, [d]; }") == 0);
  // An unknown instruction is accepted.
  CHECK(plain("{ novel.op.global::x.u32 [a]; later.global [a]; }") == 0);
}

TEST_CASE("a declaration that cannot be read is no bound at all") {
  CHECK_FALSE(bytes_of(".global .b8 a[1<<31];"));
  CHECK_FALSE(bytes_of(".global .b8 a[4*1024];"));
  CHECK_FALSE(bytes_of(".global .b8 a["));
  CHECK_FALSE(bytes_of(".target sm_90 .global .b8 a[1<<31];"));
  CHECK_FALSE(bytes_of("#define BIG .global .b8 a[4096];\nBIG"));
  CHECK(bytes_of("# 1 \"x.cu\"\n.global .b8 a[64];"));
}

TEST_CASE("a text is read in time that follows its length") {
  std::string nested;
  for (unsigned i = 0; i < 200'000; ++i) nested += "x.global a={";
  CHECK_FALSE(bytes_of("{" + nested));
}

// --- cubins --------------------------------------------------------------------------------------------------------

// One section besides the empty one; its contents, if any, are zeroes.
std::vector<uint8_t> cubin(Elf64_Shdr section, size_t contents = 0, const std::vector<Elf64_Sym>& symbols = {}) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  section.sh_offset = sizeof header;
  Elf64_Shdr table{};
  table.sh_type = SHT_SYMTAB;
  table.sh_offset = sizeof header + contents;
  table.sh_size = symbols.size() * sizeof(Elf64_Sym);
  header.e_shoff = table.sh_offset + table.sh_size;
  const Elf64_Shdr sections[]{{}, section, table};
  std::vector<uint8_t> file(header.e_shoff + sizeof sections);
  std::memcpy(file.data(), &header, sizeof header);
  if (!symbols.empty()) std::memcpy(file.data() + table.sh_offset, symbols.data(), table.sh_size);
  std::memcpy(file.data() + header.e_shoff, sections, sizeof sections);
  return file;
}

TEST_CASE("a cubin counts with all that could be loaded, whatever its sections say of themselves") {
  const Elf64_Shdr zeroes{.sh_type = SHT_NOBITS, .sh_flags = SHF_ALLOC | SHF_WRITE, .sh_size = 64 * kMiB};
  CHECK(cubin_device_bytes(cubin(zeroes)) == 64 * kMiB);
  Elf64_Shdr unflagged = zeroes;
  unflagged.sh_flags = 0;
  CHECK(cubin_device_bytes(cubin(unflagged)) == 64 * kMiB);
  Elf64_Shdr typed = zeroes;
  typed.sh_type = 0x70000007;  // a type of NVIDIA's own
  CHECK(cubin_device_bytes(cubin(typed)) == 64 * kMiB);
  typed.sh_type = SHT_STRTAB;  // not loaded, but it must be in the file
  CHECK_FALSE(cubin_device_bytes(cubin(typed)));
  const Elf64_Sym beyond{.st_shndx = 1, .st_value = 128 * kMiB, .st_size = 4},
      common{.st_shndx = SHN_COMMON, .st_value = 16, .st_size = 32 * kMiB};
  CHECK(cubin_device_bytes(cubin(zeroes, 0, {beyond, common})) == 160 * kMiB + 4 + 16);
}

TEST_CASE("a cubin whose tables cannot be read is no bound at all") {
  auto file = cubin({.sh_type = SHT_NOBITS, .sh_size = 64 * kMiB});
  auto damaged = [&](auto&& change) {
    auto other = file;
    Elf64_Ehdr header;
    std::memcpy(&header, other.data(), sizeof header);
    change(header);
    std::memcpy(other.data(), &header, sizeof header);
    return cubin_device_bytes(other);
  };
  CHECK_FALSE(cubin_device_bytes({}));
  CHECK_FALSE(damaged([](Elf64_Ehdr& header) { header.e_shnum = 100; }));
  CHECK_FALSE(damaged([](Elf64_Ehdr& header) { header.e_shentsize = 40; }));
  CHECK_FALSE(damaged([](Elf64_Ehdr& header) { header.e_shoff = UINT64_MAX - 8; }));
  CHECK_FALSE(damaged([](Elf64_Ehdr& header) { header.e_ident[EI_CLASS] = ELFCLASS32; }));
  CHECK_FALSE(damaged([](Elf64_Ehdr& header) { header.e_phnum = 1, header.e_phentsize = 1; }));
  // More sections than the header's field holds.
  Elf64_Shdr first{.sh_size = 3};
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  std::memcpy(file.data() + header.e_shoff, &first, sizeof first);
  CHECK(damaged([](Elf64_Ehdr& elf) { elf.e_shnum = 0; }).value_or(0) >= 64 * kMiB);
}

// --- fat binaries --------------------------------------------------------------------------------------------------

struct PlainEntry {
  uint16_t kind;  // 1: PTX, 2: a cubin
  uint32_t sm;
  std::string contents;
};

std::vector<uint8_t> container(const std::vector<PlainEntry>& entries) {
  constexpr size_t kEntryHeaderBytes = 64;
  std::vector<uint8_t> bytes(fatbin::kContainerHeaderBytes);
  auto put = [&](size_t at, auto value) { std::memcpy(bytes.data() + at, &value, sizeof value); };
  for (const PlainEntry& entry : entries) {
    const size_t at = bytes.size(), padded = (entry.contents.size() + 7) / 8 * 8;
    bytes.resize(at + kEntryHeaderBytes + padded);
    put(at, entry.kind);
    put(at + 2, uint16_t{0x101});
    put(at + 4, uint32_t{kEntryHeaderBytes});
    put(at + 8, uint64_t{padded});
    put(at + 28, entry.sm);
    std::memcpy(bytes.data() + at + kEntryHeaderBytes, entry.contents.data(), entry.contents.size());
  }
  put(0, fatbin::kContainerMagic);
  put(4, uint16_t{1});
  put(6, uint16_t{fatbin::kContainerHeaderBytes});
  put(8, uint64_t{bytes.size() - fatbin::kContainerHeaderBytes});
  return bytes;
}

TEST_CASE("a fat binary counts with the largest of its entries: which one is loaded is the driver's choice") {
  const std::string small = ".version 8.0\n.global .b8 a[16];", large = ".version 8.0\n.global .b8 a[1048576];";
  for (const auto& image : {container({{1, 90, small}, {1, 80, large}}), container({{1, 80, large}, {1, 90, small}})}) {
    auto bytes = image_device_bytes(image.data());
    REQUIRE(bytes);
    CHECK(bytes->plain >= kMiB + large.size());
  }
}

}  // namespace
}  // namespace gpuwire::server
