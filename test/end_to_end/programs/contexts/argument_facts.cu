// Prints a line for each fact: the precedence of two wrong arguments, and a driver's answers about ranges of managed
// memory. argument_facts.rules has driver 580's answers.
#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "../facts.hpp"

namespace {

constexpr size_t kBytes = 1 << 20;
char g_plain[kBytes];
CUdeviceptr g_memory;
CUarray g_array;
CUstream g_stream;

void set_up() {
  retain_primary();
  OK(cuMemAlloc(&g_memory, kBytes));
  OK(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
  CUDA_ARRAY_DESCRIPTOR shape{};
  shape.Width = shape.Height = 64;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  OK(cuArrayCreate(&g_array, &shape));
}

// --- boxes

struct Fault {
  const char* name;
  std::function<void(CUDA_MEMCPY3D&)> make;
};

CUDA_MEMCPY3D right_box() {
  CUDA_MEMCPY3D copy{};
  copy.srcHost = copy.dstHost = g_plain;
  copy.srcDevice = g_memory;
  copy.dstDevice = g_memory + kBytes / 2;
  copy.srcArray = copy.dstArray = g_array;
  copy.srcPitch = copy.dstPitch = 64;
  copy.srcHeight = copy.dstHeight = 8;
  copy.WidthInBytes = 32;
  copy.Height = 8;
  copy.Depth = 1;
  return copy;
}

CUDA_MEMCPY2D rows_of(const CUDA_MEMCPY3D& from) {
  CUDA_MEMCPY2D copy{};
  copy.srcXInBytes = from.srcXInBytes;
  copy.srcY = from.srcY;
  copy.srcMemoryType = from.srcMemoryType;
  copy.srcHost = from.srcHost;
  copy.srcDevice = from.srcDevice;
  copy.srcArray = from.srcArray;
  copy.srcPitch = from.srcPitch;
  copy.dstXInBytes = from.dstXInBytes;
  copy.dstY = from.dstY;
  copy.dstMemoryType = from.dstMemoryType;
  copy.dstHost = from.dstHost;
  copy.dstDevice = from.dstDevice;
  copy.dstArray = from.dstArray;
  copy.dstPitch = from.dstPitch;
  copy.WidthInBytes = from.WidthInBytes;
  copy.Height = from.Height;
  return copy;
}

void tell_box(const std::string& what, const CUDA_MEMCPY3D& copy) {
  const CUDA_MEMCPY2D rows = rows_of(copy);
  const CUresult flat = cuMemcpy2D(&rows), unaligned = cuMemcpy2DUnaligned(&rows);
  const CUresult flat_later = cuMemcpy2DAsync(&rows, g_stream), box = cuMemcpy3D(&copy);
  const CUresult box_later = cuMemcpy3DAsync(&copy, g_stream), wait = cuCtxSynchronize();
  std::printf("%s: 2D %s, unaligned %s, later %s; 3D %s, later %s; the end %s\n", what.c_str(), error_name(flat),
              error_name(unaligned), error_name(flat_later), error_name(box), error_name(box_later), error_name(wait));
}

void boxes(const std::string& kind, CUmemorytype from, CUmemorytype to) {
  set_up();
  const std::vector<Fault> handles = {
      {"", [](CUDA_MEMCPY3D&) {}},
      {"no array as source", [](CUDA_MEMCPY3D& copy) { copy.srcArray = nullptr; }},
      {"no array as destination", [](CUDA_MEMCPY3D& copy) { copy.dstArray = nullptr; }},
  };
  const std::vector<Fault> values = {
      {"nothing else", [](CUDA_MEMCPY3D&) {}},
      {"width 0", [](CUDA_MEMCPY3D& copy) { copy.WidthInBytes = 0; }},
      {"height 0", [](CUDA_MEMCPY3D& copy) { copy.Height = 0; }},
      {"depth 0", [](CUDA_MEMCPY3D& copy) { copy.Depth = 0; }},
      {"pitch of the source too small", [](CUDA_MEMCPY3D& copy) { copy.srcPitch = 16; }},
      {"pitch of the destination too small", [](CUDA_MEMCPY3D& copy) { copy.dstPitch = 16; }},
      {"source NULL", [](CUDA_MEMCPY3D& copy) { copy.srcHost = nullptr, copy.srcDevice = 0; }},
      {"destination NULL", [](CUDA_MEMCPY3D& copy) { copy.dstHost = nullptr, copy.dstDevice = 0; }},
      {"source of no kind", [](CUDA_MEMCPY3D& copy) { copy.srcMemoryType = CUmemorytype(0); }},
      {"destination of no kind", [](CUDA_MEMCPY3D& copy) { copy.dstMemoryType = CUmemorytype(9); }},
      {"wider than the array", [](CUDA_MEMCPY3D& copy) { copy.WidthInBytes = copy.srcPitch = copy.dstPitch = 128; }},
      {"higher than the array", [](CUDA_MEMCPY3D& copy) { copy.Height = copy.srcHeight = copy.dstHeight = 100; }},
      {"deeper than the array", [](CUDA_MEMCPY3D& copy) { copy.Depth = 2; }},
      {"beyond the array's rows", [](CUDA_MEMCPY3D& copy) { copy.srcXInBytes = copy.dstXInBytes = 48; }},
  };
  for (const Fault& handle : handles) {
    for (const Fault& value : values) {
      CUDA_MEMCPY3D copy = right_box();
      copy.srcMemoryType = from;
      copy.dstMemoryType = to;
      handle.make(copy);
      value.make(copy);
      tell_box(kind + ", " + handle.name + (*handle.name ? ", " : "") + value.name, copy);
    }
  }
}

void rows_of_arrays() {
  set_up();
  struct {
    const char* name;
    CUarray array;
    size_t offset, bytes;
    void* host;
    CUdeviceptr device;
  } const kCases[] = {
      {"right", g_array, 0, 32, g_plain, g_memory},
      {"no array", nullptr, 0, 32, g_plain, g_memory},
      {"no array, nothing", nullptr, 0, 0, g_plain, g_memory},
      {"no array, no memory", nullptr, 0, 32, nullptr, 0},
      {"no memory", g_array, 0, 32, nullptr, 0},
      {"no memory, nothing", g_array, 0, 0, nullptr, 0},
      {"beyond the array", g_array, 48, 32, g_plain, g_memory},
      {"beyond the array, no memory", g_array, 48, 32, nullptr, 0},
      {"nothing beyond the array", g_array, 128, 0, g_plain, g_memory},
  };
  for (const auto& [name, array, offset, bytes, host, device] : kCases) {
    std::printf("HtoA, %s: %s\n", name, error_name(cuMemcpyHtoA(array, offset, host, bytes)));
    std::printf("AtoH, %s: %s\n", name, error_name(cuMemcpyAtoH(host, array, offset, bytes)));
    std::printf("DtoA, %s: %s\n", name, error_name(cuMemcpyDtoA(array, offset, device, bytes)));
    std::printf("AtoD, %s: %s\n", name, error_name(cuMemcpyAtoD(device, array, offset, bytes)));
    std::printf("AtoA to it, %s: %s\n", name, error_name(cuMemcpyAtoA(array, offset, g_array, 0, bytes)));
    std::printf("AtoA from it, %s: %s\n", name, error_name(cuMemcpyAtoA(g_array, 0, array, offset, bytes)));
    std::printf("HtoA later, %s: %s\n", name, error_name(cuMemcpyHtoAAsync(array, offset, host, bytes, g_stream)));
    std::printf("AtoH later, %s: %s\n", name, error_name(cuMemcpyAtoHAsync(host, array, offset, bytes, g_stream)));
    std::printf("the end: %s\n", error_name(cuCtxSynchronize()));
  }
}

void textures() {
  set_up();
  struct Texture {
    CUDA_RESOURCE_DESC resource{};
    CUDA_TEXTURE_DESC how{};
    CUDA_RESOURCE_VIEW_DESC view{};
    bool no_resource = false, no_how = false, with_view = false, no_result = false;
  };
  struct Row {
    const char* name;
    std::function<void(Texture&)> make;
  };
  const std::vector<Row> resources = {
      {"an array", [](Texture& t) { t.resource.res.array.hArray = g_array; }},
      {"no array", [](Texture&) {}},
      {"no mipmapped array", [](Texture& t) { t.resource.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY; }},
      {"no linear memory",
       [](Texture& t) {
         t.resource.resType = CU_RESOURCE_TYPE_LINEAR;
         t.resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8;
         t.resource.res.linear.numChannels = 1;
         t.resource.res.linear.sizeInBytes = 64;
       }},
      {"linear memory",
       [](Texture& t) {
         t.resource.resType = CU_RESOURCE_TYPE_LINEAR;
         t.resource.res.linear.devPtr = g_memory;
         t.resource.res.linear.format = CU_AD_FORMAT_UNSIGNED_INT8;
         t.resource.res.linear.numChannels = 1;
         t.resource.res.linear.sizeInBytes = 64;
       }},
  };
  const std::vector<Row> faults = {
      {"nothing else", [](Texture&) {}},
      {"no result", [](Texture& t) { t.no_result = true; }},
      {"no resource", [](Texture& t) { t.no_resource = true; }},
      {"no description", [](Texture& t) { t.no_how = true; }},
      {"flags of the resource", [](Texture& t) { t.resource.flags = 1; }},
      {"resource of no kind", [](Texture& t) { t.resource.resType = CUresourcetype(9); }},
      {"address mode of no kind", [](Texture& t) { t.how.addressMode[0] = CUaddress_mode(9); }},
      {"filter of no kind", [](Texture& t) { t.how.filterMode = CUfilter_mode(9); }},
      {"filter of levels of no kind", [](Texture& t) { t.how.mipmapFilterMode = CUfilter_mode(9); }},
      {"unknown flags", [](Texture& t) { t.how.flags = 0x800; }},
      {"linear filter of integers",
       [](Texture& t) {
         t.how.filterMode = CU_TR_FILTER_MODE_LINEAR;
         t.how.flags = CU_TRSF_READ_AS_INTEGER;
       }},
      {"an empty view", [](Texture& t) { t.with_view = true; }},
      {"a view of no format",
       [](Texture& t) {
         t.with_view = true;
         t.view.format = CUresourceViewFormat(999);
       }},
  };
  for (const Row& resource : resources) {
    for (const Row& fault : faults) {
      Texture t;
      t.resource.resType = CU_RESOURCE_TYPE_ARRAY;
      resource.make(t);
      fault.make(t);
      CUtexObject made = 0;
      CUsurfObject surface = 0;
      const CUresult result = cuTexObjectCreate(t.no_result ? nullptr : &made, t.no_resource ? nullptr : &t.resource,
                                                t.no_how ? nullptr : &t.how, t.with_view ? &t.view : nullptr);
      const CUresult second =
          cuSurfObjectCreate(t.no_result ? nullptr : &surface, t.no_resource ? nullptr : &t.resource);
      std::printf("texture of %s, %s: %s; surface: %s\n", resource.name, fault.name, error_name(result),
                  error_name(second));
      if (made) OK(cuTexObjectDestroy(made));
      if (surface) OK(cuSurfObjectDestroy(surface));
    }
  }
}

void questions_about_arrays() {
  set_up();
  CUDA_ARRAY_DESCRIPTOR shape;
  CUDA_ARRAY3D_DESCRIPTOR shape_3d;
  CUarray level;
  std::printf("descriptor of NULL: %s\n", error_name(cuArrayGetDescriptor(&shape, nullptr)));
  std::printf("descriptor, no result: %s\n", error_name(cuArrayGetDescriptor(nullptr, g_array)));
  std::printf("descriptor of NULL, no result: %s\n", error_name(cuArrayGetDescriptor(nullptr, nullptr)));
  std::printf("3D descriptor of NULL: %s\n", error_name(cuArray3DGetDescriptor(&shape_3d, nullptr)));
  std::printf("3D descriptor of NULL, no result: %s\n", error_name(cuArray3DGetDescriptor(nullptr, nullptr)));
  std::printf("level of NULL: %s\n", error_name(cuMipmappedArrayGetLevel(&level, nullptr, 0)));
  std::printf("level of NULL, no result: %s\n", error_name(cuMipmappedArrayGetLevel(nullptr, nullptr, 0)));
  std::printf("plane of NULL: %s\n", error_name(cuArrayGetPlane(&level, nullptr, 0)));
  std::printf("plane of NULL, no result: %s\n", error_name(cuArrayGetPlane(nullptr, nullptr, 0)));
  std::printf("destroying NULL: %s\n", error_name(cuArrayDestroy(nullptr)));
  std::printf("destroying NULL, mipmapped: %s\n", error_name(cuMipmappedArrayDestroy(nullptr)));
  CUDA_ARRAY3D_DESCRIPTOR mip{};
  mip.Width = mip.Height = 64;
  mip.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  mip.NumChannels = 1;
  CUmipmappedArray mipmap;
  OK(cuMipmappedArrayCreate(&mipmap, &mip, 3));
  std::printf("level beyond the last: %s\n", error_name(cuMipmappedArrayGetLevel(&level, mipmap, 3)));
  OK(cuMipmappedArrayGetLevel(&level, mipmap, 1));
  std::printf("destroying a level: %s\n", error_name(cuArrayDestroy(level)));
}

// --- clusters

void clusters() {
  constexpr char kText[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry nothing() { ret; }\n";
  set_up();
  CUmodule module;
  CUfunction function;
  if (const CUresult none = cuModuleLoadData(&module, kText)) {
    std::printf("no clusters: %s\n", error_name(none));
    return;
  }
  OK(cuModuleGetFunction(&function, module, "nothing"));
  for (const unsigned x : {0u, 1u, 2u, 3u, 8u, 16u, 32u}) {
    for (const unsigned y : {0u, 1u}) {
      for (const unsigned grid : {0u, 4u, 32u}) {
        CUlaunchAttribute attribute{};
        attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attribute.value.clusterDim.x = x;
        attribute.value.clusterDim.y = y;
        attribute.value.clusterDim.z = 1;
        CUlaunchConfig launch{};
        launch.gridDimX = grid;
        launch.gridDimY = launch.gridDimZ = 1;
        launch.blockDimX = 32;
        launch.blockDimY = launch.blockDimZ = 1;
        launch.hStream = g_stream;
        launch.attrs = &attribute;
        launch.numAttrs = 1;
        const CUresult result = cuLaunchKernelEx(&launch, function, nullptr, nullptr);
        std::printf("cluster %u %u 1 of grid %u: %s\n", x, y, grid, error_name(result));
      }
    }
  }
  std::printf("the end: %s\n", error_name(cuCtxSynchronize()));
}

// --- ranges of managed memory

void tell_range(const char* what, CUdeviceptr address, size_t bytes) {
  for (const int attribute : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99}) {
    for (const size_t size : {size_t{0}, size_t{2}, size_t{4}, size_t{6}, size_t{8}, size_t{12}}) {
      int values[4] = {-77, -77, -77, -77};
      const CUresult result =
          cuMemRangeGetAttribute(values, size, static_cast<CUmem_range_attribute>(attribute), address, bytes);
      std::printf("%s, attribute %d in %zu bytes: %s, %d %d %d\n", what, attribute, size, error_name(result), values[0],
                  values[1], values[2]);
    }
  }
}

void ranges() {
  const CUdevice device = retain_primary();
  CUdeviceptr managed, plain;
  void* pinned;
  CUstream stream;
  if (const CUresult none = cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL)) {
    std::printf("no managed memory: %s\n", error_name(none));
    return;
  }
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuMemAlloc(&plain, kBytes));
  OK(cuMemHostAlloc(&pinned, kBytes, 0));
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, device}, host{CU_MEM_LOCATION_TYPE_HOST, 0};
  int value = 0;
  void* data[] = {&value, &value};
  size_t sizes[] = {4, 4};
  CUmem_range_attribute attributes[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
  tell_range("managed", managed, kBytes);
  std::printf("managed, no result: %s\n",
              error_name(cuMemRangeGetAttribute(nullptr, 4, attributes[0], managed, kBytes)));
  std::printf("advice: %s\n", error_name(cuMemAdvise(managed, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, here)));
  std::printf("advice: %s\n", error_name(cuMemAdvise(managed, kBytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here)));
  std::printf("advice: %s\n", error_name(cuMemAdvise(managed, kBytes, CU_MEM_ADVISE_SET_ACCESSED_BY, here)));
  tell_range("advised", managed, kBytes);
  std::printf("advice: %s\n", error_name(cuMemAdvise(managed, kBytes / 2, CU_MEM_ADVISE_UNSET_READ_MOSTLY, here)));
  std::printf("advice: %s\n", error_name(cuMemAdvise(managed, kBytes / 2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host)));
  std::printf("advice: %s\n", error_name(cuMemAdvise(managed, kBytes / 2, CU_MEM_ADVISE_SET_ACCESSED_BY, host)));
  tell_range("advised in halves", managed, kBytes);
  tell_range("the first half", managed, kBytes / 2);
  std::printf("prefetch: %s\n", error_name(cuMemPrefetchAsync(managed, kBytes, here, 0, stream)));
  std::printf("waiting: %s\n", error_name(cuStreamSynchronize(stream)));
  tell_range("prefetched", managed, kBytes);
  tell_range("one byte", managed + 5, 1);
  tell_range("nothing", managed, 0);
  tell_range("beyond the end", managed, kBytes + 4096);
  tell_range("far beyond the end", managed, size_t{1} << 40);
  tell_range("device memory", plain, kBytes);
  tell_range("pinned memory", reinterpret_cast<CUdeviceptr>(pinned), kBytes);
  tell_range("pageable memory", reinterpret_cast<CUdeviceptr>(g_plain), 4096);
  tell_range("NULL", 0, 4096);
  std::printf("two: %s\n", error_name(cuMemRangeGetAttributes(data, sizes, attributes, 2, managed, kBytes)));
  std::printf("none: %s\n", error_name(cuMemRangeGetAttributes(data, sizes, attributes, 0, managed, kBytes)));
  std::printf("no results: %s\n", error_name(cuMemRangeGetAttributes(nullptr, sizes, attributes, 2, managed, kBytes)));
  std::printf("no sizes: %s\n", error_name(cuMemRangeGetAttributes(data, nullptr, attributes, 2, managed, kBytes)));
  std::printf("no attributes: %s\n", error_name(cuMemRangeGetAttributes(data, sizes, nullptr, 2, managed, kBytes)));
  OK(cuCtxSetCurrent(nullptr));
  std::printf("without a context: %s\n", error_name(cuMemRangeGetAttribute(&value, 4, attributes[0], managed, kBytes)));
}

}  // namespace

int main() {
  constexpr CUmemorytype kHost = CU_MEMORYTYPE_HOST, kDevice = CU_MEMORYTYPE_DEVICE, kArray = CU_MEMORYTYPE_ARRAY;
  return tell_facts({{"boxes, array to host", [=] { boxes("array to host", kArray, kHost); }},
                     {"boxes, host to array", [=] { boxes("host to array", kHost, kArray); }},
                     {"boxes, array to device", [=] { boxes("array to device", kArray, kDevice); }},
                     {"boxes, device to array", [=] { boxes("device to array", kDevice, kArray); }},
                     {"boxes, array to array", [=] { boxes("array to array", kArray, kArray); }},
                     {"boxes, host to device", [=] { boxes("host to device", kHost, kDevice); }},
                     {"boxes, device to host", [=] { boxes("device to host", kDevice, kHost); }},
                     {"rows of arrays", rows_of_arrays},
                     {"textures and surfaces", textures},
                     {"questions about arrays", questions_about_arrays},
                     {"clusters", clusters},
                     {"ranges of managed memory", ranges}});
}
