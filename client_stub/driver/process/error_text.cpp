#include "client_stub/driver/process/error_text.hpp"

#include <algorithm>
#include <iterator>

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

}  // namespace gpuwire::client
