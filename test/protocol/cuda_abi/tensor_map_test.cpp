#include "protocol/cuda_abi/tensor_map.hpp"

#include <array>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace gpuwire::cuda_abi;

namespace {

constexpr size_t kWords = sizeof(CUtensorMap) / sizeof(uint32_t);
constexpr unsigned char kUntouched = 0xaa;

// A line of tensor_maps.txt; its first lines say what the fields are.
struct Record {
  std::string line, function;
  uint32_t type, rank;
  uint64_t address;
  std::vector<uint64_t> sizes, strides;
  std::vector<uint32_t> box, steps;
  std::vector<int> lower, upper;
  uint32_t channels, pixels, interleave, swizzle, promotion, fill, mode, result;
  std::array<uint32_t, kWords> words{};
};

template <class Item>
std::vector<Item> list(const std::string& text, int base = 10) {
  std::vector<Item> items;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(Item(std::stoll(item, nullptr, base)));
  return items;
}

Record parse(const std::string& line) {
  Record record;
  record.line = line;
  std::istringstream stream(line);
  std::string address, sizes, strides, box, steps, lower, upper, words;
  stream >> record.function >> record.type >> record.rank >> address >> sizes >> strides >> box >> steps >> lower >>
      upper >> record.channels >> record.pixels >> record.interleave >> record.swizzle >> record.promotion >>
      record.fill >> record.mode >> record.result >> words;
  REQUIRE_MESSAGE(stream, line);
  record.address = std::stoull(address, nullptr, 16);
  record.sizes = list<uint64_t>(sizes);
  record.strides = list<uint64_t>(strides);
  record.box = list<uint32_t>(box);
  record.steps = list<uint32_t>(steps);
  record.lower = list<int>(lower);
  record.upper = list<int>(upper);
  if (words != "-") {
    std::vector<uint32_t> given = list<uint32_t>(words, 16);
    std::copy(given.begin(), given.end(), record.words.begin());
  }
  return record;
}

std::vector<Record> records() {
  std::ifstream file(GPUWIRE_TENSOR_MAPS);
  REQUIRE(file);
  std::vector<Record> found;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line[0] != '#') found.push_back(parse(line));
  }
  return found;
}

// Any number may stand in an enumeration that a C program passes.
template <class Enumeration>
Enumeration as(uint32_t number) {
  Enumeration value;
  std::memcpy(&value, &number, sizeof value);
  return value;
}

CUresult encode(const Record& r, const std::string& function, CUtensorMap* map) {
  auto type = as<CUtensorMapDataType>(r.type);
  auto* address = reinterpret_cast<void*>(r.address);
  auto interleave = as<CUtensorMapInterleave>(r.interleave);
  auto swizzle = as<CUtensorMapSwizzle>(r.swizzle);
  auto promotion = as<CUtensorMapL2promotion>(r.promotion);
  auto fill = as<CUtensorMapFloatOOBfill>(r.fill);
  if (function == "tiled")
    return encode_tensor_map_tiled(map, type, r.rank, address, r.sizes.data(), r.strides.data(), r.box.data(),
                                   r.steps.data(), interleave, swizzle, promotion, fill);
  if (function == "im2col")
    return encode_tensor_map_im2col(map, type, r.rank, address, r.sizes.data(), r.strides.data(), r.lower.data(),
                                    r.upper.data(), r.channels, r.pixels, r.steps.data(), interleave, swizzle,
                                    promotion, fill);
  REQUIRE_EQ(function, "wide");
  return encode_tensor_map_im2col_wide(map, type, r.rank, address, r.sizes.data(), r.strides.data(), r.lower[0],
                                       r.upper[0], r.channels, r.pixels, r.steps.data(), interleave, swizzle, promotion,
                                       fill);
}

CUtensorMap untouched() {
  CUtensorMap map;
  std::memset(static_cast<void*>(&map), kUntouched, sizeof map);
  return map;
}

bool same(const CUtensorMap& map, const std::array<uint32_t, kWords>& words) {
  return std::memcmp(&map, words.data(), sizeof map) == 0;
}

bool same(const CUtensorMap& a, const CUtensorMap& b) { return std::memcmp(&a, &b, sizeof a) == 0; }

Record find(const std::string& function) {
  for (const Record& record : records()) {
    if (record.function == function && record.result == CUDA_SUCCESS) return record;
  }
  FAIL("no good record of " << function);
  return {};
}

}  // namespace

TEST_CASE("maps and errors are those that a driver gave for the same parameters") {
  std::map<std::string, int> checked;
  for (const Record& record : records()) {
    if (record.function == "replace") continue;
    CAPTURE(record.line);
    CUtensorMap map = untouched();
    CHECK_EQ(uint32_t(encode(record, record.function, &map)), record.result);
    CHECK((record.result ? same(map, untouched()) : same(map, record.words)));
    ++checked[record.function + (record.result ? " refused" : " encoded")];
  }
  CHECK_EQ(checked.size(), 6);
  for (const auto& [kind, count] : checked) CHECK_MESSAGE(count >= 40, kind);
}

TEST_CASE("an address is replaced as a driver does it, and nothing else") {
  int checked = 0;
  for (const Record& record : records()) {
    if (record.function != "replace") continue;
    CAPTURE(record.line);
    CUtensorMap map;
    std::memcpy(static_cast<void*>(&map), record.words.data(), sizeof map);
    if (record.result == CUDA_SUCCESS)
      CHECK_EQ(replace_tensor_map_address(&map, reinterpret_cast<void*>(uint64_t(16) << 30)), CUDA_SUCCESS);
    uint64_t address = uint32_t(record.lower[0]) | uint64_t(uint32_t(record.lower[1])) << 32;
    CHECK_EQ(uint32_t(replace_tensor_map_address(&map, reinterpret_cast<void*>(address))), record.result);
    CHECK(same(map, record.words));
    ++checked;
  }
  CHECK(checked >= 20);
}

TEST_CASE("missing arguments are refused, strides even where none is read") {
  Record one = find("tiled"), two = find("im2col");
  CUtensorMap map = untouched();
  auto type = as<CUtensorMapDataType>(one.type);
  auto interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  auto tiled = [&](CUtensorMap* out, const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                   const cuuint32_t* steps) {
    return encode_tensor_map_tiled(out, type, 1, nullptr, sizes, strides, box, steps, interleave,
                                   CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  const cuuint64_t sizes[] = {64}, strides[] = {0};
  const cuuint32_t box[] = {64}, steps[] = {1};
  CHECK_EQ(tiled(nullptr, sizes, strides, box, steps), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(tiled(&map, nullptr, strides, box, steps), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(tiled(&map, sizes, nullptr, box, steps), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(tiled(&map, sizes, strides, nullptr, steps), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(tiled(&map, sizes, strides, box, nullptr), CUDA_ERROR_INVALID_VALUE);
  CHECK(same(map, untouched()));
  CHECK_EQ(encode(two, "im2col", nullptr), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(encode(two, "wide", nullptr), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(replace_tensor_map_address(nullptr, reinterpret_cast<void*>(64)), CUDA_ERROR_INVALID_VALUE);
  CHECK_EQ(replace_tensor_map_address(&map, nullptr), CUDA_ERROR_INVALID_VALUE);
  CHECK(same(map, untouched()));
  CHECK_EQ(tiled(&map, sizes, strides, box, steps), CUDA_SUCCESS);  // no address is one to be replaced later
}

TEST_CASE("a map may lie at any address") {
  Record record = find("tiled");
  alignas(64) unsigned char room[64 + sizeof(CUtensorMap)];
  for (size_t offset : {8, 16, 32}) {
    auto* map = reinterpret_cast<CUtensorMap*>(room + offset);
    CHECK_EQ(encode(record, "tiled", map), CUDA_SUCCESS);
    CHECK_EQ(std::memcmp(room + offset, record.words.data(), sizeof(CUtensorMap)), 0);
  }
}
