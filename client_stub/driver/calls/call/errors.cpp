// Names and texts of errors, and the error log.
#include <cstdio>
#include <cstring>
#include <string>

#include "client/custom.hpp"
#include "client_stub/driver/process/error_log.hpp"
#include "client_stub/driver/process/error_text.hpp"

namespace gpuwire::client::hand {

// For an unknown number the call returns CUDA_ERROR_INVALID_VALUE and sets the pointer to null (CUDA driver API, Error
// Handling).
CUresult cuGetErrorName(CUresult error, const char** name) {
  if (!name) return CUDA_ERROR_INVALID_VALUE;
  *name = error_name(error);
  return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  if (!text) return CUDA_ERROR_INVALID_VALUE;
  *text = error_string(error);
  return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void* userData, CUlogsCallbackHandle* callback_out) {
  uint64_t handle = error_log().register_callback(callbackFunc, userData);
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  if (callback_out) *callback_out = reinterpret_cast<CUlogsCallbackHandle>(handle);
  return CUDA_SUCCESS;
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback) {
  return error_log().unregister_callback(reinterpret_cast<uint64_t>(callback)) ? CUDA_SUCCESS
                                                                               : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsCurrent(CUlogIterator* iterator_out, unsigned int) {
  if (!iterator_out) return CUDA_ERROR_INVALID_VALUE;
  *iterator_out = error_log().next();
  return CUDA_SUCCESS;
}

CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* pathToFile, unsigned int) {
  if (!pathToFile) return CUDA_ERROR_INVALID_VALUE;
  std::FILE* file = std::fopen(pathToFile, "we");
  if (!file) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  error_log().dump(iterator, SIZE_MAX, text);
  bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  bool closed = std::fclose(file) == 0;
  return written && closed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size, unsigned int) {
  if (!buffer || !size || *size == 0) return CUDA_ERROR_INVALID_VALUE;
  std::string text;
  bool fits = error_log().dump(iterator, *size, text);
  std::memcpy(buffer, text.c_str(), text.size() + 1);
  *size = text.size();
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace gpuwire::client::hand
