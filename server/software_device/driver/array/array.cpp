// CUDA arrays and mipmapped arrays: rows of texels, one after the other.
#include <algorithm>
#include <bit>
#include <type_traits>

#include "server/software_device/driver/memory/allocation.hpp"
#include "server/software_device/driver/call/api.hpp"
#include "server/software_device/driver/call/refusal.hpp"

namespace gpuwire::software_device {
namespace {

constexpr unsigned kKnownArrayFlags =
    CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER;

// The maximum extents of the device attributes, by kind of array. 0: the extent must be 0.
struct ExtentsMax {
  size_t width, height, depth;
};
constexpr ExtentsMax kRowMax{131072, 0, 0}, kPlaneMax{131072, 65536, 0}, kVolumeMax{16384, 16384, 16384};
constexpr ExtentsMax kRowsMax{32768, 0, 2048}, kPlanesMax{32768, 32768, 2048};  // layered
constexpr ExtentsMax kCubeMax{32768, 32768, 6}, kCubesMax{32768, 32768, 2046};
constexpr size_t kSurfaceRowWidthMax = 32768;
constexpr size_t kMipmappedWidthMax = 32768;

bool has(const CUDA_ARRAY3D_DESCRIPTOR& d, unsigned flag) { return (d.Flags & flag) != 0; }

ExtentsMax extents_max(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  if (has(d, CUDA_ARRAY3D_CUBEMAP)) {
    return has(d, CUDA_ARRAY3D_LAYERED) ? kCubesMax : kCubeMax;
  }
  if (has(d, CUDA_ARRAY3D_LAYERED)) {
    return d.Height == 0 ? kRowsMax : kPlanesMax;
  }
  ExtentsMax most = d.Depth != 0 ? kVolumeMax : d.Height != 0 ? kPlaneMax : kRowMax;
  if (d.Height == 0 && has(d, CUDA_ARRAY3D_SURFACE_LDST)) {
    most.width = kSurfaceRowWidthMax;
  }
  return most;
}

CUresult check_description(const CUDA_ARRAY3D_DESCRIPTOR& d) {
  if ((d.Flags & ~kKnownArrayFlags) != 0) {
    return not_supported("a CUDA array that is sparse, for depth, or mapped later");
  }
  if (!texel_format(d.Format, d.NumChannels)) {
    const bool possible = d.NumChannels == 1 || d.NumChannels == 2 || d.NumChannels == 4;
    return possible ? not_supported("CUDA array format " + std::to_string(d.Format)) : CUDA_ERROR_INVALID_VALUE;
  }
  const bool layered = has(d, CUDA_ARRAY3D_LAYERED);
  const bool cube = has(d, CUDA_ARRAY3D_CUBEMAP);
  const bool volume_without_rows = d.Depth != 0 && d.Height == 0 && !layered;
  const bool cube_wrong = cube && (d.Width != d.Height || (layered ? d.Depth % 6 != 0 : d.Depth != 6));
  const bool gather_wrong = has(d, CUDA_ARRAY3D_TEXTURE_GATHER) && (d.Height == 0 || d.Depth != 0);
  const ExtentsMax most = extents_max(d);
  if (d.Width == 0 || d.Width > most.width || d.Height > most.height || d.Depth > most.depth || volume_without_rows ||
      cube_wrong || gather_wrong || (layered && d.Depth == 0)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

tl::expected<std::shared_ptr<ArrayObject>, CUresult> make_array(Context& context,
                                                                const CUDA_ARRAY3D_DESCRIPTOR& description) {
  auto array = std::make_shared<ArrayObject>();
  array->context = context.handle();
  array->description = description;
  array->format = *texel_format(description.Format, description.NumChannels);
  ImageLevel& level = array->level;
  level.width = static_cast<uint32_t>(description.Width);
  level.height = static_cast<uint32_t>(std::max<size_t>(description.Height, 1));
  level.depth = static_cast<uint32_t>(std::max<size_t>(description.Depth, 1));
  level.row_bytes = uint64_t{level.width} * array->format.bytes();
  level.slice_bytes = level.row_bytes * level.height;
  auto memory = take_storage(level.slice_bytes * level.depth, context.device());
  if (!memory) {
    return tl::unexpected(memory.error());
  }
  array->memory = *std::move(memory);
  level.base = static_cast<uint8_t*>(array->memory.get());
  array->handle = driver().arrays.reserve();
  return array;
}

CUresult create_array(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* description,
                      const char* function = __builtin_FUNCTION()) {
  return with_context(
      [&](Context& context) -> CUresult {
        if (out == nullptr || description == nullptr) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        if (const CUresult result = check_description(*description); result != CUDA_SUCCESS) {
          return result;
        }
        auto array = make_array(context, *description);
        if (!array) {
          return array.error();
        }
        *out = (*array)->handle;
        driver().arrays.insert(*out, *array);
        return CUDA_SUCCESS;
      },
      function);
}

// Calls `body` with the context if it accepts one.
template <typename Body, typename Object>
CUresult apply_to(Body& body, Object& object, Context& context) {
  if constexpr (std::is_invocable_v<Body&, Object&, Context&>) {
    return body(object, context);
  } else {
    return body(object);
  }
}

template <typename Body>
CUresult with_array(CUarray handle, Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  std::shared_ptr<ArrayObject> array;
  return with_arguments_first(
      [&] {
        array = driver().arrays.find(handle);
        return array == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
      },
      [&](Context& context) -> CUresult { return apply_to(body, *array, context); }, function);
}

template <typename Body>
CUresult with_mipmap(CUmipmappedArray handle, Body&& body, const char* function = __builtin_FUNCTION()) noexcept {
  std::shared_ptr<MipmappedArrayObject> mipmap;
  return with_arguments_first(
      [&] {
        mipmap = driver().mipmapped_arrays.find(handle);
        return mipmap == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
      },
      [&](Context& context) -> CUresult { return apply_to(body, *mipmap, context); }, function);
}

// For functions about sparse arrays and arrays with deferred mapping, which do not exist here. Returns the error even
// after a fault (measured on driver 580).
template <typename Handle, typename Table>
CUresult no_sparse_or_deferred(Handle handle, const Table& table,
                               const char* function = __builtin_FUNCTION()) noexcept {
  return with_any_context(
      [&](Context&) {
        return handle != nullptr && table.find(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE
                                                                  : CUDA_ERROR_INVALID_VALUE;
      },
      function);
}

// Returns the extents of a level: half of those of the previous level. The number of layers and faces stays.
CUDA_ARRAY3D_DESCRIPTOR level_description(const CUDA_ARRAY3D_DESCRIPTOR& base, unsigned level) {
  const auto halved = [&](size_t extent) { return extent == 0 ? 0 : std::max<size_t>(extent >> level, 1); };
  CUDA_ARRAY3D_DESCRIPTOR d = base;
  d.Width = halved(base.Width);
  d.Height = halved(base.Height);
  if (!has(base, CUDA_ARRAY3D_LAYERED) && !has(base, CUDA_ARRAY3D_CUBEMAP)) {
    d.Depth = halved(base.Depth);
  }
  return d;
}

}  // namespace

std::optional<TexelFormat> texel_format(CUarray_format format, unsigned channels) {
  if (channels != 1 && channels != 2 && channels != 4) {
    return std::nullopt;
  }
  const auto count = static_cast<uint8_t>(channels);
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8: return TexelFormat{ChannelKind::unsigned_integer, 1, count};
    case CU_AD_FORMAT_UNSIGNED_INT16: return TexelFormat{ChannelKind::unsigned_integer, 2, count};
    case CU_AD_FORMAT_UNSIGNED_INT32: return TexelFormat{ChannelKind::unsigned_integer, 4, count};
    case CU_AD_FORMAT_SIGNED_INT8: return TexelFormat{ChannelKind::signed_integer, 1, count};
    case CU_AD_FORMAT_SIGNED_INT16: return TexelFormat{ChannelKind::signed_integer, 2, count};
    case CU_AD_FORMAT_SIGNED_INT32: return TexelFormat{ChannelKind::signed_integer, 4, count};
    case CU_AD_FORMAT_HALF: return TexelFormat{ChannelKind::floating, 2, count};
    case CU_AD_FORMAT_FLOAT: return TexelFormat{ChannelKind::floating, 4, count};
    default: return std::nullopt;
  }
}

Image image_shape(const CUDA_ARRAY3D_DESCRIPTOR& description, const TexelFormat& format) {
  Image image{.format = format};
  image.layered = has(description, CUDA_ARRAY3D_LAYERED);
  image.cube = has(description, CUDA_ARRAY3D_CUBEMAP);
  const bool flat = image.layered || image.cube || description.Depth == 0;
  image.dimensions = !flat ? 3 : description.Height != 0 ? 2 : 1;
  return image;
}

void release_images(CUcontext context) {
  const auto ours = [&](const auto& object) { return object.context == context; };
  driver().textures.remove_if(ours);
  driver().surfaces.remove_if(ours);
  driver().mipmapped_arrays.remove_if(ours);
  driver().arrays.remove_if(ours);
}

}  // namespace gpuwire::software_device

using namespace gpuwire::software_device;

CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* description) {
  return create_array(out, description);
}

CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR* description) {
  if (description == nullptr) {
    return create_array(out, nullptr);
  }
  const CUDA_ARRAY3D_DESCRIPTOR wide{.Width = description->Width,
                                     .Height = description->Height,
                                     .Depth = 0,
                                     .Format = description->Format,
                                     .NumChannels = description->NumChannels,
                                     .Flags = 0};
  return create_array(out, &wide);
}

// Destroying the array of a level removes its handle, and the mipmapped array keeps the level (driver 580 destroys the
// level). Waits for all work, like functions that free memory (measured on driver 580).
CUresult cuArrayDestroy(CUarray handle) {
  return with_array(handle, [&](const ArrayObject&, Context& context) -> CUresult {
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    const CUresult result = context.synchronize();
    driver().arrays.take(handle);
    return result;
  });
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle) {
  return with_array(handle, [&](const ArrayObject& array) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *out = array.description;
    return CUDA_SUCCESS;
  });
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* out, CUarray handle) {
  return with_array(handle, [&](const ArrayObject& array) -> CUresult {
    if (out == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CUDA_ARRAY3D_DESCRIPTOR& d = array.description;
    *out = {.Width = d.Width, .Height = d.Height, .Format = d.Format, .NumChannels = d.NumChannels};
    return CUDA_SUCCESS;
  });
}

// Several planes, deferred memory and sparse memory are properties of arrays that cannot be created here.
CUresult cuArrayGetPlane(CUarray*, CUarray handle, unsigned int) {
  return with_array(handle, [](const ArrayObject&) { return CUDA_ERROR_INVALID_VALUE; });
}
CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*, CUarray handle, CUdevice) {
  return no_sparse_or_deferred(handle, driver().arrays);
}
CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*, CUarray handle) {
  return no_sparse_or_deferred(handle, driver().arrays);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR* description,
                                unsigned int levels) {
  return with_context([&](Context& context) -> CUresult {
    if (out == nullptr || description == nullptr || levels == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = check_description(*description); result != CUDA_SUCCESS) {
      return result;
    }
    if (description->Depth == 0 && std::max(description->Width, description->Height) > kMipmappedWidthMax) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool flat = (description->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    const size_t longest = std::max({description->Width, description->Height, flat ? size_t{0} : description->Depth});
    // "Clamped to the range [1, 1 + floor(log2(max(width, height, depth)))]" (cuda.h).
    const unsigned count = std::min(levels, static_cast<unsigned>(std::bit_width(longest)));
    auto mipmap = std::make_shared<MipmappedArrayObject>();
    mipmap->context = context.handle();
    for (unsigned i = 0; i < count; ++i) {
      auto array = make_array(context, level_description(*description, i));
      if (!array) {
        return array.error();
      }
      mipmap->levels.push_back(*std::move(array));
    }
    for (const auto& array : mipmap->levels) {
      driver().arrays.insert(array->handle, array);
    }
    mipmap->handle = driver().mipmapped_arrays.reserve();
    driver().mipmapped_arrays.insert(mipmap->handle, mipmap);
    *out = mipmap->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
  return with_mipmap(handle, [&](const MipmappedArrayObject& mipmap, Context& context) -> CUresult {
    if (const CUresult refused = permit_unsafe_call(); refused != CUDA_SUCCESS) {
      return refused;
    }
    const CUresult result = context.synchronize();
    for (const auto& array : mipmap.levels) {
      driver().arrays.take(array->handle);
    }
    driver().mipmapped_arrays.take(handle);
    return result;
  });
}

CUresult cuMipmappedArrayGetLevel(CUarray* out, CUmipmappedArray handle, unsigned int level) {
  return with_mipmap(handle, [&](const MipmappedArrayObject& mipmap) -> CUresult {
    if (out == nullptr || level >= mipmap.levels.size()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const auto& array = mipmap.levels[level];
    driver().arrays.insert(array->handle, array);  // again, if the program has destroyed it
    *out = array->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS*, CUmipmappedArray handle, CUdevice) {
  return no_sparse_or_deferred(handle, driver().mipmapped_arrays);
}
CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES*, CUmipmappedArray handle) {
  return no_sparse_or_deferred(handle, driver().mipmapped_arrays);
}
