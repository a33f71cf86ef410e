// The driver's version before cuInit, which must equal argument 1 (such as 12040), and whose query must not prevent
// fork(). With another argument the program ends without cuInit.
#include <sys/wait.h>
#include <unistd.h>

#include "../driver_check.hpp"

namespace {

constexpr int kFetchSince = 13000;  // cuMemPrefetchBatchAsync

bool use_device() {
  retain_primary();
  CUdeviceptr memory;
  unsigned word = 0;
  OK(cuMemAlloc(&memory, sizeof word));
  OK(cuMemsetD32(memory, 42, 1));
  OK(cuMemcpyDtoH(&word, memory, sizeof word));
  int version = 0;
  OK(cuDriverGetVersion(&version));
  std::printf("version %d, word %u\n", version, word);
  return word == 42;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 1;
  const int expected = std::atoi(arguments[1]);
  int version = 0;
  OK(cuDriverGetVersion(&version));
  DEMAND(version == expected);
  int devices = 0;
  FAILS(cuDeviceGetCount(&devices), CUDA_ERROR_NOT_INITIALIZED);
  if (count > 2) {
    std::printf("PASSED\n");
    return 0;
  }

  CUdriverProcAddressQueryResult status{};
  void* function = nullptr;
  OK(cuGetProcAddress("cuMemAlloc", &function, expected, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  DEMAND(function != nullptr && status == CU_GET_PROC_ADDRESS_SUCCESS);
  FAILS(cuGetProcAddress("cuMemAlloc", &function, expected + 10, CU_GET_PROC_ADDRESS_DEFAULT, &status),
        CUDA_ERROR_INVALID_VALUE);
  // Up to the next major version there is no message: such programs run.
  std::fflush(stdout);
  std::fprintf(stderr, "newer by a major version:\n");
  FAILS(cuGetProcAddress("cuMemAlloc", &function, expected / 1000 * 1000 + 1000, CU_GET_PROC_ADDRESS_DEFAULT, &status),
        CUDA_ERROR_INVALID_VALUE);
  OK(cuGetProcAddress("cuMemPrefetchBatchAsync", &function, expected, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  DEMAND((function != nullptr) == (expected >= kFetchSince));

  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) _exit(use_device() ? 0 : 1);
  int ended = -1;
  waitpid(child, &ended, 0);
  DEMAND(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  DEMAND(use_device());
  std::printf("PASSED\n");
  return 0;
}
