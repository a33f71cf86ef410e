#include <algorithm>
#include <numeric>
#include <vector>

#include "test/server/software_device/driver/fixture.hpp"

using namespace gpuwire::software_device::test;

namespace {

CUDA_ARRAY3D_DESCRIPTOR floats(size_t width, size_t height = 0, size_t depth = 0, unsigned flags = 0) {
  return {
      .Width = width, .Height = height, .Depth = depth, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1, .Flags = flags};
}

CUarray create(const CUDA_ARRAY3D_DESCRIPTOR& description) {
  CUarray array = nullptr;
  REQUIRE(cuArray3DCreate(&array, &description) == CUDA_SUCCESS);
  return array;
}

CUresult creation_of(CUDA_ARRAY3D_DESCRIPTOR description) {
  CUarray array = nullptr;
  return cuArray3DCreate(&array, &description);
}

CUDA_RESOURCE_DESC resource_of(CUarray array) {
  CUDA_RESOURCE_DESC resource{};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  return resource;
}

CUresult texture_on(const CUDA_RESOURCE_DESC& resource, const CUDA_TEXTURE_DESC& description = {}) {
  CUtexObject texture = 0;
  return cuTexObjectCreate(&texture, &resource, &description, nullptr);
}

}  // namespace

TEST_CASE("An array says what it was made as") {
  const CurrentContext context;
  const CUarray array = create(floats(16, 8, 6, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST));
  CUDA_ARRAY3D_DESCRIPTOR told{};
  CHECK(cuArray3DGetDescriptor(&told, array) == CUDA_SUCCESS);
  CHECK(told.Width == 16);
  CHECK(told.Height == 8);
  CHECK(told.Depth == 6);
  CHECK(told.Flags == (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST));
  CUarray plane = nullptr;
  CHECK(cuArrayGetPlane(&plane, array, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
  CHECK(cuArrayDestroy(array) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("Impossible arrays are refused") {
  const CurrentContext context;
  CHECK(creation_of(floats(0)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(creation_of(floats(4, 0, 4)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(creation_of(floats(4, 4, 5, CUDA_ARRAY3D_CUBEMAP)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(creation_of(floats(4, 8, 6, CUDA_ARRAY3D_CUBEMAP)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(creation_of(floats(4, 4, 0, CUDA_ARRAY3D_SPARSE)) == CUDA_ERROR_NOT_SUPPORTED);
  CUDA_ARRAY3D_DESCRIPTOR three = floats(4);
  three.NumChannels = 3;
  CHECK(creation_of(three) == CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY3D_DESCRIPTOR video = floats(4, 4);
  video.Format = CU_AD_FORMAT_NV12;
  CHECK(creation_of(video) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(creation_of(floats(100000, 60000)) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("Arrays count as used memory until they are gone, and go with their context") {
  size_t before = 0, with = 0, after = 0, total = 0;
  const CurrentContext outer;
  REQUIRE(cuMemGetInfo(&before, &total) == CUDA_SUCCESS);
  {
    const CurrentContext inner;
    create(floats(1024, 1024));
    REQUIRE(cuMemGetInfo(&with, &total) == CUDA_SUCCESS);
  }
  REQUIRE(cuMemGetInfo(&after, &total) == CUDA_SUCCESS);
  CHECK(before - with == size_t{4} << 20);
  CHECK(after == before);
}

TEST_CASE("Copies reach every row and slice of an array and nothing beside it") {
  const CurrentContext context;
  const CUarray array = create(floats(4, 3, 2));
  std::vector<float> host(24), back(24);
  std::iota(host.begin(), host.end(), 1.0f);
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = host.data();
  copy.srcPitch = 16;
  copy.srcHeight = 3;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 16;
  copy.Height = 3;
  copy.Depth = 2;
  CHECK(cuMemcpy3D(&copy) == CUDA_SUCCESS);
  CUDA_MEMCPY3D out{};
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  out.srcArray = array;
  out.srcXInBytes = 4;
  out.srcY = 1;
  out.srcZ = 1;
  out.dstMemoryType = CU_MEMORYTYPE_HOST;
  out.dstHost = back.data();
  out.dstPitch = 12;
  out.WidthInBytes = 12;
  out.Height = 2;
  out.Depth = 1;
  CHECK(cuMemcpy3D(&out) == CUDA_SUCCESS);
  CHECK(std::vector<float>(back.begin(), back.begin() + 6) == std::vector<float>{18, 19, 20, 22, 23, 24});
  out.srcZ = 2;
  CHECK(cuMemcpy3D(&out) == CUDA_ERROR_INVALID_VALUE);
  out.srcZ = 1;
  out.srcXInBytes = 8;
  CHECK(cuMemcpy3D(&out) == CUDA_ERROR_INVALID_VALUE);
  out.srcXInBytes = 2;
  out.WidthInBytes = 4;
  CHECK(cuMemcpy3D(&out) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("A row goes between one-dimensional arrays and memory of every kind") {
  const CurrentContext context;
  const CUarray first = create(floats(8)), second = create(floats(8));
  const CUdeviceptr memory = allocate(32);
  std::vector<float> host{1, 2, 3, 4, 5, 6, 7, 8}, back(8);
  CHECK(cuMemcpyHtoA(first, 0, host.data(), 32) == CUDA_SUCCESS);
  CHECK(cuMemcpyAtoA(second, 8, first, 0, 24) == CUDA_SUCCESS);
  CHECK(cuMemcpyAtoD(memory, second, 8, 24) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoA(second, 0, memory, 8) == CUDA_SUCCESS);
  CHECK(cuMemcpyAtoH(back.data(), second, 0, 32) == CUDA_SUCCESS);
  CHECK(back == std::vector<float>{1, 2, 1, 2, 3, 4, 5, 6});
  CHECK(cuMemcpyHtoA(first, 4, host.data(), 32) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoAAsync(first, 0, back.data(), 32, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemcpyAtoHAsync(host.data(), first, 0, 32, nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(host == back);
}

TEST_CASE("A mipmapped array has as many levels as its extents can be halved") {
  const CurrentContext context;
  const CUDA_ARRAY3D_DESCRIPTOR base = floats(16, 4);
  CUmipmappedArray mipmap = nullptr;
  REQUIRE(cuMipmappedArrayCreate(&mipmap, &base, 99) == CUDA_SUCCESS);
  CUarray level = nullptr;
  REQUIRE(cuMipmappedArrayGetLevel(&level, mipmap, 4) == CUDA_SUCCESS);
  // These are driver 580's answers (test/end_to_end/programs/contexts/argument_facts.rules).
  CHECK(cuArrayDestroy(level) == CUDA_SUCCESS);
  CHECK(cuMipmappedArrayGetLevel(&level, mipmap, 4) == CUDA_SUCCESS);
  CHECK(cuMipmappedArrayGetLevel(&level, mipmap, 5) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMipmappedArrayGetLevel(&level, mipmap, 3) == CUDA_SUCCESS);
  CUDA_ARRAY3D_DESCRIPTOR told{};
  CHECK(cuArray3DGetDescriptor(&told, level) == CUDA_SUCCESS);
  CHECK(told.Width == 2);
  CHECK(told.Height == 1);
  CHECK(cuMipmappedArrayDestroy(mipmap) == CUDA_SUCCESS);
  CHECK(cuArray3DGetDescriptor(&told, level) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("A texture says what it reads, and what cannot be read is refused") {
  const CurrentContext context;
  const CUarray array = create(floats(8, 8));
  const CUDA_RESOURCE_DESC resource = resource_of(array);
  CUDA_TEXTURE_DESC description{};
  description.filterMode = CU_TR_FILTER_MODE_LINEAR;
  CUtexObject texture = 0;
  REQUIRE(cuTexObjectCreate(&texture, &resource, &description, nullptr) == CUDA_SUCCESS);
  CUDA_RESOURCE_DESC told{};
  CUDA_TEXTURE_DESC how{};
  CUDA_RESOURCE_VIEW_DESC view{};
  CHECK(cuTexObjectGetResourceDesc(&told, texture) == CUDA_SUCCESS);
  CHECK(told.res.array.hArray == array);
  CHECK(cuTexObjectGetTextureDesc(&how, texture) == CUDA_SUCCESS);
  CHECK(how.filterMode == CU_TR_FILTER_MODE_LINEAR);
  CHECK(cuTexObjectGetResourceViewDesc(&view, texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTexObjectDestroy(texture) == CUDA_SUCCESS);
  CHECK(cuTexObjectGetTextureDesc(&how, texture) == CUDA_ERROR_INVALID_VALUE);

  CUDA_ARRAY3D_DESCRIPTOR integers = floats(8);
  integers.Format = CU_AD_FORMAT_SIGNED_INT32;
  CHECK(texture_on(resource_of(create(integers)), description) == CUDA_ERROR_INVALID_VALUE);
  description.maxAnisotropy = 4;
  CHECK(texture_on(resource, description) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(texture_on(resource_of(nullptr)) == CUDA_ERROR_INVALID_VALUE);

  const CUdeviceptr memory = allocate(4096);
  CUDA_RESOURCE_DESC linear{};
  linear.resType = CU_RESOURCE_TYPE_LINEAR;
  linear.res.linear.devPtr = memory;
  linear.res.linear.format = CU_AD_FORMAT_FLOAT;
  linear.res.linear.numChannels = 1;
  linear.res.linear.sizeInBytes = 4096;
  CHECK(texture_on(linear) == CUDA_SUCCESS);
  linear.res.linear.devPtr = memory + 4;
  linear.res.linear.sizeInBytes = 64;
  CHECK(texture_on(linear) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("A surface says what it is on") {
  const CurrentContext context;
  const CUDA_RESOURCE_DESC with = resource_of(create(floats(8, 8, 0, CUDA_ARRAY3D_SURFACE_LDST)));
  CUsurfObject surface = 0;
  REQUIRE(cuSurfObjectCreate(&surface, &with) == CUDA_SUCCESS);
  CUDA_RESOURCE_DESC told{};
  CHECK(cuSurfObjectGetResourceDesc(&told, surface) == CUDA_SUCCESS);
  CHECK(told.res.array.hArray == with.res.array.hArray);
  CHECK(cuSurfObjectDestroy(surface) == CUDA_SUCCESS);
  CHECK(cuSurfObjectGetResourceDesc(&told, surface) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("A kernel that reads no texture, or beside a surface, ends with a fault") {
  const char* const ptx =
      ".version 8.0\n.target sm_75\n.address_size 64\n"
      ".visible .entry look(.param .u64 t) { .reg .b64 %t; .reg .b32 %r<5>; ld.param.u64 %t, [t]; mov.u32 %r4, 0;\n"
      "tex.1d.v4.u32.s32 {%r0, %r1, %r2, %r3}, [%t, {%r4}]; ret; }\n"
      ".visible .entry poke(.param .u64 s) { .reg .b64 %s; .reg .b32 %r<2>; ld.param.u64 %s, [s]; mov.u32 %r0, 32;\n"
      "sust.b.1d.b32.trap [%s, {%r0}], {%r0}; ret; }\n";
  for (const bool poke : {false, true}) {
    const CurrentContext context;
    const CUmodule module = load(ptx);
    const CUDA_RESOURCE_DESC resource = resource_of(create(floats(8, 0, 0, CUDA_ARRAY3D_SURFACE_LDST)));
    CUsurfObject object = 12345;
    if (poke) REQUIRE(cuSurfObjectCreate(&object, &resource) == CUDA_SUCCESS);
    void* parameters[] = {&object};
    REQUIRE(launch(function(module, poke ? "poke" : "look"), parameters) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  }
}

namespace {

// take(u64 t, u32* out, f32 x): the texel at x of a row.
constexpr const char kTakePtx[] =
    ".version 8.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry take(.param .u64 t, .param .u64 out, .param .f32 x) { .reg .b64 %t, %o; .reg .f32 %x; .reg .b32 "
    "%r<4>;\n"
    "ld.param.u64 %t, [t]; ld.param.u64 %o, [out]; ld.param.f32 %x, [x];\n"
    "tex.1d.v4.f32.f32 {%r0, %r1, %r2, %r3}, [%t, {%x}]; st.global.u32 [%o], %r0; ret; }\n";

CUarray row_of(const std::vector<float>& values, size_t height) {
  const CUarray array = create(floats(values.size(), height));
  CUDA_MEMCPY2D copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = values.data();
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = values.size() * sizeof(float);
  copy.Height = 1;
  REQUIRE(cuMemcpy2D(&copy) == CUDA_SUCCESS);
  return array;
}

}  // namespace

TEST_CASE("A texture that is destroyed is there for kernels launched before, and for nobody else") {
  const CurrentContext context;
  const CUfunction take = function(load(kTakePtx), "take");
  const CUdeviceptr flag = allocate(4), out = allocate(4);
  write(flag, {0});
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUtexObject texture = 0;
  const CUDA_RESOURCE_DESC resource = resource_of(row_of({1, 2, 3, 4}, 0));
  const CUDA_TEXTURE_DESC plain{};
  REQUIRE(cuTexObjectCreate(&texture, &resource, &plain, nullptr) == CUDA_SUCCESS);
  // The stream is blocked until the flag is written.
  REQUIRE(cuStreamWaitValue32(stream, flag, 1, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS);
  float x = 2.5f;
  CUdeviceptr place = out;
  void* parameters[] = {&texture, &place, &x};
  REQUIRE(launch(take, parameters, stream) == CUDA_SUCCESS);
  CHECK(cuTexObjectDestroy(texture) == CUDA_SUCCESS);
  CUDA_RESOURCE_DESC told{};
  CHECK(cuTexObjectGetResourceDesc(&told, texture) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuTexObjectDestroy(texture) == CUDA_SUCCESS);
  CUstream other = nullptr;
  REQUIRE(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamWriteValue32(other, flag, 1, 0) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(read(out, 1)[0] == 0x40400000);  // 3.0
}

TEST_CASE("An array of one row is read along that row, with every address mode and filter") {
  const CurrentContext context;
  const CUfunction take = function(load(kTakePtx), "take");
  const CUdeviceptr out = allocate(4);
  for (const size_t height : {size_t{0}, size_t{1}}) {
    for (const CUaddress_mode mode : {CU_TR_ADDRESS_MODE_CLAMP, CU_TR_ADDRESS_MODE_BORDER}) {
      for (const CUfilter_mode filter : {CU_TR_FILTER_MODE_POINT, CU_TR_FILTER_MODE_LINEAR}) {
        CUDA_TEXTURE_DESC description{};
        std::fill(std::begin(description.addressMode), std::end(description.addressMode), mode);
        description.filterMode = filter;
        const CUDA_RESOURCE_DESC resource = resource_of(row_of({1, 2, 3, 4}, height));
        CUtexObject texture = 0;
        REQUIRE(cuTexObjectCreate(&texture, &resource, &description, nullptr) == CUDA_SUCCESS);
        float x = 1.5f;
        CUdeviceptr place = out;
        void* parameters[] = {&texture, &place, &x};
        REQUIRE(launch(take, parameters) == CUDA_SUCCESS);
        REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
        CHECK(read(out, 1)[0] == 0x40000000);  // 2.0
      }
    }
  }
}

TEST_CASE("Arrays are as large as the device attributes say, and no larger") {
  const CurrentContext context;
  CHECK(creation_of(floats(131072)) == CUDA_SUCCESS);
  CHECK(creation_of(floats(131073)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(creation_of(floats(32769, 0, 0, CUDA_ARRAY3D_SURFACE_LDST)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(creation_of(floats(1, 65536)) == CUDA_SUCCESS);
  CHECK(creation_of(floats(1, 65537)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(creation_of(floats(16384, 1, 1)) == CUDA_SUCCESS);
  CHECK(creation_of(floats(16385, 1, 1)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(creation_of(floats(32768, 0, 1, CUDA_ARRAY3D_LAYERED)) == CUDA_SUCCESS);
  CHECK(creation_of(floats(32769, 0, 1, CUDA_ARRAY3D_LAYERED)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(creation_of(floats(1, 1, 2049, CUDA_ARRAY3D_LAYERED)) == CUDA_ERROR_INVALID_VALUE);
  const CUDA_ARRAY3D_DESCRIPTOR wide = floats(32769);
  CUmipmappedArray mipmap = nullptr;
  CHECK(cuMipmappedArrayCreate(&mipmap, &wide, 2) == CUDA_ERROR_INVALID_VALUE);
}
