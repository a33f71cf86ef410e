// A program image (fat binary, cubin or PTX) for the server: recognised, reduced to the parts that the server's devices
// can run, digested.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/fatbin/fatbin.hpp"
#include "protocol/fatbin/image_size.hpp"
#include "protocol/fatbin/kernel_parameters.hpp"

namespace gpuwire::client {

// The devices for which an image is chosen.
struct ImageTarget {
  // Not empty.
  std::vector<fatbin::ComputeCapability> devices;
  // The software device runs no cubins.
  bool ptx_only = false;
};

struct ImageError {
  CUresult result = CUDA_ERROR_INVALID_IMAGE;
  std::string message;
};

// The bytes that are sent, in at most two pieces, so that a large image need not be copied. Immutable; any thread.
class ProgramImage {
 public:
  // SHA-256.
  using Digest = std::array<uint8_t, 32>;

  uint64_t bytes() const noexcept { return head_.size() + body_.size(); }
  const Digest& digest() const noexcept { return digest_; }
  // Reads the parameters of the image's kernels. Decompresses and reads all of it.
  fatbin::KernelParameterTable kernel_parameters() const;
  // Fills `out` with the bytes from `offset` on; offset + out.size() <= bytes().
  void read(uint64_t offset, std::span<std::byte> out) const noexcept;

  // `image` is the program's argument of cuModuleLoadData or cuLibraryLoadData, trusted as natively. With `keep` the
  // bytes are copied; without, they must live as long as the object. PTX text includes its terminating zero.
  static tl::expected<std::shared_ptr<const ProgramImage>, ImageError> select(const void* image,
                                                                              const ImageTarget& target, bool keep);
  // As above, for a file's contents, which need not be well-formed.
  static tl::expected<std::shared_ptr<const ProgramImage>, ImageError> select_from_file(std::vector<uint8_t> contents,
                                                                                        const ImageTarget& target);
  // Bytes of any kind, unchanged; they must live as long as the object.
  static std::shared_ptr<const ProgramImage> whole(std::span<const uint8_t> bytes);

 private:
  static tl::expected<std::shared_ptr<const ProgramImage>, ImageError> linked(const fatbin::WrappedContainers& wrapped,
                                                                              ImageError without);
  void finish(std::span<const uint8_t> body, bool keep);
  tl::expected<void, ImageError> choose(std::span<const uint8_t> container, const ImageTarget& target, bool keep);

  // The header of a fat binary of one entry, or nothing.
  std::vector<uint8_t> head_;
  std::span<const uint8_t> body_;
  // Behind body_, when copied.
  std::vector<uint8_t> owned_;
  Digest digest_{};
};

// Returns whether an address may be an image, from its first bytes alone.
bool looks_like_image(const void* image) noexcept;

}  // namespace gpuwire::client
