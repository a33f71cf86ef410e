#include "protocol/fatbin/image_size.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace gpuwire::fatbin {
namespace {

struct Wrapper {
  uint32_t magic;
  uint32_t version;
  const void* container;
  const void* const* linked_from;
};

constexpr uint32_t kWrapperVersionLinked = 2;
constexpr size_t kLinkedContainersMax = 65536;

// Returns whether [offset, offset + count * size) is within the span.
bool holds(std::span<const uint8_t> image, uint64_t offset, uint64_t count, uint64_t size) {
  return offset <= image.size() && (size == 0 || count <= (image.size() - offset) / size);
}

}  // namespace

ImageKind image_kind(std::span<const uint8_t> image) {
  uint32_t magic = 0;
  if (image.size() < sizeof magic) {
    return ImageKind::text;
  }
  std::memcpy(&magic, image.data(), sizeof magic);
  if (magic == kWrapperMagic) {
    return ImageKind::wrapper;
  }
  if (magic == kContainerMagic) {
    return ImageKind::container;
  }
  return std::memcmp(image.data(), ELFMAG, SELFMAG) == 0 ? ImageKind::elf : ImageKind::text;
}

tl::expected<uint64_t, Error> container_bytes(std::span<const uint8_t> image) {
  uint32_t magic = 0;
  uint16_t header_bytes = 0;
  uint64_t payload_bytes = 0;
  if (image.size() < kContainerHeaderBytes) {
    return fail("fat binary: shorter than its header");
  }
  std::memcpy(&magic, image.data(), sizeof magic);
  std::memcpy(&header_bytes, image.data() + 6, sizeof header_bytes);
  std::memcpy(&payload_bytes, image.data() + 8, sizeof payload_bytes);
  if (magic != kContainerMagic || header_bytes < kContainerHeaderBytes) {
    return fail("fat binary: not a container");
  }
  if (payload_bytes > kImageBytesMax - header_bytes) {
    return fail("fat binary: larger than any image may be");
  }
  return header_bytes + payload_bytes;
}

tl::expected<uint64_t, Error> elf_bytes(std::span<const uint8_t> image) {
  Elf64_Ehdr header;
  if (image.size() < sizeof header) {
    return fail("ELF image: shorter than its header");
  }
  std::memcpy(&header, image.data(), sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return fail("ELF image: not a little-endian 64-bit file");
  }
  if ((header.e_shnum != 0 && header.e_shentsize != sizeof(Elf64_Shdr)) ||
      (header.e_phnum != 0 && header.e_phentsize != sizeof(Elf64_Phdr)) ||
      !holds(image, header.e_shoff, header.e_shnum, sizeof(Elf64_Shdr)) ||
      !holds(image, header.e_phoff, header.e_phnum, sizeof(Elf64_Phdr))) {
    return fail("ELF image: its header tables lie outside");
  }
  uint64_t end = std::max<uint64_t>({sizeof header, header.e_shoff + header.e_shnum * sizeof(Elf64_Shdr),
                                     header.e_phoff + header.e_phnum * sizeof(Elf64_Phdr)});
  for (uint32_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section;
    std::memcpy(&section, image.data() + header.e_shoff + i * sizeof section, sizeof section);
    if (section.sh_type == SHT_NOBITS) {
      continue;
    }
    if (section.sh_offset > kImageBytesMax || section.sh_size > kImageBytesMax - section.sh_offset) {
      return fail("ELF image: a section is larger than any image may be");
    }
    end = std::max<uint64_t>(end, section.sh_offset + section.sh_size);
  }
  return end;
}

tl::expected<std::span<const uint8_t>, Error> span_of_trusted_image(const void* image) {
  const auto* const start = static_cast<const uint8_t*>(image);
  // A text ends at its first zero. The magic numbers have no zero in their first byte, and each other kind has at least
  // 8 bytes.
  const size_t readable = strnlen(static_cast<const char*>(image), 4);
  const ImageKind kind = image_kind({start, readable});
  const std::span<const uint8_t> unlimited{start, kImageBytesMax};
  switch (kind) {
    case ImageKind::wrapper: return fail("a fat binary's wrapper has no size of its own");
    case ImageKind::text: return std::span<const uint8_t>{start, std::strlen(static_cast<const char*>(image))};
    case ImageKind::container:
      return container_bytes(unlimited).map([&](uint64_t bytes) { return unlimited.first(bytes); });
    case ImageKind::elf: return elf_bytes(unlimited).map([&](uint64_t bytes) { return unlimited.first(bytes); });
  }
  return fail("unknown image");
}

tl::expected<WrappedContainers, Error> wrapped_containers(const void* wrapper) {
  Wrapper header;
  std::memcpy(&header, wrapper, sizeof header);
  if (header.magic != kWrapperMagic || header.container == nullptr) {
    return fail("not the wrapper of a fat binary");
  }
  WrappedContainers out{.container = header.container};
  if (header.version >= kWrapperVersionLinked && header.linked_from != nullptr) {
    for (const void* const* next = header.linked_from; *next != nullptr; ++next) {
      if (out.linked_from.size() == kLinkedContainersMax) {
        return fail("a fat binary's list of linked containers does not end");
      }
      out.linked_from.push_back(*next);
    }
  }
  return out;
}

}  // namespace gpuwire::fatbin
