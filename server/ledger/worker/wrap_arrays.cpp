// Arrays and mipmapped arrays. The driver reports the size only of sparse and deferred arrays, so the size is computed.
#include <algorithm>
#include <bit>

#include "server/ledger/worker/charges.hpp"

namespace gpuwire::server {
namespace {

constexpr uint64_t kSmallArrayUnitBytes = 8u << 10;
constexpr unsigned kElementBytesMost = 16;

// Returns the bytes of one element; unknown formats count as the largest.
unsigned element_bytes(CUarray_format format, unsigned channels) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4 * channels;
    default: return kElementBytesMost;
  }
}

// Arrays lie in tiles: 64 bytes wide, and as high and deep as a block of them (measured on an H200: never more than
// this).
uint64_t tiled_bytes(uint64_t width, uint64_t height, uint64_t depth, uint64_t layers, unsigned element) {
  constexpr uint64_t kTileBytes = 64, kTileRows = 8, kBlockRows = 128, kDeepBlockRows = 32, kDeepBlockSlices = 16;
  if (ledger_parts().software)
    return product(product(product(width, element), std::max<uint64_t>(height, 1)),
                   product(std::max<uint64_t>(depth, 1), layers));
  auto block = [&](uint64_t size, uint64_t most) { return std::min(most, std::bit_ceil(std::min(size, most))); };
  uint64_t rows = round_up(std::max<uint64_t>(height, 1), kTileRows);
  rows = round_up(rows, block(rows, depth > 1 ? kDeepBlockRows : kBlockRows));
  uint64_t slices = std::max<uint64_t>(depth, 1);
  slices = round_up(slices, block(slices, kDeepBlockSlices));
  return product(product(round_up(product(width, element), kTileBytes), rows), product(slices, layers));
}

uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels) {
  // Such an array has no memory of its own: memory that is mapped into it is charged where it is made.
  if (array.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
  unsigned element = element_bytes(array.Format, array.NumChannels);
  bool layered = array.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  uint64_t bytes = 0;
  for (unsigned level = 0; level < std::min(std::max(levels, 1u), 64u); ++level) {
    auto half = [&](uint64_t size) { return size >> level ? size >> level : std::min<uint64_t>(size, 1); };
    uint64_t layers = layered ? std::max<uint64_t>(array.Depth, 1) : 1;
    uint64_t more =
        tiled_bytes(half(array.Width), half(array.Height), layered ? 0 : half(array.Depth), layers, element);
    bytes = more > UINT64_MAX - bytes ? UINT64_MAX : bytes + more;
  }
  if (ledger_parts().software) return bytes;
  if (bytes > ChunkBook::kSmallBytesMax) return round_up(bytes, ChunkBook::kChunkBytes);
  // Small arrays share chunks, and an array has no address that would tell its chunk; so each is charged its part of a
  // chunk full of such arrays.
  return ChunkBook::kChunkBytes /
         (ChunkBook::kChunkBytes / round_up(std::max<uint64_t>(bytes, 1), kSmallArrayUnitBytes));
}

template <class Handle, class Create>
CUresult charged(Handle* handle, const CUDA_ARRAY3D_DESCRIPTOR& array, unsigned levels, Create&& create) {
  LedgerParts& parts = ledger_parts();
  Place place;
  if (CUresult error = parts.here(place)) return error;
  const uint64_t most = array_bytes(array, levels);
  // The driver offers no other figure, so the bound stays charged.
  return take(
      parts.ledger, place.column, most, create, [&] { return most; },
      [&](uint64_t bytes) {
        parts.arrays.put(reinterpret_cast<uint64_t>(*handle),
                         {.column = place.column, .bytes = bytes, .context = place.context});
      },
      [] {});
}

CUresult array_create(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* description) {
  CUDA_ARRAY3D_DESCRIPTOR flat{.Width = description->Width,
                               .Height = description->Height,
                               .Format = description->Format,
                               .NumChannels = description->NumChannels};
  return charged(array, flat, 1, [&] { return ledger_parts().driver.cuArrayCreate_v2(array, description); });
}

CUresult array_3d_create(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* description) {
  return charged(array, *description, 1, [&] { return ledger_parts().driver.cuArray3DCreate_v2(array, description); });
}

CUresult mipmapped_array_create(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* description, unsigned levels) {
  return charged(array, *description, levels,
                 [&] { return ledger_parts().driver.cuMipmappedArrayCreate(array, description, levels); });
}

CUresult array_destroy(CUarray array) {
  LedgerParts& parts = ledger_parts();
  return parts.arrays.free(reinterpret_cast<uint64_t>(array), [&] { return parts.driver.cuArrayDestroy(array); });
}

CUresult mipmapped_array_destroy(CUmipmappedArray array) {
  LedgerParts& parts = ledger_parts();
  return parts.arrays.free(reinterpret_cast<uint64_t>(array),
                           [&] { return parts.driver.cuMipmappedArrayDestroy(array); });
}

}  // namespace

void wrap_arrays(DriverTable& table) {
  wrap(table.cuArrayCreate_v2, &array_create);
  wrap(table.cuArray3DCreate_v2, &array_3d_create);
  wrap(table.cuMipmappedArrayCreate, &mipmapped_array_create);
  wrap(table.cuArrayDestroy, &array_destroy);
  wrap(table.cuMipmappedArrayDestroy, &mipmapped_array_destroy);
}

}  // namespace gpuwire::server
