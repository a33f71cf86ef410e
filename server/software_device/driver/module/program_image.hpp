// From the bytes given to cuModuleLoadData or cuLibraryLoadData to a compiled program.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <cuda.h>
#include <tl/expected.hpp>

#include "server/software_device/execution/engine.hpp"

namespace gpuwire::software_device {

struct ImageError {
  CUresult result = CUDA_ERROR_INVALID_IMAGE;
  std::string log;  // for the JIT error log
};

// The image is a fat binary (with or without its wrapper), a cubin or PTX text, in memory of our own process; its
// header gives its end. CUDA_ERROR_NO_BINARY_FOR_GPU when it holds no PTX for this device, CUDA_ERROR_INVALID_IMAGE
// when it is none of these, CUDA_ERROR_INVALID_PTX when the PTX is wrong or uses features that the engine does not
// have.
tl::expected<std::shared_ptr<const Program>, ImageError> load_image(const void* image);

// An image of several PTX texts that are to be linked when it is loaded: they follow each other, with lines between
// that are comments to PTX.
std::string linked_image(const std::vector<std::string>& texts);

}  // namespace gpuwire::software_device
