#include "protocol/digest/blake3_kernel.hpp"

namespace gpuwire::digest {

void compress_4(const Inputs& inputs, std::byte* out) noexcept { compress<4>(inputs, out); }

}  // namespace gpuwire::digest
