#include "client_stub/driver/call/error_text.hpp"

#include <algorithm>
#include <iterator>

#include "client/custom.hpp"

namespace gpuwire::client {
namespace {

struct Row {
  int code;
  const char* name;
  const char* text;
};
constexpr Row kRows[] = {
#include "protocol/cuda_abi/error_text.inc"
};
static_assert(std::is_sorted(std::begin(kRows), std::end(kRows),
                             [](const Row& a, const Row& b) { return a.code < b.code; }));

const Row* find(CUresult result) noexcept {
  const Row* row = std::lower_bound(std::begin(kRows), std::end(kRows), int(result),
                                    [](const Row& a, int code) { return a.code < code; });
  return row != std::end(kRows) && row->code == int(result) ? row : nullptr;
}

}  // namespace

const char* error_name(CUresult result) noexcept {
  const Row* row = find(result);
  return row ? row->name : nullptr;
}

const char* error_string(CUresult result) noexcept {
  const Row* row = find(result);
  return row ? row->text : nullptr;
}

// An unknown number is CUDA_ERROR_INVALID_VALUE, and the pointer is set to null (CUDA driver API, Error Handling).
CUresult custom::cuGetErrorName(CUresult error, const char** name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = error_name(error);
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult custom::cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = error_string(error);
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpuwire::client
