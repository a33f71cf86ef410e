#include "protocol/digest/blake3_kernel.hpp"

namespace gpuwire::digest {

void compress_8(const Inputs& inputs, std::byte* out) noexcept { compress<8>(inputs, out); }

}  // namespace gpuwire::digest
