// CUDA arrays, mipmapped arrays, texture and surface objects.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include <cuda.h>

#include "server/software_device/execution/image.hpp"

namespace gpuwire::software_device {

// Returns nothing for a format that this device does not support.
std::optional<TexelFormat> texel_format(CUarray_format format, unsigned channels);

struct ArrayObject {
  CUarray handle = nullptr;
  CUcontext context = nullptr;
  // As the program gave it. For a mipmap level, with that level's extents.
  CUDA_ARRAY3D_DESCRIPTOR description{};
  TexelFormat format;
  ImageLevel level;
  std::shared_ptr<void> memory;
};

struct MipmappedArrayObject {
  CUmipmappedArray handle = nullptr;
  CUcontext context = nullptr;
  std::vector<std::shared_ptr<ArrayObject>> levels;
};

struct TextureObject {
  CUcontext context = nullptr;
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC description{};
  std::optional<CUDA_RESOURCE_VIEW_DESC> view;
  std::shared_ptr<const Texture> texture;
  // True after the program has destroyed the object; kernels launched before still use it. Relaxed: the flag only
  // prevents the program from finding it.
  std::atomic<bool> destroyed{false};
};

struct SurfaceObject {
  CUcontext context = nullptr;
  CUDA_RESOURCE_DESC resource{};
  std::shared_ptr<const Surface> surface;
  std::atomic<bool> destroyed{false};  // like a texture object's
};

// Returns the shape of textures and surfaces on arrays of that description, without levels.
Image image_shape(const CUDA_ARRAY3D_DESCRIPTOR& description, const TexelFormat& format);

// The driver's objects, as kernels look them up.
class DriverImages final : public ImageTable {
 public:
  std::shared_ptr<const Texture> texture(uint64_t handle) const noexcept override;
  std::shared_ptr<const Surface> surface(uint64_t handle) const noexcept override;
};

// Releases the objects of a context that ends.
void release_images(CUcontext context);

}  // namespace gpuwire::software_device
