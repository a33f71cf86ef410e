#include "protocol/fatbin/image_size.hpp"

#include <doctest/doctest.h>
#include <elf.h>

#include <string>

#include "fatbin_builder.hpp"

namespace {

using namespace gpuwire::fatbin;
using namespace gpuwire::fatbin::test;

// A file with one section of data that ends behind both header tables.
Bytes small_elf(uint64_t section_offset, uint64_t section_bytes) {
  Bytes out(sizeof(Elf64_Ehdr) + sizeof(Elf64_Shdr) + sizeof(Elf64_Phdr));
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_shoff = sizeof header;
  header.e_shnum = 1;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_phoff = sizeof header + sizeof(Elf64_Shdr);
  header.e_phnum = 1;
  header.e_phentsize = sizeof(Elf64_Phdr);
  Elf64_Shdr section{};
  section.sh_type = SHT_PROGBITS;
  section.sh_offset = section_offset;
  section.sh_size = section_bytes;
  put(out, 0, header);
  put(out, header.e_shoff, section);
  return out;
}

}  // namespace

TEST_CASE("The first bytes tell what an image is") {
  CHECK(image_kind(build_container({})) == ImageKind::container);
  CHECK(image_kind(small_elf(0, 0)) == ImageKind::elf);
  const std::string text = "\n\n// PTX";
  CHECK(image_kind({reinterpret_cast<const uint8_t*>(text.data()), text.size()}) == ImageKind::text);
  CHECK(image_kind({}) == ImageKind::text);
}

TEST_CASE("A container's size is known from its first sixteen bytes") {
  const Bytes bytes = build_container({{kPtx, 75, "some text"}});
  CHECK(container_bytes(std::span(bytes).first(16)).value() == bytes.size());
  CHECK_FALSE(container_bytes(std::span(bytes).first(15)).has_value());
  Bytes huge = bytes;
  put<uint64_t>(huge, 8, ~uint64_t{0});
  CHECK_FALSE(container_bytes(huge).has_value());
}

TEST_CASE("An ELF file ends behind its last section or header table") {
  const Bytes tables_last = small_elf(64, 8);
  CHECK(elf_bytes(tables_last).value() == tables_last.size());
  CHECK(elf_bytes(small_elf(4096, 100)).value() == 4196);
  CHECK_FALSE(elf_bytes(small_elf(~uint64_t{0} - 4, 100)).has_value());
  for (size_t length = 0; length < tables_last.size(); ++length) {
    const Bytes cut(tables_last.begin(), tables_last.begin() + static_cast<ptrdiff_t>(length));
    CHECK_FALSE(elf_bytes(cut).has_value());
  }
}

TEST_CASE("An image in our own memory is measured by its kind") {
  const Bytes container = build_container({{kPtx, 75, "some text"}});
  CHECK(span_of_trusted_image(container.data()).value().size() == container.size());
  const Bytes elf = small_elf(64, 8);
  CHECK(span_of_trusted_image(elf.data()).value().size() == elf.size());
  CHECK(span_of_trusted_image("// PTX").value().size() == 6);
  CHECK(span_of_trusted_image("").value().empty());
}

TEST_CASE("A wrapper leads to its container and to the containers it was linked from") {
  struct {
    uint32_t magic, version;
    const void* container;
    const void* const* list;
  } wrapper{kWrapperMagic, 1, "container", nullptr};
  const void* const list[] = {"first", "second", nullptr};
  CHECK(wrapped_containers(&wrapper).value().container == wrapper.container);
  CHECK(wrapped_containers(&wrapper).value().linked_from.empty());
  wrapper.list = list;
  CHECK(wrapped_containers(&wrapper).value().linked_from.empty());
  wrapper.version = 2;
  CHECK(wrapped_containers(&wrapper).value().linked_from == std::vector<const void*>{list[0], list[1]});
  wrapper.magic = 1;
  CHECK_FALSE(wrapped_containers(&wrapper).has_value());
  CHECK_FALSE(span_of_trusted_image("\xB1\x43\x62\x46....").has_value());
}
