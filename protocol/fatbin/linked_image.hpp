// A program of several translation units (-rdc=true) on its way to the server, when its linked code is for other
// devices.
//
// In memory such a program is a wrapper: pointers to the linked container and to the containers it was linked from,
// from which the driver links anew for the device at hand. Pointers do not travel; this image holds the same containers
// one behind the other, and the server puts a wrapper of its own around them.
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
// No program that nvcc built comes near.
inline constexpr size_t kLinkedImageContainersMax = 4096;

// The image of a linked container and of those it was linked from, in the order in which the wrapper names them. Each
// span is one whole container. At most kLinkedImageContainersMax of them.
tl::expected<std::vector<uint8_t>, Error> write_linked_image(std::span<const std::span<const uint8_t>> containers);

// Whether the bytes say that they are such an image; they may still be damaged.
bool is_linked_image(std::span<const uint8_t> image);

// The containers in an image that nobody vouches for: each lies within `image` and is as long as its own header says.
tl::expected<std::vector<std::span<const uint8_t>>, Error> read_linked_image(std::span<const uint8_t> image);

// The image in the form that a driver gets: a wrapper around containers that lie in memory already, and that must
// outlive it.
class LinkedWrapper {
 public:
  // The first container is the linked one. Must not be empty.
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
  std::vector<const void*> linked_from_;  // ends with a null
};

}  // namespace gpuwire::fatbin
