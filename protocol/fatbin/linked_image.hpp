// The format in which a program of several translation units (-rdc=true) travels to the server if its linked code is
// for other devices.
//
// In memory such a program is a wrapper: pointers to the linked container and to the containers from which it was
// linked, from which the driver links again for the present device. Pointers cannot travel, so this image contains the
// same containers one behind the other, and the server creates a new wrapper around them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/fatbin/fatbin.hpp"

namespace gpuwire::fatbin {

inline constexpr uint32_t kLinkedImageMagic = 0x494C5747;  // "GWLI"
// Far more than any program that nvcc builds has.
inline constexpr size_t kLinkedImageContainersMax = 4096;

// Returns the image of a linked container and of the containers from which it was linked, in the order of the wrapper.
// Each span is one complete container. There are at most kLinkedImageContainersMax.
tl::expected<std::vector<uint8_t>, Error> write_linked_image(std::span<const std::span<const uint8_t>> containers);

// Returns whether the bytes begin with the magic number of such an image; they may still be damaged.
bool is_linked_image(std::span<const uint8_t> image);

// Returns the containers of an untrusted image. Each is within `image` and has the length in its own header.
tl::expected<std::vector<std::span<const uint8_t>>, Error> read_linked_image(std::span<const uint8_t> image);

// An image in the form that a driver accepts: a wrapper around containers in memory, which outlive the wrapper.
class LinkedWrapper {
 public:
  // The first container is the linked one. Precondition: `containers` is not empty.
  explicit LinkedWrapper(std::span<const std::span<const uint8_t>> containers);
  LinkedWrapper(const LinkedWrapper&) = delete;
  LinkedWrapper& operator=(const LinkedWrapper&) = delete;

  const void* image() const { return &header_; }

 private:
  struct {
    uint32_t magic = kWrapperMagic;
    uint32_t version = 2;
    const void* container = nullptr;
    const void* const* linked_from = nullptr;
  } header_;
  // Ends with a null.
  std::vector<const void*> linked_from_;
};

}  // namespace gpuwire::fatbin
