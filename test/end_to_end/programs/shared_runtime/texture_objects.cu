// Texture and surface objects: linear memory, pitched memory, arrays with filtering and address modes, layers, volumes,
// mipmaps, many at once.
#include <string>
#include <utility>

#include "../../../support/cuda_check.hpp"

namespace {

__global__ void fetch_linear(cudaTextureObject_t texture, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex1Dfetch<float>(texture, i);
}
__global__ void sample(cudaTextureObject_t texture, const float2* at, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex2D<float>(texture, at[i].x, at[i].y);
}
__global__ void sample_volume(cudaTextureObject_t texture, float* out, int width, int height, int depth) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < width * height * depth)
    out[i] = tex3D<float>(texture, i % width + 0.5f, i / width % height + 0.5f, i / (width * height) + 0.5f);
}
__global__ void sample_layers(cudaTextureObject_t texture, float* out, int width, int height, int layers) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < width * height * layers)
    out[i] = tex2DLayered<float>(texture, i % width + 0.5f, i / width % height + 0.5f, i / (width * height));
}
__global__ void sample_level(cudaTextureObject_t texture, float* out, int side, float level) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < side * side) out[i] = tex2DLod<float>(texture, (i % side + 0.5f) / side, (i / side + 0.5f) / side, level);
}
__global__ void write_surface(cudaSurfaceObject_t surface, int width, int height) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < width * height) surf2Dwrite(float(i) * 2, surface, i % width * int(sizeof(float)), i / width);
}
__global__ void add_to_surface(cudaSurfaceObject_t surface, int width, int height) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= width * height) return;
  const float value = surf2Dread<float>(surface, i % width * int(sizeof(float)), i / width);
  surf2Dwrite(value + 1, surface, i % width * int(sizeof(float)), i / width);
}
__global__ void fetch_bytes(cudaTextureObject_t texture, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex1Dfetch<float4>(texture, i).y;
}
__global__ void first_of_each(const cudaTextureObject_t* textures, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex1Dfetch<float>(textures[i], 0);
}

constexpr int kWidth = 40, kHeight = 24;
const cudaChannelFormatDesc kFloat = {32, 0, 0, 0, cudaChannelFormatKindFloat};

cudaTextureObject_t texture_of(const cudaResourceDesc& resource, cudaTextureDesc texture) {
  cudaTextureObject_t object;
  CHECK_RUNTIME(cudaCreateTextureObject(&object, &resource, &texture, nullptr));
  return object;
}

cudaTextureDesc points() {
  cudaTextureDesc texture{};
  for (auto& mode : texture.addressMode) mode = cudaAddressModeClamp;
  texture.filterMode = cudaFilterModePoint;
  texture.readMode = cudaReadModeElementType;
  return texture;
}

std::vector<float> image() { return check::Random(1).values<float>(kWidth * kHeight); }

void linear_memory() {
  const auto host = image();
  check::Device<float> memory(host), out(host.size());
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear = {memory.get(), kFloat, host.size() * sizeof(float)};
  const auto texture = texture_of(resource, points());
  fetch_linear<<<8, 128>>>(texture, out.get(), int(host.size()));
  EXPECT(out.host() == host);
  cudaResourceDesc back;
  CHECK_RUNTIME(cudaGetTextureObjectResourceDesc(&back, texture));
  EXPECT(back.resType == cudaResourceTypeLinear && back.res.linear.devPtr == memory.get());
  CHECK_RUNTIME(cudaDestroyTextureObject(texture));
}

// Bytes read as fractions of one.
void normalised_bytes() {
  std::vector<uchar4> host(100);
  for (int i = 0; i < 100; ++i) host[i] = {0, static_cast<unsigned char>(i), 0, 0};
  check::Device<uchar4> memory(host);
  check::Device<float> out(host.size());
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear = {memory.get(), {8, 8, 8, 8, cudaChannelFormatKindUnsigned}, host.size() * sizeof(uchar4)};
  auto texture = points();
  texture.readMode = cudaReadModeNormalizedFloat;
  const auto object = texture_of(resource, texture);
  fetch_bytes<<<1, 128>>>(object, out.get(), 100);
  const auto result = out.host();
  for (int i = 0; i < 100; ++i) EXPECT(std::fabs(result[i] - i / 255.0f) < 1e-6f);
  CHECK_RUNTIME(cudaDestroyTextureObject(object));
}

std::vector<float> sampled(cudaTextureObject_t texture, const std::vector<float2>& at) {
  check::Device<float2> places(at);
  check::Device<float> out(at.size());
  sample<<<unsigned(at.size() + 127) / 128, 128>>>(texture, places.get(), out.get(), int(at.size()));
  CHECK_RUNTIME(cudaGetLastError());
  return out.host();
}

void pitched_memory() {
  const auto host = image();
  float* memory;
  size_t pitch = 0;
  CHECK_RUNTIME(cudaMallocPitch(&memory, &pitch, kWidth * sizeof(float), kHeight));
  CHECK_RUNTIME(cudaMemcpy2D(memory, pitch, host.data(), kWidth * sizeof(float), kWidth * sizeof(float), kHeight,
                             cudaMemcpyHostToDevice));
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypePitch2D;
  resource.res.pitch2D = {memory, kFloat, kWidth, kHeight, pitch};
  const auto texture = texture_of(resource, points());
  std::vector<float2> at;
  for (int i = 0; i < kWidth * kHeight; ++i) at.push_back({i % kWidth + 0.5f, i / kWidth + 0.5f});
  EXPECT(sampled(texture, at) == host);
  CHECK_RUNTIME(cudaDestroyTextureObject(texture));
  CHECK_RUNTIME(cudaFree(memory));
}

struct Array {
  cudaArray_t array;
  Array(const std::vector<float>& host, unsigned flags = 0) {
    CHECK_RUNTIME(cudaMallocArray(&array, &kFloat, kWidth, kHeight, flags));
    CHECK_RUNTIME(cudaMemcpy2DToArray(array, 0, 0, host.data(), kWidth * sizeof(float), kWidth * sizeof(float), kHeight,
                                      cudaMemcpyHostToDevice));
  }
  ~Array() { cudaFreeArray(array); }
  cudaResourceDesc resource() const {
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
  }
};

// Weights of the hardware have eight fractional bits.
constexpr float kFilterTolerance = 1.0f / 128;

void filtering() {
  const auto host = image();
  const Array array(host);
  auto description = points();
  description.filterMode = cudaFilterModeLinear;
  const auto texture = texture_of(array.resource(), description);
  check::Random random(2);
  std::vector<float2> at;
  for (int i = 0; i < 500; ++i) at.push_back({(random.next() + 1) * kWidth / 2, (random.next() + 1) * kHeight / 2});
  const auto result = sampled(texture, at);
  const auto texel = [&](int x, int y) {
    x = x < 0 ? 0 : x >= kWidth ? kWidth - 1 : x;
    y = y < 0 ? 0 : y >= kHeight ? kHeight - 1 : y;
    return host[y * kWidth + x];
  };
  for (size_t i = 0; i < at.size(); ++i) {
    const float x = at[i].x - 0.5f, y = at[i].y - 0.5f;
    const int left = int(std::floor(x)), top = int(std::floor(y));
    const float a = x - left, b = y - top;
    const float expected = (1 - a) * (1 - b) * texel(left, top) + a * (1 - b) * texel(left + 1, top) +
                           (1 - a) * b * texel(left, top + 1) + a * b * texel(left + 1, top + 1);
    EXPECT(std::fabs(result[i] - expected) < kFilterTolerance);
  }
  std::printf("filtering: right, within %g\n", kFilterTolerance);
  CHECK_RUNTIME(cudaDestroyTextureObject(texture));
}

void address_modes() {
  const auto host = image();
  const Array array(host);
  auto description = points();
  description.normalizedCoords = 1;
  const auto at_once = [&](cudaTextureAddressMode mode, float2 place) {
    for (auto& each : description.addressMode) each = mode;
    const auto texture = texture_of(array.resource(), description);
    const float value = sampled(texture, {place})[0];
    CHECK_RUNTIME(cudaDestroyTextureObject(texture));
    return value;
  };
  const float2 outside{1 + 2.5f / kWidth, 3.5f / kHeight};  // two texels beyond the right edge, row 3
  EXPECT(at_once(cudaAddressModeClamp, outside) == host[3 * kWidth + kWidth - 1]);
  EXPECT(at_once(cudaAddressModeWrap, outside) == host[3 * kWidth + 2]);
  EXPECT(at_once(cudaAddressModeMirror, outside) == host[3 * kWidth + kWidth - 3]);
  EXPECT(at_once(cudaAddressModeBorder, outside) == 0);
}

void volumes_and_layers() {
  constexpr int kDepth = 6;
  const auto host = check::Random(3).values<float>(kWidth * kHeight * kDepth);
  check::Device<float> out(host.size());
  for (const bool layered : {false, true}) {
    cudaArray_t array;
    CHECK_RUNTIME(
        cudaMalloc3DArray(&array, &kFloat, make_cudaExtent(kWidth, kHeight, kDepth), layered ? cudaArrayLayered : 0));
    cudaMemcpy3DParms copy{};
    copy.srcPtr = make_cudaPitchedPtr(const_cast<float*>(host.data()), kWidth * sizeof(float), kWidth, kHeight);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(kWidth, kHeight, kDepth);
    copy.kind = cudaMemcpyHostToDevice;
    CHECK_RUNTIME(cudaMemcpy3D(&copy));
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    const auto texture = texture_of(resource, points());
    const unsigned blocks = unsigned(host.size() + 127) / 128;
    if (layered) {
      sample_layers<<<blocks, 128>>>(texture, out.get(), kWidth, kHeight, kDepth);
    } else {
      sample_volume<<<blocks, 128>>>(texture, out.get(), kWidth, kHeight, kDepth);
    }
    EXPECT(out.host() == host);
    cudaChannelFormatDesc format;
    cudaExtent extent;
    unsigned flags = 0;
    CHECK_RUNTIME(cudaArrayGetInfo(&format, &extent, &flags, array));
    EXPECT(format.x == 32 && extent.width == kWidth && extent.depth == kDepth &&
           flags == (layered ? cudaArrayLayered : 0u));
    CHECK_RUNTIME(cudaDestroyTextureObject(texture));
    CHECK_RUNTIME(cudaFreeArray(array));
  }
}

void surfaces() {
  const Array array(image(), cudaArraySurfaceLoadStore);
  const auto resource = array.resource();
  cudaSurfaceObject_t surface;
  CHECK_RUNTIME(cudaCreateSurfaceObject(&surface, &resource));
  write_surface<<<8, 128>>>(surface, kWidth, kHeight);
  add_to_surface<<<8, 128>>>(surface, kWidth, kHeight);
  std::vector<float> host(kWidth * kHeight);
  CHECK_RUNTIME(cudaMemcpy2DFromArray(host.data(), kWidth * sizeof(float), array.array, 0, 0, kWidth * sizeof(float),
                                      kHeight, cudaMemcpyDeviceToHost));
  for (int i = 0; i < kWidth * kHeight; ++i) EXPECT(host[i] == i * 2 + 1);
  CHECK_RUNTIME(cudaDestroySurfaceObject(surface));
}

void mipmaps() {
  constexpr int kSide = 32, kLevels = 4;
  cudaMipmappedArray_t mipmap;
  CHECK_RUNTIME(cudaMallocMipmappedArray(&mipmap, &kFloat, make_cudaExtent(kSide, kSide, 0), kLevels));
  for (int level = 0; level < kLevels; ++level) {
    cudaArray_t array;
    CHECK_RUNTIME(cudaGetMipmappedArrayLevel(&array, mipmap, unsigned(level)));
    const int side = kSide >> level;
    std::vector<float> host(side * side);
    for (int i = 0; i < side * side; ++i) host[i] = float(1000 * level + i);
    CHECK_RUNTIME(cudaMemcpy2DToArray(array, 0, 0, host.data(), side * sizeof(float), side * sizeof(float), side,
                                      cudaMemcpyHostToDevice));
  }
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeMipmappedArray;
  resource.res.mipmap.mipmap = mipmap;
  auto description = points();
  description.normalizedCoords = 1;
  description.mipmapFilterMode = cudaFilterModePoint;
  description.maxMipmapLevelClamp = kLevels - 1;
  const auto texture = texture_of(resource, description);
  check::Device<float> out(kSide * kSide);
  for (int level = 0; level < kLevels; ++level) {
    const int side = kSide >> level;
    sample_level<<<8, 128>>>(texture, out.get(), side, float(level));
    const auto host = out.host();
    for (int i = 0; i < side * side; ++i) EXPECT(host[i] == float(1000 * level + i));
  }
  CHECK_RUNTIME(cudaDestroyTextureObject(texture));
  CHECK_RUNTIME(cudaFreeMipmappedArray(mipmap));
}

void many_at_once() {
  constexpr int kMany = 300, kApart = 128;  // 512 bytes: the alignment of textures
  const auto host = check::Random(4).values<float>(kMany * kApart);
  check::Device<float> memory(host), out(kMany);
  std::vector<cudaTextureObject_t> textures;
  for (int i = 0; i < kMany; ++i) {
    cudaResourceDesc resource{};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear = {memory.get() + i * kApart, kFloat, kApart * sizeof(float)};
    textures.push_back(texture_of(resource, points()));
  }
  check::Device<cudaTextureObject_t> handles(textures);
  first_of_each<<<3, 128>>>(handles.get(), out.get(), kMany);
  const auto result = out.host();
  for (int i = 0; i < kMany; ++i) EXPECT(result[i] == host[i * kApart]);
  for (const auto texture : textures) CHECK_RUNTIME(cudaDestroyTextureObject(texture));
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::pair<std::string, void (*)()>> parts = {{"linear_memory", linear_memory},
                                                                 {"normalised_bytes", normalised_bytes},
                                                                 {"pitched_memory", pitched_memory},
                                                                 {"filtering", filtering},
                                                                 {"address_modes", address_modes},
                                                                 {"volumes_and_layers", volumes_and_layers},
                                                                 {"surfaces", surfaces},
                                                                 {"mipmaps", mipmaps},
                                                                 {"many_at_once", many_at_once}};
  for (const auto& [name, part] : parts)
    if (argc < 2 || name == argv[1]) part();
  std::printf("PASSED\n");
  return 0;
}
