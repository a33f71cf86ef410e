// A managed variable of a library has one address, whatever context is current, and kernels of every context see the
// same memory. With one device only, the second context is made on it.
#include "module_example.hpp"

int main(int argc, char** argv) {
  std::string path = module_path(argc, argv);
  CHECK_DRIVER(cuInit(0));
  CUlibrary library;
  CHECK_DRIVER(cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel count_up, read_counter;
  CHECK_DRIVER(cuLibraryGetKernel(&count_up, library, "count_up"));
  CHECK_DRIVER(cuLibraryGetKernel(&read_counter, library, "read_counter"));

  int devices = 0;
  CHECK_DRIVER(cuDeviceGetCount(&devices));
  CUdeviceptr addresses[2];
  int values[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    CUdevice device;
    CHECK_DRIVER(cuDeviceGet(&device, devices > 1 ? i : 0));
    CUcontext context;
    CHECK_DRIVER(cuDevicePrimaryCtxRetain(&context, device));
    CHECK_DRIVER(cuCtxSetCurrent(context));
    size_t bytes = 0;
    CHECK_DRIVER(cuLibraryGetManaged(&addresses[i], &bytes, library, "shared_counter"));
    CHECK_DRIVER(cuLaunchKernel((CUfunction)count_up, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    CUdeviceptr out;
    CHECK_DRIVER(cuMemAlloc(&out, sizeof(int)));
    void* parameters[] = {&out};
    CHECK_DRIVER(cuLaunchKernel((CUfunction)read_counter, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    CHECK_DRIVER(cuMemcpyDtoH(&values[i], out, sizeof(int)));
    CHECK_DRIVER(cuMemFree(out));
    CHECK_DRIVER(cuCtxSynchronize());
    std::printf("context %d: %zu bytes, counter %d\n", i, bytes, values[i]);
  }
  bool right = addresses[0] == addresses[1] && addresses[0] != 0 && values[0] == 41 && values[1] == 42;
  std::printf("the address is %s\n", addresses[0] == addresses[1] ? "the same" : "not the same");
  CHECK_DRIVER(cuLibraryUnload(library));
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
