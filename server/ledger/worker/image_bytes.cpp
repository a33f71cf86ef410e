#include "server/ledger/worker/image_bytes.hpp"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string_view>

#include "protocol/fatbin/image_size.hpp"

namespace gpuwire::server {
namespace {

uint64_t sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }
uint64_t product(uint64_t a, uint64_t b) {
  uint64_t bytes = 0;
  return __builtin_mul_overflow(a, b, &bytes) ? UINT64_MAX : bytes;
}

// --- PTX -----------------------------------------------------------------------------------------------------------

constexpr std::string_view kWhite = " \t\r\n\f\v";

// "[3][4]" -> 12; a dimension that cannot be read (only the first may be missing, of what is declared elsewhere) counts
// as 1.
uint64_t dimensions(std::string_view text) {
  uint64_t items = 1;
  while (!text.empty() && text.front() == '[') {
    size_t end = text.find(']');
    if (end == std::string_view::npos) break;
    std::string_view digits = text.substr(1, end - 1);
    digits.remove_prefix(std::min(digits.find_first_not_of(kWhite), digits.size()));
    int base = digits.starts_with("0x") || digits.starts_with("0X") ? 16 : 10;
    if (base == 16) digits.remove_prefix(2);
    uint64_t count = 1;
    auto read = std::from_chars(digits.data(), digits.data() + digits.size(), count, base);
    if (read.ec == std::errc::result_out_of_range) count = UINT64_MAX;
    items = product(items, std::max<uint64_t>(count, 1));
    text.remove_prefix(end + 1);
    text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
  }
  return items;
}

// ".b8" -> 1, ".v4" -> 4 elements; types that are not known count as 16 bytes.
struct Element {
  uint64_t bytes = 16;
  uint64_t vector = 1;
};

void read_type(std::string_view word, Element& element) {
  if (word == ".v2" || word == ".v4" || word == ".v8") {
    element.vector = uint64_t(word[2] - '0');
    return;
  }
  size_t digits = word.find_first_of("0123456789");
  if (digits == std::string_view::npos) return;
  unsigned bits = 0;
  std::from_chars(word.data() + digits, word.data() + word.size(), bits);
  if (bits >= 8 && bits <= 128) element.bytes = bits / 8;
}

// What follows ".global" or ".const" up to the end of the statement: qualifiers, types, then names with dimensions,
// separated by commas.
uint64_t variables(std::string_view text) {
  Element element;
  uint64_t bytes = 0;
  while (!text.empty()) {
    text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
    if (text.empty()) break;
    size_t end = std::min(text.find_first_of(" \t\r\n\f\v[,={"), text.size());
    std::string_view word = text.substr(0, std::max<size_t>(end, 1));
    text.remove_prefix(word.size());
    if (word == ".align" || word == ".attribute") {
      text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
      text.remove_prefix(std::min(text.find_first_of(kWhite), text.size()));
    } else if (word.front() == '.') {
      read_type(word, element);
    } else if (word.front() == '=') {
      return bytes;  // an initialiser, which ends the statement
    } else if (word.front() != ',') {
      text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
      bytes = sum(bytes, product(product(element.bytes, element.vector), dimensions(text)));
      text.remove_prefix(std::min(text.find_first_of(",="), text.size()));
    }
  }
  return bytes;
}

}  // namespace

uint64_t ptx_device_bytes(std::span<const uint8_t> bytes) {
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  uint64_t taken = text.size();
  for (std::string_view space : {".global", ".const"}) {
    for (size_t at = text.find(space); at != std::string_view::npos; at = text.find(space, at + space.size())) {
      size_t behind = at + space.size();
      bool declaration = behind < text.size() && kWhite.find(text[behind]) != std::string_view::npos;
      // Instructions have it in their middle (ld.global.u32); a declaration begins a word.
      declaration = declaration && (at == 0 || kWhite.find(text[at - 1]) != std::string_view::npos ||
                                    text[at - 1] == ';' || text[at - 1] == '}');
      if (declaration) taken = sum(taken, variables(text.substr(behind, text.find(';', behind) - behind)));
    }
  }
  return taken;
}

uint64_t cubin_device_bytes(std::span<const uint8_t> cubin) {
  Elf64_Ehdr header;
  if (cubin.size() < sizeof header) return cubin.size();
  std::memcpy(&header, cubin.data(), sizeof header);
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > cubin.size() ||
      (cubin.size() - header.e_shoff) / sizeof(Elf64_Shdr) < header.e_shnum)
    return cubin.size();
  uint64_t bytes = 0;
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, cubin.data() + header.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_flags & SHF_ALLOC) bytes = sum(bytes, section.sh_size);
  }
  return bytes;
}

namespace {

uint64_t entry_device_bytes(const fatbin::Entry& entry) {
  auto contents = fatbin::decompress(entry);
  if (!contents) return std::max<uint64_t>(entry.decompressed_bytes, entry.payload.size());
  return entry.kind == fatbin::Kind::ptx ? ptx_device_bytes(*contents) : cubin_device_bytes(*contents);
}

uint64_t container_device_bytes(const void* container, fatbin::ComputeCapability device) {
  auto whole = fatbin::span_of_trusted_image(container);
  if (!whole) return 0;
  auto entries = fatbin::read_container(*whole);
  const fatbin::Entry* taken = entries ? fatbin::select_entry(*entries, device) : nullptr;
  return taken ? entry_device_bytes(*taken) : whole->size();
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

uint64_t image_device_bytes(const void* image, fatbin::ComputeCapability device) {
  constexpr size_t kKindBytes = 8;
  switch (fatbin::image_kind({static_cast<const uint8_t*>(image), kKindBytes})) {
    case fatbin::ImageKind::wrapper: {
      auto wrapped = fatbin::wrapped_containers(image);
      if (!wrapped) return 0;
      uint64_t linked = container_device_bytes(wrapped->container, device), parts = 0;
      for (const void* part : wrapped->linked_from) parts = sum(parts, container_device_bytes(part, device));
      return std::max(linked, parts);
    }
    case fatbin::ImageKind::container: return container_device_bytes(image, device);
    case fatbin::ImageKind::elf:
    case fatbin::ImageKind::text: break;
  }
  auto whole = fatbin::span_of_trusted_image(image);
  if (!whole) return 0;
  return fatbin::image_kind(whole->first(std::min(whole->size(), kKindBytes))) == fatbin::ImageKind::elf
             ? cubin_device_bytes(*whole)
             : ptx_device_bytes(*whole);
}

}  // namespace gpuwire::server
