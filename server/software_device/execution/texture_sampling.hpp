// Reading textures: CUDA C++ Programming Guide, appendix "Texture Fetching".
#pragma once

#include <cstdint>

#include "server/software_device/execution/image.hpp"

namespace gpuwire::software_device {

// Returns whether the texel's bytes may be read, for images without memory of their own.
class TexelAccess {
 public:
  virtual ~TexelAccess() = default;
  virtual bool readable(const uint8_t* texel, uint32_t bytes) = 0;
};

struct TextureCoordinates {
  float at[3] = {};
  int32_t layer = 0;
  float level = 0;
};

// The four results of an instruction: f32 bits, or integers extended to 32 bits.
struct TexelBits {
  uint32_t channel[4] = {};
};

// All of these functions return false if `access` refuses a texel.
bool sample(const Texture& texture, const TextureCoordinates& coordinates, TexelAccess& access, TexelBits& result);
// Coordinates are in texels and without a filter. Texels outside are zeros.
bool fetch(const Texture& texture, const int32_t at[3], int32_t layer, int32_t level, TexelAccess& access,
           TexelBits& result);
// Returns one channel of the four texels of a bilinear filter, counter-clockwise from the lower left.
bool gather(const Texture& texture, const TextureCoordinates& coordinates, unsigned channel, TexelAccess& access,
            TexelBits& result);
// Returns the level of detail for the derivatives of the coordinates by x and y.
float level_of(const Texture& texture, const float (&by_x)[3], const float (&by_y)[3]);

}  // namespace gpuwire::software_device
