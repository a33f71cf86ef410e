// Converts the bytes given to cuModuleLoadData or cuLibraryLoadData to a compiled program.
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

// The image is a fat binary (with or without its wrapper), a cubin or PTX text, in this process's memory; its header
// gives its length. Errors: CUDA_ERROR_NO_BINARY_FOR_GPU if it contains no PTX for this device,
// CUDA_ERROR_INVALID_IMAGE if it is none of these, CUDA_ERROR_INVALID_PTX if the PTX is invalid or uses features that
// the engine does not support.
tl::expected<std::shared_ptr<const Program>, ImageError> load_image(const void* image);

// Returns an image of several PTX texts that are linked when it is loaded: the texts, separated by lines that are PTX
// comments.
std::string linked_image(const std::vector<std::string>& texts);

}  // namespace gpuwire::software_device
