// Files that the program names to the driver: read on the client, where its paths mean something.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

namespace gpuwire::client {

// CUDA_ERROR_FILE_NOT_FOUND if the file cannot be opened, CUDA_ERROR_INVALID_IMAGE if it cannot be a program (empty, a
// folder, above wire::kModuleBytesMax), CUDA_ERROR_OUT_OF_MEMORY.
CUresult read_program_file(const char* path, std::vector<uint8_t>& contents);

}  // namespace gpuwire::client
