#include "protocol/cuda_abi/peer_code.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <set>

namespace gpuwire::cuda_abi {
namespace {

const std::set<int32_t>& codes_of_cuda() {
  static const std::set<int32_t> kCodes = [] {
    struct Row {
      int32_t code;
      const char* name;
      const char* text;
    };
    const Row rows[] = {
#include "protocol/cuda_abi/error_text.inc"
    };
    std::set<int32_t> codes;
    for (const Row& row : rows) codes.insert(row.code);
    return codes;
  }();
  return kCodes;
}

TEST_CASE("every code of CUDA's that a peer sends is that result") {
  CHECK(codes_of_cuda().size() > 90);
  for (int32_t code : codes_of_cuda()) CHECK(int32_t(from_peer(code)) == code);
  static_assert(from_peer(CUDA_ERROR_EXTERNAL_DEVICE) == CUDA_ERROR_EXTERNAL_DEVICE);
  static_assert(from_peer(0) == CUDA_SUCCESS);
}

TEST_CASE("every other number of a peer is one named error") {
  for (int32_t code = -2000; code < 3000; ++code) {
    if (!codes_of_cuda().contains(code)) CHECK(from_peer(code) == kUnknownPeerCode);
  }
  for (int32_t code : {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), 0x10000, -1}) {
    CHECK(from_peer(code) == CUDA_ERROR_UNKNOWN);
  }
}

}  // namespace
}  // namespace gpuwire::cuda_abi
