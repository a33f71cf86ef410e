// How long a program image is, when all one has is its address: cuModuleLoadData and cuLibraryLoadData are given no
// length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/fatbin/fatbin.hpp"

namespace gpuwire::fatbin {

// No image is larger; nvcc's are well below.
inline constexpr uint64_t kImageBytesMax = uint64_t{1} << 32;

enum class ImageKind : uint8_t { wrapper, container, elf, text };

// By the first bytes: an image that is no wrapper, container or ELF file is taken for PTX text. Reads at most 8 bytes.
ImageKind image_kind(std::span<const uint8_t> image);

// Total size of a container or ELF file, from its own header. The span limits the bytes that may be read; the result
// may lie beyond it, so that a prefix is enough for a container. For an ELF file the tables it points to must be within
// the span.
tl::expected<uint64_t, Error> container_bytes(std::span<const uint8_t> image);
tl::expected<uint64_t, Error> elf_bytes(std::span<const uint8_t> image);

// A span over all of an image in this process's own memory, whose header is trusted: the program made it. Text ends
// before its zero. The wrapper has no size (it holds pointers): see wrapped_containers.
tl::expected<std::span<const uint8_t>, Error> span_of_trusted_image(const void* image);

// The wrapper that nvcc emits beside each container: {magic, version, container, zero-terminated list of containers}.
// The list, which version 2 has, names the containers from which the first was linked (-rdc=true). Trusted memory, as
// above.
struct WrappedContainers {
  const void* container = nullptr;
  std::vector<const void*> linked_from;
};
tl::expected<WrappedContainers, Error> wrapped_containers(const void* wrapper);

}  // namespace gpuwire::fatbin
