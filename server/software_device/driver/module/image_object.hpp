// CUDA arrays, mipmapped arrays, texture and surface objects.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include <cuda.h>

#include "server/software_device/execution/image.hpp"

namespace gpuwire::software_device {

// Null: a format that this device does not have.
std::optional<TexelFormat> texel_format(CUarray_format format, unsigned channels);

struct ArrayObject {
  CUarray handle = nullptr;
  CUcontext context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR description{};  // as given; of a mipmap level, with that level's extents
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
  // Gone for the program, there for kernels launched before. Relaxed: it only keeps the program from finding it.
  std::atomic<bool> destroyed{false};
};

struct SurfaceObject {
  CUcontext context = nullptr;
  CUDA_RESOURCE_DESC resource{};
  std::shared_ptr<const Surface> surface;
  std::atomic<bool> destroyed{false};  // as a texture object's
};

// The shape that textures and surfaces on arrays of that description have; without levels.
Image image_shape(const CUDA_ARRAY3D_DESCRIPTOR& description, const TexelFormat& format);

// The driver's objects as kernels find them.
class DriverImages final : public ImageTable {
 public:
  std::shared_ptr<const Texture> texture(uint64_t handle) const noexcept override;
  std::shared_ptr<const Surface> surface(uint64_t handle) const noexcept override;
};

// Drops the objects of a context that ends.
void release_images(CUcontext context);

}  // namespace gpuwire::software_device
