#include <string>
#include <vector>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

namespace {

const char* const kManagedPtx = R"(
.version 7.0
.target sm_75
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 shared_value = 7;
.visible .global .align 4 .u32 own_value = 3;
.visible .entry bump()
{
  .reg .b32 %r<3>;
  ld.global.u32 %r1, [shared_value];
  add.u32 %r2, %r1, 1;
  st.global.u32 [shared_value], %r2;
  ret;
}
)";

CUlibrary load_library(const char* ptx) {
  CUlibrary out = nullptr;
  REQUIRE(cuLibraryLoadData(&out, ptx, nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  return out;
}

CUkernel kernel(CUlibrary library, const char* name) {
  CUkernel out = nullptr;
  REQUIRE(cuLibraryGetKernel(&out, library, name) == CUDA_SUCCESS);
  return out;
}

}  // namespace

TEST_CASE("A kernel is launched in any context, under its own handle") {
  const CUlibrary library = load_library(kPtx);
  const CUkernel add_one = kernel(library, "add_one");
  for (int device = 0; device < kDevices; ++device) {
    const CurrentContext context(device);
    const CUdeviceptr word = allocate(4);
    write(word, {1});
    CHECK(launch_add_one(reinterpret_cast<CUfunction>(add_one), word) == CUDA_SUCCESS);
    CUfunction as_function = nullptr;
    CHECK(cuKernelGetFunction(&as_function, add_one) == CUDA_SUCCESS);
    CHECK(launch_add_one(as_function, word) == CUDA_SUCCESS);
    CHECK(read(word, 1)[0] == 3);
    CUmodule module = nullptr;
    CHECK(cuLibraryGetModule(&module, library) == CUDA_SUCCESS);
    CHECK(function(module, "add_one") == as_function);
    CHECK(cuModuleUnload(module) == CUDA_ERROR_NOT_PERMITTED);
  }
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
  CHECK(cuLibraryUnload(library) == CUDA_ERROR_INVALID_HANDLE);
  const CurrentContext context;
  CHECK(launch_add_one(reinterpret_cast<CUfunction>(add_one), allocate(4)) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("Managed variables are one for all contexts, others each context's own") {
  const CUlibrary library = load_library(kManagedPtx);
  CUdeviceptr managed = 0, global[kDevices] = {};
  size_t bytes = 0;
  REQUIRE(cuLibraryGetManaged(&managed, &bytes, library, "shared_value") == CUDA_SUCCESS);
  CHECK(bytes == 4);
  CHECK(*reinterpret_cast<unsigned*>(managed) == 7);
  CHECK(cuLibraryGetManaged(&managed, &bytes, library, "own_value") == CUDA_ERROR_NOT_FOUND);
  for (int device = 0; device < kDevices; ++device) {
    const CurrentContext context(device);
    CHECK(launch(reinterpret_cast<CUfunction>(kernel(library, "bump")), nullptr) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(cuLibraryGetGlobal(&global[device], nullptr, library, "own_value") == CUDA_SUCCESS);
    CUdeviceptr again = 0;
    CHECK(cuLibraryGetGlobal(&again, nullptr, library, "shared_value") == CUDA_SUCCESS);
    CHECK(again == managed);
  }
  CHECK(*reinterpret_cast<unsigned*>(managed) == 9);
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
}

TEST_CASE("Kernels tell their library, name, parameters and attributes") {
  const CUlibrary library = load_library(kPtx);
  unsigned count = 0;
  CHECK(cuLibraryGetKernelCount(&count, library) == CUDA_SUCCESS);
  CHECK(count == 7);
  std::vector<CUkernel> all(count);
  CHECK(cuLibraryEnumerateKernels(all.data(), count, library) == CUDA_SUCCESS);
  const CUkernel fill = kernel(library, "fill");
  CUlibrary owner = nullptr;
  CHECK(cuKernelGetLibrary(&owner, fill) == CUDA_SUCCESS);
  CHECK(owner == library);
  const char* name = nullptr;
  CHECK(cuKernelGetName(&name, fill) == CUDA_SUCCESS);
  CHECK(std::string(name) == "fill");
  size_t offset = 0, bytes = 0;
  CHECK(cuKernelGetParamInfo(fill, 2, &offset, &bytes) == CUDA_ERROR_INVALID_CONTEXT);
  const CurrentContext context;
  CHECK(cuKernelGetParamInfo(fill, 2, &offset, &bytes) == CUDA_SUCCESS);
  CHECK(offset == 12);
  CHECK(bytes == 4);
  CHECK(cuKernelGetParamInfo(fill, 3, &offset, &bytes) == CUDA_ERROR_INVALID_VALUE);
  int value = 0;
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel(library, "shared_sum"), 1) ==
        CUDA_SUCCESS);
  CHECK(value == 1024);
  CHECK(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 60000, fill, 1) == CUDA_SUCCESS);
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, fill, 1) == CUDA_SUCCESS);
  CHECK(value == 60000);
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, fill, 0) == CUDA_SUCCESS);
  CHECK(value == 49152);
  CHECK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, fill, 9) == CUDA_ERROR_INVALID_DEVICE);
  CUkernel missing = nullptr;
  CHECK(cuLibraryGetKernel(&missing, library, "nothing") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS);
}
