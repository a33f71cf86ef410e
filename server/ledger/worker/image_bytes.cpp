#include "server/ledger/worker/image_bytes.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include "protocol/fatbin/image_size.hpp"
#include "server/ledger/worker/saturating.hpp"

namespace gpuwire::server {
namespace {

// --- cubins --------------------------------------------------------------------------------------------------------

// Returns a copy of one of a file's tables, since the table may be unaligned. Empty: the table exceeds the file.
template <class Row>
std::optional<std::vector<Row>> table(std::span<const uint8_t> file, uint64_t offset, uint64_t count) {
  if (offset > file.size() || (file.size() - offset) / sizeof(Row) < count) return std::nullopt;
  std::vector<Row> rows(count);
  if (count) std::memcpy(rows.data(), file.data() + offset, count * sizeof(Row));
  return rows;
}

// Whether only the host reads the section. The driver does not load such a section onto the device.
bool stays_here(const Elf64_Shdr& section) {
  return section.sh_type == SHT_SYMTAB || section.sh_type == SHT_STRTAB || section.sh_type == SHT_RELA ||
         section.sh_type == SHT_REL;
}

bool lies_in(std::span<const uint8_t> file, const Elf64_Shdr& section) {
  return section.sh_offset <= file.size() && section.sh_size <= file.size() - section.sh_offset;
}

// Raises each section's extent to the end of its symbols. Symbols without a section (SHN_COMMON) are allocated at the
// load.
bool add_symbols(std::span<const uint8_t> file, const Elf64_Shdr& symbols, std::vector<uint64_t>& extents,
                 uint64_t& common) {
  auto rows = table<Elf64_Sym>(file, symbols.sh_offset, symbols.sh_size / sizeof(Elf64_Sym));
  if (!rows) return false;
  for (const Elf64_Sym& symbol : *rows) {
    const uint64_t end = sum(symbol.st_value, symbol.st_size);
    if (symbol.st_shndx == SHN_COMMON) common = sum(common, end);
    else if (symbol.st_shndx < extents.size()) extents[symbol.st_shndx] = std::max(extents[symbol.st_shndx], end);
  }
  return true;
}

constexpr uint64_t kFreeSectionAlignment = 4096;  // the padding of sections with a larger alignment counts

}  // namespace

std::optional<VariableBytes> ptx_device_bytes(std::span<const uint8_t> text) {
  auto variables = variable_bytes({reinterpret_cast<const char*>(text.data()), text.size()});
  if (variables) variables->plain = sum(variables->plain, text.size());
  return variables;
}

std::optional<uint64_t> cubin_device_bytes(std::span<const uint8_t> cubin) {
  auto header = table<Elf64_Ehdr>(cubin, 0, 1);
  if (!header) return std::nullopt;
  const Elf64_Ehdr& elf = header->front();
  if (std::memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_ident[EI_CLASS] != ELFCLASS64 ||
      elf.e_shentsize != sizeof(Elf64_Shdr) || (elf.e_phnum != 0 && elf.e_phentsize != sizeof(Elf64_Phdr)))
    return std::nullopt;
  uint64_t section_count = elf.e_shnum;
  if (section_count == 0) {  // the count does not fit into e_shnum: the size of the first section has it
    auto first = table<Elf64_Shdr>(cubin, elf.e_shoff, 1);
    section_count = first ? first->front().sh_size : 0;
  }
  auto sections = table<Elf64_Shdr>(cubin, elf.e_shoff, section_count);
  auto segments = table<Elf64_Phdr>(cubin, elf.e_phoff, elf.e_phnum);
  if (!sections || sections->empty() || !segments) return std::nullopt;
  std::vector<uint64_t> extents(sections->size());
  uint64_t common = 0;
  for (const Elf64_Shdr& section : *sections) {
    if (section.sh_type == SHT_SYMTAB && !add_symbols(cubin, section, extents, common)) return std::nullopt;
  }
  uint64_t bytes = common, in_segments = 0;
  for (size_t i = 0; i < sections->size(); ++i) {
    const Elf64_Shdr& section = (*sections)[i];
    if (stays_here(section)) {
      if (!lies_in(cubin, section)) return std::nullopt;
      continue;
    }
    bytes = sum(bytes, std::max(section.sh_size, extents[i]));
    if (section.sh_addralign > kFreeSectionAlignment) bytes = sum(bytes, section.sh_addralign);
  }
  for (const Elf64_Phdr& segment : *segments) in_segments = sum(in_segments, segment.p_memsz);
  return std::max(bytes, in_segments);
}

namespace {

// --- fat binaries --------------------------------------------------------------------------------------------------

using Bound = std::optional<VariableBytes>;

bool is_elf(std::span<const uint8_t> contents) {
  return contents.size() >= SELFMAG && std::memcmp(contents.data(), ELFMAG, SELFMAG) == 0;
}

Bound contents_bytes(std::span<const uint8_t> contents) {
  if (!is_elf(contents)) return ptx_device_bytes(contents);
  auto bytes = cubin_device_bytes(contents);
  return bytes ? Bound({.plain = *bytes}) : std::nullopt;
}

Bound larger(const Bound& a, const Bound& b) {
  if (!a || !b) return std::nullopt;
  return VariableBytes{std::max(a->plain, b->plain), std::max(a->managed, b->managed)};
}

Bound both(const Bound& a, const Bound& b) {
  if (!a || !b) return std::nullopt;
  return VariableBytes{sum(a->plain, b->plain), sum(a->managed, b->managed)};
}

Bound container_device_bytes(const void* container) {
  auto whole = fatbin::span_of_trusted_image(container);
  if (!whole) return std::nullopt;
  auto entries = fatbin::read_container(*whole);
  if (!entries) return std::nullopt;
  Bound most = VariableBytes{};
  for (const fatbin::Entry& entry : *entries) {
    // The driver does not load an entry of another kind: such entries are for linkers.
    if (entry.kind == fatbin::Kind::other) continue;
    auto contents = fatbin::decompress(entry);
    most = contents ? larger(most, contents_bytes(*contents)) : std::nullopt;
  }
  return most;
}

}  // namespace

namespace {

HostBytes operator+(HostBytes a, HostBytes b) { return {sum(a.kept, b.kept), sum(a.while_loading, b.while_loading)}; }

HostBytes host_bytes(uint64_t contents, bool text) {
  return {contents, product(contents, text ? kCompilerHostFactor : kLoaderHostFactor)};
}

tl::expected<HostBytes, fatbin::Error> container_host_bytes(const void* container) {
  auto whole = fatbin::span_of_trusted_image(container);
  if (!whole) return tl::unexpected(whole.error());
  auto entries = fatbin::read_container(*whole);
  if (!entries) return tl::unexpected(entries.error());
  HostBytes most;
  for (const fatbin::Entry& entry : *entries) {
    HostBytes takes =
        host_bytes(std::max<uint64_t>(entry.decompressed_bytes, entry.payload.size()), entry.kind == fatbin::Kind::ptx);
    most = {std::max(most.kept, takes.kept), std::max(most.while_loading, takes.while_loading)};
  }
  return most;
}

tl::expected<HostBytes, fatbin::Error> wrapper_host_bytes(const void* wrapper) {
  auto wrapped = fatbin::wrapped_containers(wrapper);
  if (!wrapped) return tl::unexpected(wrapped.error());
  auto all = container_host_bytes(wrapped->container);
  for (const void* part : wrapped->linked_from) {
    auto one = container_host_bytes(part);
    if (!all || !one) return all ? one : all;
    all = *all + *one;
  }
  return all;
}

}  // namespace

tl::expected<HostBytes, fatbin::Error> image_host_bytes(const void* image) {
  constexpr size_t kKindBytes = 8;
  fatbin::ImageKind kind = fatbin::image_kind({static_cast<const uint8_t*>(image), kKindBytes});
  if (kind == fatbin::ImageKind::wrapper) return wrapper_host_bytes(image);
  if (kind == fatbin::ImageKind::container) return container_host_bytes(image);
  auto whole = fatbin::span_of_trusted_image(image);
  if (!whole) return tl::unexpected(whole.error());
  return host_bytes(whole->size(), kind == fatbin::ImageKind::text);
}

std::optional<VariableBytes> image_device_bytes(const void* image) {
  constexpr size_t kKindBytes = 8;
  switch (fatbin::image_kind({static_cast<const uint8_t*>(image), kKindBytes})) {
    case fatbin::ImageKind::wrapper: {
      auto wrapped = fatbin::wrapped_containers(image);
      if (!wrapped) return std::nullopt;
      Bound linked = container_device_bytes(wrapped->container), parts = VariableBytes{};
      for (const void* part : wrapped->linked_from) parts = both(parts, container_device_bytes(part));
      return larger(linked, parts);
    }
    case fatbin::ImageKind::container: return container_device_bytes(image);
    case fatbin::ImageKind::elf:
    case fatbin::ImageKind::text: break;
  }
  auto whole = fatbin::span_of_trusted_image(image);
  return whole ? contents_bytes(*whole) : std::nullopt;
}

}  // namespace gpuwire::server
