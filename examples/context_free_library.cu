// Context-independent loading: one library, one kernel handle, launched as it is on the primary contexts of both
// devices. With one device only, that device is used twice.
#include "module_example.hpp"

int main(int argc, char** argv) {
  std::string path = module_path(argc, argv);
  CHECK_DRIVER(cuInit(0));
  CUlibrary library;
  CHECK_DRIVER(cuLibraryLoadFromFile(&library, path.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel;
  CHECK_DRIVER(cuLibraryGetKernel(&kernel, library, "scale"));

  int devices = 0;
  CHECK_DRIVER(cuDeviceGetCount(&devices));
  bool right = true;
  for (int i = 0; i < 2; ++i) {
    CUdevice device;
    CHECK_DRIVER(cuDeviceGet(&device, devices > 1 ? i : 0));
    CUcontext context;
    CHECK_DRIVER(cuDevicePrimaryCtxRetain(&context, device));
    CHECK_DRIVER(cuCtxSetCurrent(context));
    bool scaled = scale_is_right((CUfunction)kernel, 3.0f + float(i));
    std::printf("primary context %d: %s\n", i, scaled ? "scaled" : "wrong");
    right &= scaled;
    CHECK_DRIVER(cuDevicePrimaryCtxRelease(device));
  }
  CHECK_DRIVER(cuLibraryUnload(library));
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
