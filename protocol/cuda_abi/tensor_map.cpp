#include "protocol/cuda_abi/tensor_map.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>

namespace gpuwire::cuda_abi {
namespace {

constexpr uint32_t kRankMax = 5;
constexpr uint64_t kSizeMax = uint64_t(1) << 32;
constexpr uint64_t kStrideEnd = uint64_t(1) << 40;
constexpr uint32_t kStepMax = 8, kBoxMax = 256, kPixelsMax = 1024;
constexpr uint64_t kBoxBytesMax = 228 * 1024;  // the shared memory of a multiprocessor
constexpr uint64_t kChunkBytes = 16;           // the unit of addresses, strides and the rows of a box

// The map as the hardware reads it: 32-bit words, little-endian.
struct Words {
  uint32_t address[2];    // low, high
  uint32_t format;        // see format_of()
  uint32_t strides[4];    // bits 0 to 31, in chunks; 0 beyond the rank
  uint32_t strides_high;  // bits 32 to 35 of each stride, 4 bits per stride
  uint32_t sizes[5];      // minus one; 0 beyond the rank
  // Minus one, 3 bits per dimension. Bits 24 to 31: elements of the box in the first dimension, minus one.
  uint32_t steps;
  // Tiled: the other dimensions of the box, minus one, 8 bits each. im2col: corners, see corner_bits().
  uint32_t box;
  uint32_t pixels;     // im2col: pixels of a column, minus one
  uint32_t box_bytes;  // the bytes that one copy writes to shared memory
  uint32_t unused;
  uint32_t shared_alignment_bytes;  // alignment of the destination in shared memory
  uint32_t zero[13];
};
static_assert(sizeof(Words) == sizeof(CUtensorMap));

struct Element {
  uint32_t code;  // in the format word
  uint32_t bytes;
  bool rounds;  // the hardware rounds to TF32 during the copy
  bool floating;
};

// The packed types of compute capability 10.0 (CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B and later) are not supported here.
std::optional<Element> element_of(CUtensorMapDataType type) noexcept {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return Element{0, 1, false, false};
    case CU_TENSOR_MAP_DATA_TYPE_UINT16: return Element{1, 2, false, false};
    case CU_TENSOR_MAP_DATA_TYPE_UINT32: return Element{2, 4, false, false};
    case CU_TENSOR_MAP_DATA_TYPE_INT32: return Element{3, 4, false, false};
    case CU_TENSOR_MAP_DATA_TYPE_UINT64: return Element{4, 8, false, false};
    case CU_TENSOR_MAP_DATA_TYPE_INT64: return Element{5, 8, false, false};
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16: return Element{6, 2, false, true};
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: return Element{7, 4, false, true};
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ: return Element{8, 4, false, true};
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return Element{9, 8, false, true};
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return Element{10, 2, false, true};
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: return Element{7, 4, true, true};
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ: return Element{8, 4, true, true};
    default: return std::nullopt;
  }
}

// The common part of the three functions.
struct Tensor {
  CUtensorMapDataType type;
  uint32_t rank;
  uint64_t address;
  const cuuint64_t* sizes;
  const cuuint64_t* strides_bytes;
  const cuuint32_t* steps;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion promotion;
  CUtensorMapFloatOOBfill fill;
};

// Enumerations come from C programs, so they may contain any number.
template <class Enumeration>
uint32_t number(Enumeration value) noexcept {
  uint32_t bits;
  static_assert(sizeof bits == sizeof value);
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

bool within(uint64_t value, uint64_t first, uint64_t last) noexcept { return value >= first && value <= last; }

bool tensor_is_valid(const Tensor& tensor, const Element& element, uint32_t rank_min) noexcept {
  if (!within(tensor.rank, rank_min, kRankMax) || (number(tensor.interleave) && tensor.rank < 3)) return false;
  if (number(tensor.interleave) > CU_TENSOR_MAP_INTERLEAVE_32B || number(tensor.swizzle) > CU_TENSOR_MAP_SWIZZLE_128B)
    return false;
  if (number(tensor.promotion) > CU_TENSOR_MAP_L2_PROMOTION_L2_256B) return false;
  if (number(tensor.fill) > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA ||
      (number(tensor.fill) && !element.floating))
    return false;
  const uint64_t alignment = number(tensor.interleave) == CU_TENSOR_MAP_INTERLEAVE_32B ? 2 * kChunkBytes : kChunkBytes;
  if (tensor.address % alignment) return false;
  for (uint32_t i = 0; i < tensor.rank; ++i) {
    if (!within(tensor.sizes[i], 1, kSizeMax) || !within(tensor.steps[i], 1, kStepMax)) return false;
    if (i + 1 < tensor.rank && (tensor.strides_bytes[i] % alignment || tensor.strides_bytes[i] >= kStrideEnd))
      return false;
  }
  return true;
}

// Returns whether the rows of the box are whole chunks and, if they are not interleaved, fit the swizzled span.
bool row_is_valid(const Tensor& tensor, uint64_t row_bytes) noexcept {
  if (row_bytes % kChunkBytes) return false;
  return number(tensor.interleave) || !number(tensor.swizzle) || row_bytes <= kChunkBytes << number(tensor.swizzle);
}

uint32_t format_of(const Tensor& tensor, const Element& element, bool im2col) noexcept {
  return uint32_t(im2col) | (tensor.rank - 1) << 4 | element.code << 7 | number(tensor.interleave) << 11 |
         number(tensor.swizzle) << 13 | number(tensor.fill) << 15 | uint32_t(element.rounds) << 16 |
         number(tensor.promotion) << 17;
}

Words words_of(const Tensor& tensor, const Element& element, bool im2col, uint32_t row_elements,
               uint64_t box_bytes) noexcept {
  Words words{};
  words.address[0] = uint32_t(tensor.address);
  words.address[1] = uint32_t(tensor.address >> 32);
  words.format = format_of(tensor, element, im2col);
  for (uint32_t i = 0; i + 1 < tensor.rank; ++i) {
    const uint64_t chunks = tensor.strides_bytes[i] / kChunkBytes;
    words.strides[i] = uint32_t(chunks);
    words.strides_high |= uint32_t(chunks >> 32) << (4 * i);
  }
  for (uint32_t i = 0; i < tensor.rank; ++i) {
    words.sizes[i] = uint32_t(tensor.sizes[i] - 1);
    words.steps |= (tensor.steps[i] - 1) << (3 * i);
  }
  words.steps |= (row_elements - 1) << 24;
  words.box_bytes = uint32_t(box_bytes);
  words.shared_alignment_bytes = number(tensor.swizzle) ? 128u << number(tensor.swizzle) : uint32_t(kChunkBytes);
  return words;
}

CUresult put(const Words& words, CUtensorMap* map) noexcept {
  std::memcpy(static_cast<void*>(map), &words, sizeof words);
  return CUDA_SUCCESS;
}

// Returns the bits of one coordinate of a corner: 16 bits contain one, two or three coordinates.
constexpr uint32_t corner_bits(uint32_t rank) noexcept { return rank == 3 ? 16 : rank == 4 ? 8 : 5; }

bool corners_are_valid(const Tensor& tensor, const int* lower, const int* upper) noexcept {
  const int end = 1 << (corner_bits(tensor.rank) - 1);
  // Interleaved tensors have their channels behind the pixels. The driver calculates in 32 bits.
  const uint32_t first = number(tensor.interleave) ? 0 : 1;
  for (uint32_t i = 0; i + 2 < tensor.rank; ++i) {
    if (lower[i] < -end || lower[i] >= end || upper[i] < -end || upper[i] >= end) return false;
    if (int32_t(uint32_t(tensor.sizes[first + i]) + uint32_t(upper[i]) - uint32_t(lower[i])) <= 0) return false;
  }
  return true;
}

CUresult encode_im2col(CUtensorMap* map, const Tensor& tensor, const int* lower, const int* upper, uint32_t channels,
                       uint32_t pixels) noexcept {
  const std::optional<Element> element = element_of(tensor.type);
  if (!element || !tensor_is_valid(tensor, *element, 3)) return CUDA_ERROR_INVALID_VALUE;
  if (!within(channels, 1, kBoxMax) || !within(pixels, 1, kPixelsMax)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t row_bytes = uint64_t(channels) * element->bytes, box_bytes = row_bytes * pixels;
  if (!row_is_valid(tensor, row_bytes) || box_bytes > kBoxBytesMax || !corners_are_valid(tensor, lower, upper))
    return CUDA_ERROR_INVALID_VALUE;
  Words words = words_of(tensor, *element, true, channels, box_bytes);
  const uint32_t bits = corner_bits(tensor.rank), mask = (1u << bits) - 1;
  for (uint32_t i = 0; i + 2 < tensor.rank; ++i)
    words.box |= (uint32_t(lower[i]) & mask) << (bits * i) | (uint32_t(upper[i]) & mask) << (16 + bits * i);
  words.pixels = pixels - 1;
  return put(words, map);
}

}  // namespace

CUresult encode_tensor_map_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                 const cuuint64_t* sizes, const cuuint64_t* strides_bytes, const cuuint32_t* box,
                                 const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) noexcept {
  if (!map || !sizes || !strides_bytes || !box || !steps) return CUDA_ERROR_INVALID_VALUE;
  const Tensor tensor{
      type,      rank, reinterpret_cast<uint64_t>(address), sizes, strides_bytes, steps, interleave, swizzle,
      promotion, fill};
  const std::optional<Element> element = element_of(type);
  if (!element || !tensor_is_valid(tensor, *element, 1)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t box_bytes = element->bytes;
  for (uint32_t i = 0; i < rank; ++i) {
    if (!within(box[i], 1, kBoxMax)) return CUDA_ERROR_INVALID_VALUE;
    box_bytes *= box[i] / steps[i];
  }
  if (!row_is_valid(tensor, uint64_t(box[0]) * element->bytes) || box_bytes > kBoxBytesMax)
    return CUDA_ERROR_INVALID_VALUE;
  Words words = words_of(tensor, *element, false, box[0], box_bytes);
  for (uint32_t i = 1; i < rank; ++i) words.box |= (box[i] - 1) << (8 * (i - 1));
  return put(words, map);
}

CUresult encode_tensor_map_im2col(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                  const cuuint64_t* sizes, const cuuint64_t* strides_bytes, const int* lower,
                                  const int* upper, cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
                                  CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                  CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) noexcept {
  if (!map || !sizes || !strides_bytes || !lower || !upper || !steps) return CUDA_ERROR_INVALID_VALUE;
  const Tensor tensor{
      type,      rank, reinterpret_cast<uint64_t>(address), sizes, strides_bytes, steps, interleave, swizzle,
      promotion, fill};
  return encode_im2col(map, tensor, lower, upper, channels, pixels);
}

CUresult encode_tensor_map_im2col_wide(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                       const cuuint64_t* sizes, const cuuint64_t* strides_bytes, int lower, int upper,
                                       cuuint32_t channels, cuuint32_t pixels, const cuuint32_t* steps,
                                       CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                       CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) noexcept {
  if (!map || !sizes || !strides_bytes || !steps) return CUDA_ERROR_INVALID_VALUE;
  const Tensor tensor{
      type,      rank, reinterpret_cast<uint64_t>(address), sizes, strides_bytes, steps, interleave, swizzle,
      promotion, fill};
  const std::array<int, 3> all_lower{lower, 0, 0}, all_upper{upper, 0, 0};
  return encode_im2col(map, tensor, all_lower.data(), all_upper.data(), channels, pixels);
}

CUresult replace_tensor_map_address(CUtensorMap* map, void* address) noexcept {
  const auto value = reinterpret_cast<uint64_t>(address);
  if (!map || value == 0 || value % kChunkBytes) return CUDA_ERROR_INVALID_VALUE;
  const uint32_t words[2] = {uint32_t(value), uint32_t(value >> 32)};
  std::memcpy(static_cast<void*>(map), words, sizeof words);
  return CUDA_SUCCESS;
}

}  // namespace gpuwire::cuda_abi
