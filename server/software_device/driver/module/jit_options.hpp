// The options that are passed with program images. Only the log buffers have an effect here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cuda.h>

namespace gpuwire::software_device {

class JitOptions {
 public:
  // Reads the options and empties their log buffers. Returns CUDA_ERROR_INVALID_VALUE if an array is missing.
  CUresult parse(unsigned count, const CUjit_option* options, void** values);
  // Writes as much as fits, zero-terminated, and stores the number of written bytes in the option's value, like
  // NVIDIA's driver.
  void write_error_log(std::string_view text);

 private:
  struct Buffer {
    char* text = nullptr;
    unsigned bytes = 0;
    void** size_value = nullptr;
  };
  static void fill(Buffer& buffer, std::string_view text);

  Buffer info_, error_;
};

// Returns a file's bytes followed by a zero, which ends a PTX text, or nothing if the file cannot be read.
std::optional<std::vector<char>> read_image_file(const char* path);

}  // namespace gpuwire::software_device
