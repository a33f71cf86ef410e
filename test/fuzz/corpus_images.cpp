#include "test/fuzz/corpus_images.hpp"

#include <elf.h>

#include <cstring>
#include <span>

#include <fmt/format.h>

#include "protocol/fatbin/linked_image.hpp"
#include "test/protocol/fatbin/fatbin_builder.hpp"
#include "test/server/ipc/messages.hpp"

namespace gpuwire::test {
namespace {

using namespace fatbin::test;

const std::string kPtxText =
    ".version 8.0\n.target sm_75\n.address_size 64\n.global .align 4 .b8 table[16] = {1, 2};\n.visible .entry k(.param "
    ".u64 a) { .reg .u64 %rd<2>; ld.param.u64 "
    "%rd1, [a]; ret; }\n";

std::string text_of(const Bytes& bytes) { return {bytes.begin(), bytes.end()}; }

// An ELF file of one section that is loaded.
std::string small_elf() {
  std::string bytes(sizeof(Elf64_Ehdr) + 2 * sizeof(Elf64_Shdr) + 16, '\0');
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_machine = 190;  // EM_CUDA
  header.e_ehsize = sizeof header;
  header.e_shoff = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  Elf64_Shdr section{};
  section.sh_type = SHT_PROGBITS;
  section.sh_flags = SHF_ALLOC;
  section.sh_offset = sizeof header + 2 * sizeof section;
  section.sh_size = 16;
  std::memcpy(bytes.data(), &header, sizeof header);
  std::memcpy(bytes.data() + sizeof header + sizeof section, &section, sizeof section);
  return bytes;
}

}  // namespace

void add_images(const WriteInput& write) {
  const std::string elf = small_elf();
  write("text", kPtxText);
  write("elf", elf);
  write("plain", text_of(build_container({{.contents = kPtxText}, {.kind = kElf, .sm = 80, .contents = elf}})));
  write("lz4",
        text_of(build_container({{.sm = 80, .contents = kPtxText, .flags = kLz4, .options = "--compile-only"}})));
  write("zstd", text_of(build_container({{.kind = kElf, .sm = 80, .contents = elf, .flags = kZstd},
                                         {.sm = 90, .contents = kPtxText, .flags = kZstd | kExactly}})));
  Bytes first = build_container({{.sm = 80, .contents = kPtxText}}),
        second = build_container({{.sm = 80, .contents = kPtxText, .flags = kLz4}});
  std::span<const uint8_t> containers[] = {first, second};
  if (auto linked = fatbin::write_linked_image(containers)) write("linked", text_of(*linked));
}

void add_broker_messages(const WriteInput& write) {
  for (auto& [by, message] : server::ipc::test::one_of_each()) {
    auto packet = server::ipc::encode(message);
    write(fmt::format("message_{:02}", message.index()),
          {reinterpret_cast<const char*>(packet.bytes().data()), packet.bytes().size()});
  }
  write("status", "{\"command\":\"status\"}");
  write("watch", "{\"command\":\"watch\",\"interval_ms\":1000}");
  write("end", "{\"command\":\"end\",\"session\":7,\"reason\":\"maintenance\"}");
  write("get", "GET /metrics HTTP/1.1\r\nHost: gpuhost\r\n\r\n");
}

}  // namespace gpuwire::test
