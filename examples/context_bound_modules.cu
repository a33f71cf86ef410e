// Context-dependent loading: the same module is loaded once into a context of each of two devices, and each context has
// its own function. With one device only, both contexts are made on it.
#include "module_example.hpp"

int main(int argc, char** argv) {
  std::string path = module_path(argc, argv);
  CHECK_DRIVER(cuInit(0));
  int devices = 0;
  CHECK_DRIVER(cuDeviceGetCount(&devices));

  CUcontext contexts[2];
  CUmodule modules[2];
  CUfunction functions[2];
  for (int i = 0; i < 2; ++i) {
    CUdevice device;
    CHECK_DRIVER(cuDeviceGet(&device, devices > 1 ? i : 0));
    CHECK_DRIVER(cuCtxCreate(&contexts[i], nullptr, 0, device));
    CHECK_DRIVER(cuModuleLoad(&modules[i], path.c_str()));
    CHECK_DRIVER(cuModuleGetFunction(&functions[i], modules[i], "scale"));
    CUcontext popped;
    CHECK_DRIVER(cuCtxPopCurrent(&popped));
  }
  bool right = functions[0] != functions[1];
  for (int i = 0; i < 2; ++i) {
    CHECK_DRIVER(cuCtxPushCurrent(contexts[i]));
    bool scaled = scale_is_right(functions[i], 2.0f + float(i));
    std::printf("context %d: %s\n", i, scaled ? "scaled" : "wrong");
    right &= scaled;
    CHECK_DRIVER(cuModuleUnload(modules[i]));
    CUcontext popped;
    CHECK_DRIVER(cuCtxPopCurrent(&popped));
    CHECK_DRIVER(cuCtxDestroy(contexts[i]));
  }
  std::printf("%s\n", right ? "PASSED" : "FAILED");
  return right ? 0 : 1;
}
