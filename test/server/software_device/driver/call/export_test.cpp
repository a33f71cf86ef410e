#include <dlfcn.h>

#include <fstream>
#include <sstream>
#include <string>

#include "test/server/software_device/driver/fixture.hpp"

TEST_CASE("Every symbol that cuGetProcAddress may hand out is exported") {
  std::ifstream file(GPUWIRE_PROC_ADDRESS_RULES);
  REQUIRE(file.good());
  int checked = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') {
      continue;
    }
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (std::string word; words >> word;) {
      const size_t suffix = word.find_first_not_of("0123456789");
      const std::string symbol = word == "|" ? name : name + (suffix == std::string::npos ? "" : word.substr(suffix));
      CAPTURE(symbol);
      CHECK(dlsym(RTLD_DEFAULT, symbol.c_str()) != nullptr);
      ++checked;
    }
  }
  CHECK(checked > 600);
}

TEST_CASE("cuGetProcAddress gives the exported functions, by version and by default stream") {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status{};
  CHECK(cuGetProcAddress("cuMemAlloc", &function, 13000, CU_GET_PROC_ADDRESS_DEFAULT, &status) == CUDA_SUCCESS);
  CHECK(function == dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  CHECK(status == CU_GET_PROC_ADDRESS_SUCCESS);
  CHECK(cuGetProcAddress("cuLaunchKernel", &function, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status) ==
        CUDA_SUCCESS);
  CHECK(function == dlsym(RTLD_DEFAULT, "cuLaunchKernel_ptsz"));
  CHECK(cuGetProcAddress("", &function, 0, 0, &status) == CUDA_SUCCESS);
  CHECK(function == nullptr);
  CHECK(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  CHECK(cuGetProcAddress("cuMemAlloc", &function, 13010, 0, &status) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("The tables that cudart demands are there, and others are refused") {
  const CUuuid integrity{{'\xD4', '\x08', '\x20', '\x55', '\xBD', '\xE6', '\x70', '\x4B', '\x8D', '\x34', '\xBA',
                          '\x12', '\x3C', '\x66', '\xE1', '\xF2'}};
  const CUuuid unknown{};
  const void* table = nullptr;
  CHECK(cuGetExportTable(&table, &integrity) == CUDA_SUCCESS);
  CHECK(table != nullptr);
  CHECK(cuGetExportTable(&table, &unknown) == CUDA_ERROR_INVALID_VALUE);
  CHECK(table == nullptr);
}

TEST_CASE("Per-thread functions mean the calling thread's stream by NULL") {
  const gpuwire::software_device::test::CurrentContext context;
  const auto get_id =
      reinterpret_cast<CUresult (*)(CUstream, unsigned long long*)>(dlsym(RTLD_DEFAULT, "cuStreamGetId_ptsz"));
  REQUIRE(bool(get_id));
  unsigned long long per_thread = 0, by_null = 0, legacy = 0;
  CHECK(cuStreamGetId(CU_STREAM_PER_THREAD, &per_thread) == CUDA_SUCCESS);
  CHECK(get_id(nullptr, &by_null) == CUDA_SUCCESS);
  CHECK(by_null == per_thread);
  CHECK(cuStreamGetId(nullptr, &legacy) == CUDA_SUCCESS);
  CHECK(legacy != per_thread);
}
