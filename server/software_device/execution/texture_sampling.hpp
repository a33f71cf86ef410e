// Reading textures: CUDA C++ Programming Guide, appendix "Texture Fetching".
#pragma once

#include <cstdint>

#include "server/software_device/execution/image.hpp"

namespace gpuwire::software_device {

// Says whether the texel's bytes may be read, where the image has no memory of its own.
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

// The type of an instruction's four results: f32 bits, or integers extended to 32 bits.
struct TexelBits {
  uint32_t channel[4] = {};
};

// All return false when `access` refused a texel.
bool sample(const Texture& texture, const TextureCoordinates& coordinates, TexelAccess& access, TexelBits& result);
// Coordinates count texels and are not filtered; outside there are zeros.
bool fetch(const Texture& texture, const int32_t at[3], int32_t layer, int32_t level, TexelAccess& access,
           TexelBits& result);
// One channel of the four texels that a bilinear filter would take, counter-clockwise from the lower left.
bool gather(const Texture& texture, const TextureCoordinates& coordinates, unsigned channel, TexelAccess& access,
            TexelBits& result);
// The level of detail for derivatives by x and y of the coordinates.
float level_of(const Texture& texture, const float (&by_x)[3], const float (&by_y)[3]);

}  // namespace gpuwire::software_device
