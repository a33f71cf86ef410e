// The options that come with program images: here only the log buffers matter.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cuda.h>

namespace gpuwire::software_device {

class JitOptions {
 public:
  // Reads the options and empties the log buffers among them. CUDA_ERROR_INVALID_VALUE when an array is missing.
  CUresult parse(unsigned count, const CUjit_option* options, void** values);
  // Writes as much as fits, terminated by zero, and the number of bytes written into the option's value, as the driver
  // does.
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

// A file's bytes with a zero behind them, which ends a PTX text; nothing when it cannot be read.
std::optional<std::vector<char>> read_image_file(const char* path);

}  // namespace gpuwire::software_device
