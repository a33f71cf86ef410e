#include <algorithm>
#include <string>
#include <vector>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

TEST_CASE("A module's functions and variables are found by name") {
  const CurrentContext context;
  const CUmodule module = load();
  CUfunction found = nullptr;
  CHECK(cuModuleGetFunction(&found, module, "no_such_kernel") == CUDA_ERROR_NOT_FOUND);
  CHECK(function(module, "fill") == function(module, "fill"));
  CUdeviceptr address = 0;
  size_t bytes = 0;
  CHECK(cuModuleGetGlobal(&address, &bytes, module, "counter") == CUDA_SUCCESS);
  CHECK(bytes == 4);
  CHECK(read(address, 1)[0] == 5);
  CHECK(cuModuleGetGlobal(&address, &bytes, module, "limits") == CUDA_SUCCESS);
  CHECK(bytes == 16);
  CHECK(read(address, 4) == std::vector<unsigned>{1, 2, 3, 4});
  CHECK(cuMemFree(address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuModuleGetGlobal(&address, &bytes, module, "no_such_variable") == CUDA_ERROR_NOT_FOUND);
  unsigned count = 0;
  CHECK(cuModuleGetFunctionCount(&count, module) == CUDA_SUCCESS);
  CHECK(count == 7);
  std::vector<CUfunction> all(count);
  CHECK(cuModuleEnumerateFunctions(all.data(), count, module) == CUDA_SUCCESS);
  CHECK(std::find(all.begin(), all.end(), function(module, "fill")) != all.end());
}

TEST_CASE("Each load of a module has variables of its own") {
  const CurrentContext context;
  const CUmodule first = load(), second = load();
  CUdeviceptr a = 0, b = 0;
  REQUIRE(cuModuleGetGlobal(&a, nullptr, first, "counter") == CUDA_SUCCESS);
  REQUIRE(cuModuleGetGlobal(&b, nullptr, second, "counter") == CUDA_SUCCESS);
  CHECK(a != b);
  write(a, {77});
  CHECK(read(b, 1)[0] == 5);
}

TEST_CASE("An unloaded module's handles are invalid and its memory is gone") {
  const CurrentContext context;
  const CUmodule module = load();
  const CUfunction die = function(module, "die");
  CUdeviceptr address = 0;
  REQUIRE(cuModuleGetGlobal(&address, nullptr, module, "counter") == CUDA_SUCCESS);
  CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuModuleUnload(module) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(launch(die, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuMemsetD32(address, 0, 1) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("Images that are no programs for this device are told apart") {
  const CurrentContext context;
  CUmodule module = nullptr;
  CHECK(cuModuleLoadData(&module, "this is no program") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(cuModuleLoadData(&module, "") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(cuModuleLoadData(&module, nullptr) == CUDA_ERROR_INVALID_VALUE);
  const char cubin[64] = {0x7F, 'E', 'L', 'F', 2, 1, 1};
  CHECK(cuModuleLoadData(&module, cubin) == CUDA_ERROR_NO_BINARY_FOR_GPU);
  const unsigned char damaged[16] = {0x50, 0xED, 0x55, 0xBA, 9, 0, 16, 0};
  CHECK(cuModuleLoadData(&module, damaged) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(cuModuleLoad(&module, "/no/such/file") == CUDA_ERROR_FILE_NOT_FOUND);
}

TEST_CASE("PTX with an error is refused, and the error log says where") {
  const CurrentContext context;
  const std::string ptx =
      ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry k() {\n  frobnicate.u32 %r1;\n  ret;\n}\n";
  char log[200];
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof log)};
  CUmodule module = nullptr;
  CHECK(cuModuleLoadDataEx(&module, ptx.c_str(), 2, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(std::string(log).find("frobnicate") != std::string::npos);
  CHECK(reinterpret_cast<size_t>(values[1]) == std::string(log).size());
  char tiny[4] = {'x', 'x', 'x', 'x'};
  values[0] = tiny;
  values[1] = reinterpret_cast<void*>(sizeof tiny);
  CHECK(cuModuleLoadDataEx(&module, ptx.c_str(), 2, options, values) == CUDA_ERROR_INVALID_PTX);
  CHECK(tiny[3] == 0);
}
