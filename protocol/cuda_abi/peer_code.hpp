// The only place that converts a number that the other side sent to a CUresult.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

namespace gpuwire::cuda_abi {

// The value for an unknown code: a newer server's driver has more codes, and a hostile server sends any number. Such a
// number must not become a CUresult, because the program, and functions that look up codes, may receive only CUDA's
// values.
inline constexpr CUresult kUnknownPeerCode = CUDA_ERROR_UNKNOWN;

namespace peer_code {

inline constexpr int32_t kCodesEnd = 1000;

consteval std::array<bool, kCodesEnd> known_codes() {
  struct Row {
    int32_t code;
    const char* name;
    const char* text;
  };
  constexpr Row kRows[] = {
#include "protocol/cuda_abi/error_text.inc"
  };
  std::array<bool, kCodesEnd> known{};
  for (const Row& row : kRows) known[size_t(row.code)] = true;
  return known;
}
inline constexpr auto kKnown = known_codes();

}  // namespace peer_code

constexpr CUresult from_peer(int32_t code) noexcept {
  if (code == CUDA_SUCCESS) [[likely]]
    return CUDA_SUCCESS;
  bool known = code > 0 && code < peer_code::kCodesEnd && peer_code::kKnown[size_t(code)];
  return known ? CUresult(code) : kUnknownPeerCode;
}

}  // namespace gpuwire::cuda_abi
