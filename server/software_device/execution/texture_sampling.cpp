#include "server/software_device/execution/texture_sampling.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "server/software_device/execution/float_formats.hpp"

namespace gpuwire::software_device {
namespace {

constexpr double kCoordinateMax = 1 << 30;  // larger coordinates are equally far outside
constexpr double kFractionSteps = 256;      // filter weights have 8 fractional bits

// The two texels between which a coordinate is. Without a filter, both are the same texel.
struct Axis {
  int64_t index[2] = {0, 0};
  bool inside[2] = {true, true};
  double weight = 0;  // of the second texel
};

double tamed(float coordinate) {
  return std::isnan(coordinate) ? 0 : std::clamp<double>(coordinate, -kCoordinateMax, kCoordinateMax);
}

// Returns the coordinate in texels, after wrapping or mirroring.
double in_texels(float coordinate, uint32_t extent, AddressMode mode, bool normalized) {
  double x = tamed(coordinate);
  if (!normalized) return x;
  if (mode == AddressMode::wrap || mode == AddressMode::mirror) {
    double whole = std::floor(x);
    x -= whole;
    if (mode == AddressMode::mirror && std::fmod(whole, 2) != 0) x = 1 - x;
  }
  return x * extent;
}

void settle(Axis& axis, unsigned which, uint32_t extent, AddressMode mode) {
  int64_t& index = axis.index[which];
  if (index >= 0 && index < extent) return;
  if (mode == AddressMode::border) {
    axis.inside[which] = false;
  } else if (mode == AddressMode::wrap) {
    index = (index % extent + extent) % extent;
  } else {
    index = std::clamp<int64_t>(index, 0, int64_t{extent} - 1);
  }
}

Axis find_texels(float coordinate, uint32_t extent, AddressMode mode, bool normalized, bool filtered) {
  // "The addressing modes wrap and mirror are only supported for normalized texture coordinates"; otherwise they clamp.
  if (!normalized && mode != AddressMode::border) mode = AddressMode::clamp;
  double x = in_texels(coordinate, extent, mode, normalized);
  Axis axis;
  if (filtered) {
    double steps = std::floor((x - 0.5) * kFractionSteps + 0.5);
    double whole = std::floor(steps / kFractionSteps);
    axis.index[0] = static_cast<int64_t>(whole);
    axis.index[1] = axis.index[0] + 1;
    axis.weight = (steps - whole * kFractionSteps) / kFractionSteps;
  } else {
    axis.index[0] = axis.index[1] = static_cast<int64_t>(std::floor(x));
    // Just below the end, x * extent may have been rounded up to the extent.
    if (mode == AddressMode::wrap || mode == AddressMode::mirror)
      axis.index[0] = axis.index[1] = std::min<int64_t>(axis.index[0], int64_t{extent} - 1);
  }
  settle(axis, 0, extent, mode);
  settle(axis, 1, extent, mode);
  return axis;
}

uint32_t raw_channel(const TexelFormat& format, const uint8_t* texel, unsigned channel) {
  uint32_t bits = 0;
  std::memcpy(&bits, texel + size_t{channel} * format.channel_bytes, format.channel_bytes);
  return bits;
}

uint32_t as_integer(const TexelFormat& format, uint32_t bits) {
  if (format.kind != ChannelKind::signed_integer || format.channel_bytes == 4) return bits;
  return format.channel_bytes == 1 ? static_cast<uint32_t>(static_cast<int8_t>(bits))
                                   : static_cast<uint32_t>(static_cast<int16_t>(bits));
}

float linear_of_srgb(float value) {
  return value <= 0.04045f ? value / 12.92f : std::pow((value + 0.055f) / 1.055f, 2.4f);
}

float as_float(const Texture& texture, uint32_t bits, unsigned channel) {
  const TexelFormat& format = texture.image.format;
  if (format.kind == ChannelKind::floating)
    return format.channel_bytes == 2 ? half_to_float(static_cast<uint16_t>(bits)) : std::bit_cast<float>(bits);
  const float largest = static_cast<float>(
      (uint64_t{1} << (8 * format.channel_bytes - (format.kind == ChannelKind::signed_integer ? 1 : 0))) - 1);
  if (format.kind == ChannelKind::signed_integer)
    return std::max(static_cast<float>(static_cast<int32_t>(as_integer(format, bits))) / largest, -1.0f);
  const float value = static_cast<float>(bits) / largest;
  return texture.srgb && channel < 3 ? linear_of_srgb(value) : value;
}

const uint8_t* texel_at(const ImageLevel& level, const TexelFormat& format, int64_t x, int64_t y, int64_t z) {
  return level.base + static_cast<uint64_t>(z) * level.slice_bytes + static_cast<uint64_t>(y) * level.row_bytes +
         static_cast<uint64_t>(x) * format.bytes();
}

// The slices of a layer: a volume's slices, otherwise the layer's only slice.
struct Place {
  const ImageLevel* level = nullptr;
  int64_t first_slice = 0;
};

bool read_bits(const Texture& texture, const Place& place, int64_t x, int64_t y, int64_t z, TexelAccess& access,
               TexelBits& result) {
  const TexelFormat& format = texture.image.format;
  const uint8_t* texel = texel_at(*place.level, format, x, y, place.first_slice + z);
  if (texture.image.backing == nullptr && !access.readable(texel, format.bytes())) return false;
  for (unsigned c = 0; c < 4; ++c) {
    if (c < format.channels) {
      uint32_t bits = raw_channel(format, texel, c);
      result.channel[c] =
          texture.integer_results ? as_integer(format, bits) : std::bit_cast<uint32_t>(as_float(texture, bits, c));
    } else {
      result.channel[c] = 0;
    }
  }
  return true;
}

TexelBits border_bits(const Texture& texture) {
  TexelBits bits;
  for (unsigned c = 0; c < 4; ++c)
    bits.channel[c] = texture.integer_results ? 0 : std::bit_cast<uint32_t>(texture.border[c]);
  return bits;
}

// Returns the face that a direction meets, and the position on it (guide, "Cubemap Textures").
void find_face(const float (&direction)[3], int32_t& face, float (&at)[3]) {
  const float x = direction[0], y = direction[1], z = direction[2];
  const float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
  float s, t, m;
  if (ax >= ay && ax >= az) {
    face = x >= 0 ? 0 : 1;
    m = ax, s = x >= 0 ? -z : z, t = -y;
  } else if (ay >= az) {
    face = y >= 0 ? 2 : 3;
    m = ay, s = x, t = y >= 0 ? z : -z;
  } else {
    face = z >= 0 ? 4 : 5;
    m = az, s = z >= 0 ? x : -x, t = -y;
  }
  at[0] = (s / m + 1) / 2;
  at[1] = (t / m + 1) / 2;
  at[2] = 0;
}

// A negative layer counts as a large one, because the device's numbers are unsigned.
uint32_t clamped_layer(int32_t layer, uint32_t layers) { return std::min(static_cast<uint32_t>(layer), layers - 1); }

struct Located {
  Axis axis[3];
  Place place;
};

Located locate(const Texture& texture, const TextureCoordinates& c, uint32_t level, bool filtered) {
  const Image& image = texture.image;
  Located found;
  found.place.level = &image.levels[level];
  float at[3] = {c.at[0], c.at[1], c.at[2]};
  int32_t face = 0;
  if (image.cube) find_face(c.at, face, at);
  if (image.layered || image.cube) {
    const uint32_t faces = image.cube ? 6 : 1;
    found.place.first_slice =
        int64_t{clamped_layer(image.layered ? c.layer : 0, found.place.level->depth / faces)} * faces + face;
  }
  const uint32_t extent[3] = {found.place.level->width, found.place.level->height, found.place.level->depth};
  for (unsigned d = 0; d < image.dimensions; ++d) {
    const AddressMode mode = image.cube ? AddressMode::clamp : texture.address[d];
    found.axis[d] = find_texels(at[d], extent[d], mode, texture.normalized_coordinates, filtered);
  }
  return found;
}

bool sample_level(const Texture& texture, const TextureCoordinates& c, uint32_t level, TexelAccess& access,
                  TexelBits& result) {
  const Located found = locate(texture, c, level, texture.linear_filter);
  const unsigned corners = texture.linear_filter ? 1u << texture.image.dimensions : 1;
  double sum[4] = {};
  for (unsigned corner = 0; corner < corners; ++corner) {
    int64_t index[3];
    bool inside = true;
    double weight = 1;
    for (unsigned d = 0; d < 3; ++d) {
      const unsigned side = corner >> d & 1;
      index[d] = found.axis[d].index[side];
      inside &= found.axis[d].inside[side];
      weight *= side != 0 ? found.axis[d].weight : 1 - (corners > 1 ? found.axis[d].weight : 0);
    }
    if (weight == 0) continue;
    TexelBits bits = border_bits(texture);
    if (inside && !read_bits(texture, found.place, index[0], index[1], index[2], access, bits)) return false;
    if (corners == 1) {
      result = bits;
      return true;
    }
    for (unsigned k = 0; k < 4; ++k) sum[k] += weight * static_cast<double>(std::bit_cast<float>(bits.channel[k]));
  }
  for (unsigned k = 0; k < 4; ++k) result.channel[k] = std::bit_cast<uint32_t>(static_cast<float>(sum[k]));
  return true;
}

}  // namespace

bool sample(const Texture& texture, const TextureCoordinates& c, TexelAccess& access, TexelBits& result) {
  const auto last = static_cast<float>(texture.image.levels.size() - 1);
  if (last == 0) return sample_level(texture, c, 0, access, result);
  const float asked = std::isnan(c.level) ? 0 : c.level;
  const float level =
      std::clamp(std::min(std::max(asked + texture.level_bias, texture.level_min), texture.level_max), 0.0f, last);
  if (!texture.linear_mipmap_filter)
    return sample_level(texture, c, static_cast<uint32_t>(std::floor(level + 0.5f)), access, result);
  const double steps = std::floor(static_cast<double>(level) * kFractionSteps + 0.5);
  const auto first = static_cast<uint32_t>(steps / kFractionSteps);
  const double weight = steps / kFractionSteps - first;
  TexelBits second;
  if (!sample_level(texture, c, first, access, result)) return false;
  if (weight == 0) return true;
  if (!sample_level(texture, c, first + 1, access, second)) return false;
  for (unsigned k = 0; k < 4; ++k) {
    const double a = static_cast<double>(std::bit_cast<float>(result.channel[k])),
                 b = static_cast<double>(std::bit_cast<float>(second.channel[k]));
    result.channel[k] = std::bit_cast<uint32_t>(static_cast<float>((1 - weight) * a + weight * b));
  }
  return true;
}

bool fetch(const Texture& texture, const int32_t at[3], int32_t layer, int32_t level, TexelAccess& access,
           TexelBits& result) {
  const Image& image = texture.image;
  result = {};
  if (level < 0 || static_cast<size_t>(level) >= image.levels.size()) return true;
  Place place{&image.levels[static_cast<size_t>(level)]};
  const uint32_t extent[3] = {place.level->width, place.level->height, place.level->depth};
  int64_t index[3] = {};
  for (unsigned d = 0; d < image.dimensions; ++d) {
    if (at[d] < 0 || static_cast<uint32_t>(at[d]) >= extent[d]) return true;
    index[d] = at[d];
  }
  if (image.layered) place.first_slice = clamped_layer(layer, place.level->depth);
  return read_bits(texture, place, index[0], index[1], index[2], access, result);
}

bool gather(const Texture& texture, const TextureCoordinates& c, unsigned channel, TexelAccess& access,
            TexelBits& result) {
  const Located found = locate(texture, c, 0, true);
  constexpr unsigned kOrder[4][2] = {{0, 1}, {1, 1}, {1, 0}, {0, 0}};
  for (unsigned k = 0; k < 4; ++k) {
    const auto [i, j] = kOrder[k];
    TexelBits bits = border_bits(texture);
    const bool inside = found.axis[0].inside[i] && found.axis[1].inside[j];
    if (inside && !read_bits(texture, found.place, found.axis[0].index[i], found.axis[1].index[j], 0, access, bits))
      return false;
    result.channel[k] = bits.channel[channel];
  }
  return true;
}

float level_of(const Texture& texture, const float (&by_x)[3], const float (&by_y)[3]) {
  const ImageLevel& level = texture.image.levels[0];
  const float extent[3] = {static_cast<float>(level.width), static_cast<float>(level.height),
                           static_cast<float>(level.depth)};
  float x = 0, y = 0;
  for (unsigned d = 0; d < texture.image.dimensions; ++d) {
    const float scale = texture.normalized_coordinates ? extent[d] : 1;
    x += by_x[d] * scale * by_x[d] * scale;
    y += by_y[d] * scale * by_y[d] * scale;
  }
  const float longest = std::max(x, y);
  return longest > 0 ? 0.5f * std::log2(longest) : -1000.0f;
}

}  // namespace gpuwire::software_device
