// The driver's linker: texts that depend on each other, its logs, and its error for a wrong text.
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "../driver_check.hpp"

namespace {

constexpr const char* kHeader = ".version 8.0\n.target sm_70\n.address_size 64\n";

std::string caller() {
  return std::string(kHeader) +
         ".extern .func (.param .b32 result) scaled (.param .b32 value);\n"
         ".visible .global .align 4 .u32 calls = 7;\n"
         ".visible .entry fill(.param .u64 out) {\n"
         "  .reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
         "  ld.param.u64 %rd1, [out];\n"
         "  cvta.to.global.u64 %rd1, %rd1;\n"
         "  mov.u32 %r1, %tid.x;\n"
         "  { .param .b32 v; .param .b32 r;\n"
         "    st.param.b32 [v], %r1;\n"
         "    call.uni (r), scaled, (v);\n"
         "    ld.param.b32 %r2, [r]; }\n"
         "  mul.wide.u32 %rd2, %r1, 4;\n"
         "  add.s64 %rd3, %rd1, %rd2;\n"
         "  st.global.u32 [%rd3], %r2;\n"
         "  ret;\n}\n";
}

std::string callee(int factor) {
  return std::string(kHeader) +
         ".visible .func (.param .b32 result) scaled (.param .b32 value) {\n"
         "  .reg .b32 %r<3>;\n"
         "  ld.param.b32 %r1, [value];\n"
         "  mul.lo.u32 %r2, %r1, " +
         std::to_string(factor) +
         ";\n"
         "  st.param.b32 [result], %r2;\n"
         "  ret;\n}\n";
}

struct Logs {
  char info[4096] = "", error[4096] = "";
  float wall_time = -1;
  std::vector<CUjit_option> names;
  std::vector<void*> values;

  Logs() {
    add(CU_JIT_WALL_TIME, nullptr);
    add(CU_JIT_INFO_LOG_BUFFER, info);
    add(CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, reinterpret_cast<void*>(sizeof info));
    add(CU_JIT_ERROR_LOG_BUFFER, error);
    add(CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, reinterpret_cast<void*>(sizeof error));
    add(CU_JIT_LOG_VERBOSE, reinterpret_cast<void*>(1));
  }
  void add(CUjit_option name, void* value) {
    names.push_back(name);
    values.push_back(value);
  }
};

CUresult add(CUlinkState state, const std::string& text, const char* name) {
  return cuLinkAddData(state, CU_JIT_INPUT_PTX, const_cast<char*>(text.c_str()), text.size() + 1, name, 0, nullptr,
                       nullptr);
}

void check_kernel(const void* image, unsigned factor) {
  CUmodule module;
  CUfunction function;
  OK(cuModuleLoadData(&module, image));
  OK(cuModuleGetFunction(&function, module, "fill"));
  CUdeviceptr out, calls;
  size_t bytes = 0;
  OK(cuModuleGetGlobal(&calls, &bytes, module, "calls"));
  DEMAND(bytes == 4);
  OK(cuMemAlloc(&out, 64 * 4));
  void* parameters[] = {&out};
  OK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, nullptr, parameters, nullptr));
  unsigned values[64];
  OK(cuMemcpyDtoH(values, out, sizeof values));
  for (unsigned i = 0; i < 64; ++i) DEMAND(values[i] == i * factor);
  OK(cuMemFree(out));
  OK(cuModuleUnload(module));
}

void two_texts() {
  Logs logs;
  CUlinkState state;
  OK(cuLinkCreate(unsigned(logs.names.size()), logs.names.data(), logs.values.data(), &state));
  OK(add(state, caller(), "caller"));
  OK(add(state, callee(3), "callee"));
  void* image = nullptr;
  size_t bytes = 0;
  OK(cuLinkComplete(state, &image, &bytes));
  DEMAND(image && bytes > 0);
  check_kernel(image, 3);  // the image belongs to the state, which still lives
  std::string copy(static_cast<char*>(image), bytes);
  OK(cuLinkDestroy(state));
  check_kernel(copy.c_str(), 3);
}

void a_file() {
  std::string path = "/tmp/gpuwire_link_" + std::to_string(long(getpid())) + ".ptx";
  std::ofstream(path) << callee(5);
  CUlinkState state;
  OK(cuLinkCreate(0, nullptr, nullptr, &state));
  OK(add(state, caller(), "caller"));
  FAILS(cuLinkAddFile(state, CU_JIT_INPUT_PTX, "/nowhere/at/all.ptx", 0, nullptr, nullptr), CUDA_ERROR_FILE_NOT_FOUND);
  OK(cuLinkAddFile(state, CU_JIT_INPUT_PTX, path.c_str(), 0, nullptr, nullptr));
  remove(path.c_str());
  void* image = nullptr;
  OK(cuLinkComplete(state, &image, nullptr));
  check_kernel(image, 5);
  OK(cuLinkDestroy(state));
}

void what_is_wrong() {
  Logs logs;
  CUlinkState state;
  OK(cuLinkCreate(unsigned(logs.names.size()), logs.names.data(), logs.values.data(), &state));
  FAILS(add(state, std::string(kHeader) + ".visible .entry broken() { this is no instruction; }\n", "broken"),
        CUDA_ERROR_INVALID_PTX);
  DEMAND(std::strlen(logs.error) > 0);
  OK(cuLinkDestroy(state));

  // An undefined function.
  Logs missing;
  OK(cuLinkCreate(unsigned(missing.names.size()), missing.names.data(), missing.values.data(), &state));
  OK(add(state, caller(), "caller"));
  void* image = nullptr;
  size_t bytes = 0;
  DEMAND(cuLinkComplete(state, &image, &bytes) != CUDA_SUCCESS);
  DEMAND(std::strstr(missing.error, "scaled") != nullptr);
  OK(cuLinkDestroy(state));

  Logs loading;
  CUmodule module;
  std::string text = std::string(kHeader) + ".visible .entry broken() { add.u32 %r1, %r2, %r3; }\n";
  FAILS(cuModuleLoadDataEx(&module, text.c_str(), unsigned(loading.names.size()), loading.names.data(),
                           loading.values.data()),
        CUDA_ERROR_INVALID_PTX);
  DEMAND(std::strlen(loading.error) > 0);
  DEMAND(size_t(loading.values[4]) > 0 && size_t(loading.values[4]) <= sizeof loading.error);
}

}  // namespace

int main() {
  retain_primary();
  two_texts();
  a_file();
  what_is_wrong();
  std::printf("PASSED\n");
  return 0;
}
