// Texture and surface objects.
#include <algorithm>
#include <array>

#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/call/refusal.hpp"

namespace gpuwire::software_device {
namespace {

constexpr uint64_t kAddressAlignment = 512;  // the device attribute has the same value
constexpr uint64_t kPitchAlignment = 32;
constexpr size_t kLinearTexelsMax = 134217728;
constexpr size_t kPitchedWidthMax = 131072;
constexpr size_t kPitchedHeightMax = 65000;
constexpr unsigned kKnownTextureFlags = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
                                        CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP;

using ImageOrError = tl::expected<Image, CUresult>;

Image image_of(const ArrayObject& array) {
  Image image = image_shape(array.description, array.format);
  image.levels.push_back(array.level);
  image.backing = array.memory;
  return image;
}

ImageOrError image_of(const MipmappedArrayObject& mipmap) {
  Image image = image_shape(mipmap.levels.front()->description, mipmap.levels.front()->format);
  auto memories = std::make_shared<std::vector<std::shared_ptr<void>>>();
  for (const auto& level : mipmap.levels) {
    image.levels.push_back(level->level);
    memories->push_back(level->memory);
  }
  image.backing = std::move(memories);
  return image;
}

ImageOrError linear_image(CUdeviceptr address, CUarray_format format, unsigned channels, size_t width, size_t height,
                          size_t pitch) {
  const auto texel = texel_format(format, channels);
  if (!texel) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  const bool plane = height != 0;
  const size_t row = plane ? pitch : width * texel->bytes();
  if (address == 0 || address % kAddressAlignment != 0 || width == 0 ||
      width > (plane ? kPitchedWidthMax : kLinearTexelsMax) || height > kPitchedHeightMax ||
      (plane && (pitch % kPitchAlignment != 0 || pitch < width * texel->bytes()))) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  // NVIDIA's driver accepts sizes beyond the allocation, too. A kernel's read there is a fault.
  Image image{.format = *texel, .dimensions = static_cast<uint8_t>(plane ? 2 : 1)};
  image.levels.push_back({.base = reinterpret_cast<uint8_t*>(address),
                          .width = static_cast<uint32_t>(width),
                          .height = static_cast<uint32_t>(std::max<size_t>(height, 1)),
                          .row_bytes = row,
                          .slice_bytes = row});
  return image;
}

// Returns the error for a handle in a structure that is not a valid array.
CUresult no_array(const void* handle) {
  return handle == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

ImageOrError find_image(const CUDA_RESOURCE_DESC& resource) {
  if (resource.flags != 0) {
    return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
  }
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      const auto array = driver().arrays.find(resource.res.array.hArray);
      return array == nullptr ? ImageOrError(tl::unexpected(no_array(resource.res.array.hArray))) : image_of(*array);
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
      const CUmipmappedArray handle = resource.res.mipmap.hMipmappedArray;
      const auto mipmap = driver().mipmapped_arrays.find(handle);
      return mipmap == nullptr ? ImageOrError(tl::unexpected(no_array(handle))) : image_of(*mipmap);
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      const auto texel = texel_format(linear.format, linear.numChannels);
      return linear_image(linear.devPtr, linear.format, linear.numChannels,
                          texel ? linear.sizeInBytes / texel->bytes() : 0, 0, 0);
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& plane = resource.res.pitch2D;
      return plane.height == 0 ? ImageOrError(tl::unexpected(CUDA_ERROR_INVALID_VALUE))
                               : linear_image(plane.devPtr, plane.format, plane.numChannels, plane.width, plane.height,
                                              plane.pitchInBytes);
    }
  }
  return tl::unexpected(CUDA_ERROR_INVALID_VALUE);
}

// The formats from UINT_1X8 on, by kind and width; each has one, two and four channels.
std::optional<TexelFormat> view_format(CUresourceViewFormat format) {
  constexpr std::array<CUarray_format, 8> kFormats = {
      CU_AD_FORMAT_UNSIGNED_INT8,  CU_AD_FORMAT_SIGNED_INT8,  CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16,
      CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_HALF,           CU_AD_FORMAT_FLOAT};
  const int index = format - CU_RES_VIEW_FORMAT_UINT_1X8;
  if (index < 0 || index >= static_cast<int>(kFormats.size()) * 3) {
    return std::nullopt;
  }
  return texel_format(kFormats[static_cast<size_t>(index / 3)], 1u << index % 3);
}

CUresult apply_view(const CUDA_RESOURCE_VIEW_DESC& view, Image& image) {
  if (image.backing == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (view.format != CU_RES_VIEW_FORMAT_NONE) {
    const auto format = view_format(view.format);
    if (!format) {
      return not_supported("resource view format " + std::to_string(view.format));
    }
    if (format->bytes() != image.format.bytes()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    image.format = *format;
  }
  const ImageLevel& base = image.levels.front();
  const bool same = view.width == base.width && std::max<size_t>(view.height, 1) == base.height;
  if (!same || view.firstMipmapLevel > view.lastMipmapLevel || view.lastMipmapLevel >= image.levels.size() ||
      view.firstLayer > view.lastLayer) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  image.levels = {image.levels.begin() + view.firstMipmapLevel, image.levels.begin() + view.lastMipmapLevel + 1};
  if (!image.layered) {
    return CUDA_SUCCESS;
  }
  for (ImageLevel& level : image.levels) {
    if (view.lastLayer >= level.depth) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    level.base += view.firstLayer * level.slice_bytes;
    level.depth = view.lastLayer - view.firstLayer + 1;
  }
  return CUDA_SUCCESS;
}

CUresult apply_description(const CUDA_TEXTURE_DESC& d, Texture& texture) {
  const bool modes_known = std::all_of(std::begin(d.addressMode), std::end(d.addressMode), [](CUaddress_mode mode) {
    return mode >= CU_TR_ADDRESS_MODE_WRAP && mode <= CU_TR_ADDRESS_MODE_BORDER;
  });
  const auto filter_known = [](CUfilter_mode mode) {
    return mode == CU_TR_FILTER_MODE_POINT || mode == CU_TR_FILTER_MODE_LINEAR;
  };
  if (!modes_known || !filter_known(d.filterMode) || !filter_known(d.mipmapFilterMode) ||
      (d.flags & ~kKnownTextureFlags) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const TexelFormat& format = texture.image.format;
  const bool narrow = format.channel_bytes < 4;
  const bool integers = format.kind != ChannelKind::floating && (!narrow || (d.flags & CU_TRSF_READ_AS_INTEGER) != 0);
  const bool filtered = d.filterMode == CU_TR_FILTER_MODE_LINEAR;
  const bool border =
      std::any_of(std::begin(d.borderColor), std::end(d.borderColor), [](float value) { return value != 0; });
  if (integers && filtered) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The hardware's treatment of these fields is not documented.
  if (d.maxAnisotropy > 1) {
    return not_supported("a texture with an anisotropic filter");
  }
  if (integers && border) {
    return not_supported("a texture of integers with a border colour");
  }
  if ((d.flags & CU_TRSF_SEAMLESS_CUBEMAP) != 0 && filtered) {
    return not_supported("a seamless cubemap with a linear filter");
  }
  constexpr AddressMode kModes[] = {AddressMode::wrap, AddressMode::clamp, AddressMode::mirror, AddressMode::border};
  for (unsigned i = 0; i < 3; ++i) {
    texture.address[i] = kModes[d.addressMode[i]];
  }
  texture.linear_filter = filtered;
  texture.linear_mipmap_filter = d.mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR && !integers;
  texture.normalized_coordinates = (d.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0 || texture.image.cube;
  texture.integer_results = integers;
  texture.srgb =
      (d.flags & CU_TRSF_SRGB) != 0 && format.kind == ChannelKind::unsigned_integer && format.channel_bytes == 1;
  texture.level_bias = d.mipmapLevelBias;
  texture.level_min = d.minMipmapLevelClamp;
  texture.level_max = d.maxMipmapLevelClamp;
  std::copy(std::begin(d.borderColor), std::end(d.borderColor), std::begin(texture.border));
  return CUDA_SUCCESS;
}

template <typename Table, typename Body>
CUresult with_object(Table Driver::*table, uint64_t handle, const void* out, Body&& body) noexcept {
  return with_context([&](Context&) -> CUresult {
    const auto object = (driver().*table).find(handle);
    return object == nullptr || object->destroyed.load(std::memory_order_relaxed) || out == nullptr
               ? CUDA_ERROR_INVALID_VALUE
               : body(*object);
  });
}

// Destroying an invalid object succeeds, like on NVIDIA's driver. Kernels that were launched before still find the
// object, which is released after all present work of its context.
template <typename Table>
CUresult destroy_object(Table Driver::*table, uint64_t handle, const char* function = __builtin_FUNCTION()) noexcept {
  return with_context(
      [&](Context&) -> CUresult {
        const auto object = (driver().*table).find(handle);
        if (object == nullptr || object->destroyed.exchange(true, std::memory_order_relaxed)) {
          return CUDA_SUCCESS;
        }
        const auto slot = driver().contexts.find(object->context);
        const auto context = slot == nullptr ? nullptr : slot->live();
        const OperationPtr before = context == nullptr ? nullptr : context->mark_everything();
        if (before == nullptr || before->done()) {
          (driver().*table).take(handle);
        } else {
          driver().scheduler.submit([table, handle] { (driver().*table).take(handle); }, {&before, 1});
        }
        return CUDA_SUCCESS;
      },
      function);
}

}  // namespace

std::shared_ptr<const Texture> DriverImages::texture(uint64_t handle) const noexcept {
  const auto object = driver().textures.find(handle);
  return object == nullptr ? nullptr : object->texture;
}

std::shared_ptr<const Surface> DriverImages::surface(uint64_t handle) const noexcept {
  const auto object = driver().surfaces.find(handle);
  return object == nullptr ? nullptr : object->surface;
}

}  // namespace gpuwire::software_device

using namespace gpuwire::software_device;

CUresult cuTexObjectCreate(CUtexObject* out, const CUDA_RESOURCE_DESC* resource, const CUDA_TEXTURE_DESC* description,
                           const CUDA_RESOURCE_VIEW_DESC* view) {
  return with_context([&](Context& context) -> CUresult {
    if (out == nullptr || resource == nullptr || description == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto image = find_image(*resource);
    if (!image) {
      return image.error();
    }
    auto texture = std::make_shared<Texture>();
    texture->image = *std::move(image);
    if (view != nullptr) {
      if (const CUresult result = apply_view(*view, texture->image); result != CUDA_SUCCESS) {
        return result;
      }
    }
    if (const CUresult result = apply_description(*description, *texture); result != CUDA_SUCCESS) {
      return result;
    }
    auto object = std::make_shared<TextureObject>();
    object->context = context.handle();
    object->resource = *resource;
    object->description = *description;
    if (view != nullptr) {
      object->view = *view;
    }
    object->texture = std::move(texture);
    *out = driver().textures.reserve();
    driver().textures.insert(*out, std::move(object));
    return CUDA_SUCCESS;
  });
}

CUresult cuTexObjectDestroy(CUtexObject handle) { return destroy_object(&Driver::textures, handle); }

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUtexObject handle) {
  return with_object(&Driver::textures, handle, out, [&](const TextureObject& object) {
    *out = object.resource;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* out, CUtexObject handle) {
  return with_object(&Driver::textures, handle, out, [&](const TextureObject& object) {
    *out = object.description;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* out, CUtexObject handle) {
  return with_object(&Driver::textures, handle, out, [&](const TextureObject& object) {
    if (!object.view) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = *object.view;
    return CUDA_SUCCESS;
  });
}

CUresult cuSurfObjectCreate(CUsurfObject* out, const CUDA_RESOURCE_DESC* resource) {
  return with_context([&](Context& context) -> CUresult {
    if (out == nullptr || resource == nullptr || resource->resType != CU_RESOURCE_TYPE_ARRAY || resource->flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto array = driver().arrays.find(resource->res.array.hArray);
    if (array == nullptr) {
      return no_array(resource->res.array.hArray);
    }
    auto surface = std::make_shared<Surface>();
    surface->image = image_of(*array);
    auto object = std::make_shared<SurfaceObject>();
    object->context = context.handle();
    object->resource = *resource;
    object->surface = std::move(surface);
    *out = driver().surfaces.reserve();
    driver().surfaces.insert(*out, std::move(object));
    return CUDA_SUCCESS;
  });
}

CUresult cuSurfObjectDestroy(CUsurfObject handle) { return destroy_object(&Driver::surfaces, handle); }

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* out, CUsurfObject handle) {
  return with_object(&Driver::surfaces, handle, out, [&](const SurfaceObject& object) {
    *out = object.resource;
    return CUDA_SUCCESS;
  });
}
