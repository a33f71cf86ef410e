#include "protocol/digest/blake3_kernel.hpp"

namespace gpuwire::digest {

void compress_16(const Inputs& inputs, std::byte* out) noexcept { compress<16>(inputs, out); }

}  // namespace gpuwire::digest
