// The driver's error log: callbacks of the program, dumps to memory and to a file.
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../driver_check.hpp"

namespace {

struct Heard {
  int messages = 0;
  std::string last;
  CUlogLevel level = CU_LOG_LEVEL_WARNING;
};

void CUDA_CB hear(void* data, CUlogLevel level, char* message, size_t length) {
  auto* heard = static_cast<Heard*>(data);
  ++heard->messages;
  heard->last.assign(message, length);
  heard->level = level;
}

}  // namespace

int main(int argc, char** argv) {
  bool show = argc > 1;
  retain_primary();
  Heard one, two;
  CUlogsCallbackHandle first, second;
  OK(cuLogsRegisterCallback(hear, &one, &first));
  OK(cuLogsRegisterCallback(hear, &two, &second));
  FAILS(cuLogsRegisterCallback(nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUlogIterator here = 0;
  OK(cuLogsCurrent(&here, 0));

  // Causes an error of the call itself.
  CUdeviceptr memory;
  CUmodule module;
  FAILS(cuMemAlloc(&memory, 0), CUDA_ERROR_INVALID_VALUE);
  int after_first = one.messages;
  if (show) std::printf("after cuMemAlloc: %d '%s' level %d\n", one.messages, one.last.c_str(), int(one.level));
  FAILS(cuModuleLoadData(&module, "no text at all"), CUDA_ERROR_INVALID_IMAGE);
  if (show) std::printf("after cuModuleLoadData: %d '%s' level %d\n", one.messages, one.last.c_str(), int(one.level));
  FAILS(cuMemAlloc(&memory, size_t(1) << 46), CUDA_ERROR_OUT_OF_MEMORY);
  if (show)
    std::printf("after the large cuMemAlloc: %d '%s' level %d\n", one.messages, one.last.c_str(), int(one.level));
  DEMAND(one.messages == two.messages);
  DEMAND(one.messages >= after_first);
  DEMAND(one.messages > 0 && one.level == CU_LOG_LEVEL_ERROR && !one.last.empty());

  std::vector<char> buffer(30000);
  size_t bytes = buffer.size();
  CUlogIterator from = here;
  OK(cuLogsDumpToMemory(&from, buffer.data(), &bytes, 0));
  DEMAND(bytes > 0 && bytes < buffer.size() && std::strlen(buffer.data()) == bytes);
  DEMAND(std::strstr(buffer.data(), one.last.c_str()));
  if (show) std::printf("--- %zu bytes, iterator %u -> %u\n%s---\n", bytes, here, from, buffer.data());
  size_t nothing = buffer.size();
  OK(cuLogsDumpToMemory(&from, buffer.data(), &nothing, 0));
  DEMAND(nothing == 0);
  size_t small = 10;
  if (show) {
    CUresult result = cuLogsDumpToMemory(nullptr, buffer.data(), &small, 0);
    std::printf("dump to 10 bytes: %d, %zu bytes\n", int(result), small);
    small = 300;
    result = cuLogsDumpToMemory(nullptr, buffer.data(), &small, 0);
    std::printf("dump to 300 bytes: %d, %zu bytes '%s'\n", int(result), small, buffer.data());
  }

  std::string path = "/tmp/gpuwire_log_" + std::to_string(long(getpid()));
  from = here;
  OK(cuLogsDumpToFile(&from, path.c_str(), 0));
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  remove(path.c_str());
  DEMAND(text.find(one.last) != std::string::npos);
  if (show) std::printf("--- file\n%s---\n", text.c_str());
  FAILS(cuLogsDumpToFile(nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);

  OK(cuLogsUnregisterCallback(second));
  int before = two.messages;
  FAILS(cuMemAlloc(&memory, 0), CUDA_ERROR_INVALID_VALUE);
  FAILS(cuMemAlloc(&memory, size_t(1) << 46), CUDA_ERROR_OUT_OF_MEMORY);
  DEMAND(two.messages == before && one.messages > before);
  OK(cuLogsUnregisterCallback(first));
  std::printf("PASSED\n");
  return 0;
}
