// Finds the length of a program image from its address, because cuModuleLoadData and cuLibraryLoadData receive no
// length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/fatbin/fatbin.hpp"

namespace gpuwire::fatbin {

// The maximum size of an image; nvcc's images are far smaller.
inline constexpr uint64_t kImageBytesMax = uint64_t{1} << 32;

enum class ImageKind : uint8_t { wrapper, container, elf, text };

// Returns the kind of an image by its first bytes. An image that is no wrapper, container or ELF file counts as PTX
// text. Reads at most 8 bytes.
ImageKind image_kind(std::span<const uint8_t> image);

// Returns the size of a container or an ELF file, from its own header. The span limits the bytes that may be read. The
// result may exceed the span, so a prefix of a container is enough. For an ELF file, the tables that its header points
// to must be within the span.
tl::expected<uint64_t, Error> container_bytes(std::span<const uint8_t> image);
tl::expected<uint64_t, Error> elf_bytes(std::span<const uint8_t> image);

// Returns the span of a complete image in this process's memory, whose header is trusted because the program made it. A
// text ends before its zero. A wrapper has no size, because it contains pointers; see wrapped_containers.
tl::expected<std::span<const uint8_t>, Error> span_of_trusted_image(const void* image);

// The wrapper that nvcc emits beside each container: {magic, version, container, zero-terminated list of containers}.
// The list, which version 2 has, contains the containers from which the first was linked (-rdc=true). The memory is
// trusted, as above.
struct WrappedContainers {
  const void* container = nullptr;
  std::vector<const void*> linked_from;
};
tl::expected<WrappedContainers, Error> wrapped_containers(const void* wrapper);

}  // namespace gpuwire::fatbin
