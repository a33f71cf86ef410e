#include "server/software_device/driver/module/jit_options.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

namespace gpuwire::software_device {

CUresult JitOptions::parse(unsigned count, const CUjit_option* options, void** values) {
  if (count != 0 && (options == nullptr || values == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < count; ++i) {
    const auto number = static_cast<unsigned>(reinterpret_cast<uintptr_t>(values[i]));
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER: info_.text = static_cast<char*>(values[i]); break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        info_.bytes = number;
        info_.size_value = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER: error_.text = static_cast<char*>(values[i]); break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        error_.bytes = number;
        error_.size_value = &values[i];
        break;
      default: break;  // options of compilation, which change no result
    }
  }
  fill(info_, {});
  fill(error_, {});
  return CUDA_SUCCESS;
}

void JitOptions::write_error_log(std::string_view text) { fill(error_, text); }

void JitOptions::fill(Buffer& buffer, std::string_view text) {
  size_t written = 0;
  if (buffer.text != nullptr && buffer.bytes != 0) {
    const size_t most = buffer.bytes - 1, fits = std::min(text.size(), most);
    text.copy(buffer.text, fits);
    buffer.text[fits] = 0;
    written = fits == most ? buffer.bytes : fits;  // for a full buffer, its complete size (measured on driver 580)
  }
  if (buffer.size_value != nullptr) {
    *buffer.size_value = reinterpret_cast<void*>(written);
  }
}

std::optional<std::vector<char>> read_image_file(const char* path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  bytes.push_back(0);
  return bytes;
}

}  // namespace gpuwire::software_device
