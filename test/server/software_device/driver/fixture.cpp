#include "fixture.hpp"

#include <cstdlib>

namespace gpuwire::software_device::test {
namespace {

// This runs before main and any test: the driver reads its settings once, in cuInit.
const bool initialised = [] {
  setenv("GPUWIRE_SOFTWARE_DEVICES", std::to_string(kDevices).c_str(), 1);
  setenv("GPUWIRE_SOFTWARE_MEMORY_BYTES", std::to_string(kMemoryBytes).c_str(), 1);
  return cuInit(0) == CUDA_SUCCESS;
}();

}  // namespace

const char* const kPtx = R"(
.version 7.0
.target sm_75
.address_size 64

.extern .func (.param .b32 r) vprintf (.param .b64 format, .param .b64 arguments);
.visible .global .align 4 .u32 counter = 5;
.visible .const .align 4 .b8 limits[16] = {1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0};
.global .align 1 .b8 format[6] = {110, 61, 37, 100, 10, 0};

.visible .entry add_one(.param .u64 p)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  ld.global.u32 %r1, [%rd2];
  add.u32 %r2, %r1, 1;
  st.global.u32 [%rd2], %r2;
  ret;
}

.visible .entry fill(.param .u64 p, .param .u32 value, .param .u32 count)
{
  .reg .b64 %rd<5>;
  .reg .b32 %r<8>;
  .reg .pred %q;
  ld.param.u64 %rd1, [p];
  ld.param.u32 %r1, [value];
  ld.param.u32 %r2, [count];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.u32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %q, %r6, %r2;
  @%q bra DONE;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r6, 4;
  add.u64 %rd4, %rd2, %rd3;
  add.u32 %r7, %r1, %r6;
  st.global.u32 [%rd4], %r7;
DONE:
  ret;
}

.visible .entry store_far(.param .u64 p, .param .u64 offset)
{
  .reg .b64 %rd<4>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [p];
  ld.param.u64 %rd2, [offset];
  add.u64 %rd3, %rd1, %rd2;
  mov.u32 %r1, 1;
  st.global.u32 [%rd3], %r1;
  ret;
}

.visible .entry hang(.param .u64 flag)
{
  .reg .b64 %rd<3>;
  .reg .b32 %r<2>;
  .reg .pred %q;
  ld.param.u64 %rd1, [flag];
  cvta.to.global.u64 %rd2, %rd1;
AGAIN:
  ld.volatile.global.u32 %r1, [%rd2];
  setp.eq.u32 %q, %r1, 0;
  @%q bra AGAIN;
  ret;
}

.visible .entry say(.param .u32 n)
{
  .local .align 8 .b8 depot[8];
  .reg .b64 %sp, %spl, %rd<4>;
  .reg .b32 %r<3>;
  mov.u64 %spl, depot;
  cvta.local.u64 %sp, %spl;
  ld.param.u32 %r1, [n];
  st.local.u32 [%spl], %r1;
  mov.u64 %rd1, format;
  cvta.global.u64 %rd2, %rd1;
  {
    .param .b64 a;
    st.param.b64 [a], %rd2;
    .param .b64 b;
    st.param.b64 [b], %sp;
    .param .b32 r;
    call.uni (r), vprintf, (a, b);
    ld.param.b32 %r2, [r];
  }
  ret;
}

.visible .entry shared_sum(.param .u64 p)
{
  .shared .align 4 .b8 scratch[1024];
  .reg .b64 %rd<3>;
  .reg .b32 %r<3>;
  ld.param.u64 %rd1, [p];
  cvta.to.global.u64 %rd2, %rd1;
  mov.u32 %r1, scratch;
  ld.shared.u32 %r2, [%r1];
  st.global.u32 [%rd2], %r2;
  ret;
}

.visible .entry die()
{
  trap;
  ret;
}
)";

CurrentContext::CurrentContext(int device) {
  REQUIRE(initialised);
  REQUIRE(cuCtxCreate(&handle, nullptr, 0, device) == CUDA_SUCCESS);
}

CurrentContext::~CurrentContext() { cuCtxDestroy(handle); }

CUmodule load(const char* ptx) {
  CUmodule module = nullptr;
  REQUIRE(cuModuleLoadData(&module, ptx) == CUDA_SUCCESS);
  return module;
}

CUfunction function(CUmodule module, const char* name) {
  CUfunction out = nullptr;
  REQUIRE(cuModuleGetFunction(&out, module, name) == CUDA_SUCCESS);
  return out;
}

CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr out = 0;
  REQUIRE(cuMemAlloc(&out, bytes) == CUDA_SUCCESS);
  return out;
}

std::vector<unsigned> read(CUdeviceptr address, size_t count) {
  std::vector<unsigned> out(count);
  REQUIRE(cuMemcpyDtoH(out.data(), address, count * sizeof(unsigned)) == CUDA_SUCCESS);
  return out;
}

void write(CUdeviceptr address, const std::vector<unsigned>& values) {
  REQUIRE(cuMemcpyHtoD(address, values.data(), values.size() * sizeof(unsigned)) == CUDA_SUCCESS);
}

CUresult launch(CUfunction function, void** parameters, CUstream stream, unsigned blocks, unsigned threads) {
  return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
}

CUresult launch_add_one(CUfunction function, CUdeviceptr address, CUstream stream) {
  void* parameters[] = {&address};
  return launch(function, parameters, stream);
}

}  // namespace gpuwire::software_device::test
