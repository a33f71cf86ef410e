#include <algorithm>
#include <string>

#include "test/server/software_device/driver/fixture.hpp"

extern "C" void gpuwire_software_set_output(void (*sink)(void* user, int fd, const char* text, size_t bytes),
                                            void* user);

using namespace gpuwire::software_device::test;

namespace {

struct Captured {
  std::string out, err;
  Captured() { gpuwire_software_set_output(take, this); }
  ~Captured() { gpuwire_software_set_output(nullptr, nullptr); }
  static void take(void* self, int fd, const char* text, size_t bytes) {
    auto& captured = *static_cast<Captured*>(self);
    (fd == 1 ? captured.out : captured.err).append(text, bytes);
  }
};

}  // namespace

TEST_CASE("What kernels print appears when the program synchronises, and can be sent elsewhere") {
  const CurrentContext context;
  Captured captured;
  const CUfunction say = function(load(), "say");
  for (unsigned n = 1; n <= 3; ++n) {
    void* parameters[] = {&n};
    CHECK(launch(say, parameters) == CUDA_SUCCESS);
  }
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(captured.out == "n=1\nn=2\nn=3\n");
  CHECK(captured.err.empty());
}

TEST_CASE("Of more output than the buffer holds the oldest is lost") {
  const CurrentContext context;
  Captured captured;
  CHECK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 12) == CUDA_SUCCESS);
  const CUfunction say = function(load(), "say");
  for (unsigned n = 1; n <= 5; ++n) {
    void* parameters[] = {&n};
    CHECK(launch(say, parameters) == CUDA_SUCCESS);
  }
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(captured.out == "n=3\nn=4\nn=5\n");
}

TEST_CASE("A fault is explained on standard error") {
  Captured captured;
  const CurrentContext context;
  CHECK(launch(function(load(), "die"), nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(captured.err.find("die") != std::string::npos);
}

TEST_CASE("What is not offered is named, once") {
  const CurrentContext context;
  Captured captured;
  const char* const ptx =
      ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() { .reg .b32 %r<2>; multimem.red.add.u32 "
      "[%r0], %r1; ret; }\n";
  CUmodule module = nullptr;
  for (int i = 0; i < 2; ++i) {
    CHECK(cuModuleLoadData(&module, ptx) == CUDA_ERROR_INVALID_PTX);
  }
  const std::string named = captured.err;
  CHECK(named.starts_with("gpuwire software device: ptx:4: error: instruction 'multimem'"));
  CHECK(std::count(named.begin(), named.end(), '\n') == 1);
  CHECK(cuMemHostRegister(&module, 8, CU_MEMHOSTREGISTER_IOMEMORY) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(captured.err.find("CU_MEMHOSTREGISTER_IOMEMORY") != std::string::npos);
  CHECK(cuGraphicsUnregisterResource(nullptr) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(captured.err.find("gpuwire software device: cuGraphicsUnregisterResource is not supported\n") !=
        std::string::npos);
}

TEST_CASE("A mistake in a text is the program's own: only its log tells of it") {
  const CurrentContext context;
  Captured captured;
  CUmodule module = nullptr;
  CHECK(cuModuleLoadData(&module,
                         ".version 8.0\n.target sm_75\n.address_size 64\n.visible .entry k() { nonsense.b32 1; }\n") ==
        CUDA_ERROR_INVALID_PTX);
  CHECK(captured.err.empty());
}
