// Textures and surfaces as instructions see them: levels of texels in memory, and how coordinates select and blend
// texels.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace gpuwire::software_device {

enum class ChannelKind : uint8_t { unsigned_integer, signed_integer, floating };

struct TexelFormat {
  ChannelKind kind = ChannelKind::floating;
  uint8_t channel_bytes = 4;  // 1, 2 or 4; floating: 2 or 4
  uint8_t channels = 1;       // 1, 2 or 4

  uint32_t bytes() const { return uint32_t{channel_bytes} * channels; }
  bool operator==(const TexelFormat&) const = default;
};

// One mipmap level. `depth` is the number of slices of a volume, or of layers (six per cubemap).
struct ImageLevel {
  uint8_t* base = nullptr;
  uint32_t width = 1, height = 1, depth = 1;
  uint64_t row_bytes = 0, slice_bytes = 0;
};

struct Image {
  TexelFormat format;
  uint8_t dimensions = 1;  // of one layer
  bool layered = false;
  bool cube = false;
  std::vector<ImageLevel> levels;
  // Keeps an array's memory alive. Null: the image is in device memory at its address, and each access is checked.
  std::shared_ptr<const void> backing;
};

enum class AddressMode : uint8_t { wrap, clamp, mirror, border };

struct Texture {
  Image image;
  AddressMode address[3] = {AddressMode::clamp, AddressMode::clamp, AddressMode::clamp};
  bool linear_filter = false;
  bool linear_mipmap_filter = false;
  bool normalized_coordinates = false;
  // If false, the results are f32, from a floating format or from integers scaled to [0, 1] or [-1, 1].
  bool integer_results = false;
  bool srgb = false;
  float level_bias = 0, level_min = 0, level_max = 0;
  float border[4] = {};
};

struct Surface {
  Image image;  // one level
};

// Finds objects by the handles of kernels. Many executor threads call it at once. Returns null for an unknown handle.
class ImageTable {
 public:
  virtual ~ImageTable() = default;
  virtual std::shared_ptr<const Texture> texture(uint64_t handle) const noexcept = 0;
  virtual std::shared_ptr<const Surface> surface(uint64_t handle) const noexcept = 0;
};

}  // namespace gpuwire::software_device
