// The functions that the device provides to device code: vprintf, __assertfail, malloc, free, cudaGraphSetConditional.
#pragma once

#include "server/software_device/execution/linker.hpp"
#include "server/software_device/execution/op.hpp"

namespace gpuwire::software_device {

// The operands are the op's results, then its arguments, each a register of the width that the function declares.
Handler intrinsic_handler(Intrinsic intrinsic);

struct IntrinsicShape {
  uint32_t result_bytes;
  uint32_t argument_count;
  uint32_t argument_bytes[5];
};
const IntrinsicShape& intrinsic_shape(Intrinsic intrinsic);

}  // namespace gpuwire::software_device
