// Arrays, mipmaps, textures and surfaces in all their shapes. Coordinates and texels are such that filtering is exact:
// every device must give the same bits, but where integers are scaled to [0, 1].
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "../../../support/cuda_check.hpp"

static void expect(bool right, int line, const char* what, double is, double should) {
  if (right) return;
  std::printf("line %d: %s: %.9g instead of %.9g\n", line, what, is, should);
  std::exit(1);
}
#define SAME(is, should) expect((is) == (should), __LINE__, #is, double(is), double(should))
#define NEAR(is, should) expect(std::fabs((is) - (should)) <= 2e-7, __LINE__, #is, double(is), double(should))

constexpr int kWidth = 16, kHeight = 8, kDepth = 6;

static float value(int x, int y, int z) { return float(x * 16 + y * 4 + z * 512); }

struct Settings {
  cudaTextureAddressMode mode = cudaAddressModeClamp;
  cudaTextureFilterMode filter = cudaFilterModePoint;
  cudaTextureReadMode read = cudaReadModeElementType;
  bool normalized = false;
};

static cudaTextureDesc describe(const Settings& s) {
  cudaTextureDesc d{};
  for (auto& mode : d.addressMode) mode = s.mode;
  d.filterMode = s.filter;
  d.readMode = s.read;
  d.normalizedCoords = s.normalized;
  d.borderColor[0] = s.read == cudaReadModeElementType ? 0 : 0.5f;
  return d;
}

static cudaTextureObject_t texture_of(cudaArray_t array, const Settings& s) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaTextureDesc d = describe(s);
  cudaTextureObject_t texture;
  CHECK_RUNTIME(cudaCreateTextureObject(&texture, &resource, &d, nullptr));
  return texture;
}

static cudaSurfaceObject_t surface_of(cudaArray_t array) {
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  cudaSurfaceObject_t surface;
  CHECK_RUNTIME(cudaCreateSurfaceObject(&surface, &resource));
  return surface;
}

static float* results() {
  static float* out = nullptr;
  if (!out) CHECK_RUNTIME(cudaHostAlloc(&out, 16384 * sizeof(float), cudaHostAllocMapped));
  return out;
}

// A float array of any shape, filled with value(x, y, z) by a 3D copy.
static cudaArray_t filled(int width, int height, int depth, unsigned flags, cudaStream_t stream) {
  cudaArray_t array;
  cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  CHECK_RUNTIME(cudaMalloc3DArray(&array, &format, make_cudaExtent(width, height, depth), flags));
  int rows = height ? height : 1, slices = depth ? depth : 1;
  std::vector<float> texels(size_t(width) * rows * slices);
  for (int z = 0; z < slices; ++z) {
    for (int y = 0; y < rows; ++y) {
      for (int x = 0; x < width; ++x) texels[(size_t(z) * rows + y) * width + x] = value(x, y, z);
    }
  }
  cudaMemcpy3DParms copy{};
  copy.srcPtr = make_cudaPitchedPtr(texels.data(), width * sizeof(float), width, rows);
  copy.dstArray = array;
  copy.extent = make_cudaExtent(width, rows, slices);
  copy.kind = cudaMemcpyHostToDevice;
  CHECK_RUNTIME(cudaMemcpy3DAsync(&copy, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  return array;
}

__global__ void read_1d(cudaTextureObject_t t, float* out, float first, float step) {
  int i = threadIdx.x;
  out[i] = tex1D<float>(t, first + i * step);
}

__global__ void read_2d(cudaTextureObject_t t, float* out, float2 first, float2 step) {
  int i = threadIdx.x, j = threadIdx.y;
  out[j * blockDim.x + i] = tex2D<float>(t, first.x + i * step.x, first.y + j * step.y);
}

__global__ void read_3d(cudaTextureObject_t t, float* out, float3 first, float step) {
  int i = threadIdx.x, j = threadIdx.y, k = threadIdx.z;
  out[(k * blockDim.y + j) * blockDim.x + i] =
      tex3D<float>(t, first.x + i * step, first.y + j * step, first.z + k * step);
}

__global__ void read_layers(cudaTextureObject_t one, cudaTextureObject_t two, float* out) {
  int i = threadIdx.x, layer = blockIdx.x;
  float* mine = out + (layer * blockDim.x + i) * 2;
  mine[0] = tex1DLayered<float>(one, i + 0.5f, layer - 1);
  mine[1] = tex2DLayered<float>(two, i + 0.5f, i % kHeight + 0.5f, layer - 1);
}

__global__ void read_cube(cudaTextureObject_t cube, cudaTextureObject_t cubes, float* out) {
  const float3 directions[6] = {{1, 0.25f, -0.75f},  {-1, 0.25f, -0.75f}, {0.25f, 1, -0.75f},
                                {0.25f, -1, -0.75f}, {0.25f, -0.75f, 1},  {0.25f, -0.75f, -1}};
  int i = threadIdx.x;
  float3 d = directions[i];
  out[i * 2] = texCubemap<float>(cube, d.x, d.y, d.z);
  out[i * 2 + 1] = texCubemapLayered<float>(cubes, d.x, d.y, d.z, 1);
}

static void read_shapes(cudaStream_t stream) {
  float* out = results();
  cudaArray_t line = filled(kWidth, 0, 0, 0, stream);
  cudaTextureObject_t t = texture_of(line, {});
  read_1d<<<1, 40, 0, stream>>>(t, out, -4.25f, 0.75f);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int i = 0; i < 40; ++i) {
    int x = int(std::floor(-4.25f + i * 0.75f));
    SAME(out[i], value(x < 0 ? 0 : x >= kWidth ? kWidth - 1 : x, 0, 0));
  }
  CHECK_RUNTIME(cudaDestroyTextureObject(t));

  // Half way and a quarter between texels.
  t = texture_of(line, {.filter = cudaFilterModeLinear});
  read_1d<<<1, 28, 0, stream>>>(t, out, 1.0f, 0.25f);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int i = 0; i < 28; ++i) SAME(out[i], (0.5f + i * 0.25f) * 16);
  CHECK_RUNTIME(cudaDestroyTextureObject(t));

  struct {
    cudaTextureAddressMode mode;
    int at[16];
  } modes[] = {{cudaAddressModeWrap, {8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6}},
               {cudaAddressModeMirror, {7, 5, 3, 1, 0, 2, 4, 6, 8, 10, 12, 14, 15, 13, 11, 9}},
               {cudaAddressModeClamp, {0, 0, 0, 0, 0, 2, 4, 6, 8, 10, 12, 14, 15, 15, 15, 15}},
               {cudaAddressModeBorder, {-1, -1, -1, -1, 0, 2, 4, 6, 8, 10, 12, 14, -1, -1, -1, -1}}};
  for (auto& each : modes) {
    t = texture_of(line, {.mode = each.mode, .normalized = true});
    read_1d<<<1, 16, 0, stream>>>(t, out, -0.484375f, 0.125f);
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    for (int i = 0; i < 16; ++i) SAME(out[i], each.at[i] < 0 ? 0.0f : value(each.at[i], 0, 0));
    CHECK_RUNTIME(cudaDestroyTextureObject(t));
  }
  t = texture_of(line, {.mode = cudaAddressModeWrap, .filter = cudaFilterModeLinear, .normalized = true});
  read_1d<<<1, 2, 0, stream>>>(t, out, 0.0f, 0.5f);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  SAME(out[0], value(15, 0, 0) / 2);  // half way between the last texel and the first
  SAME(out[1], 7.5f * 16);
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaFreeArray(line));

  cudaArray_t plane = filled(kWidth, kHeight, 0, cudaArrayTextureGather, stream);
  t = texture_of(plane, {.filter = cudaFilterModeLinear});
  read_2d<<<1, dim3(16, 16), 0, stream>>>(t, out, make_float2(1.5f, 1.5f), make_float2(0.25f, 0.125f));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int j = 0; j < 16; ++j) {
    for (int i = 0; i < 16; ++i) SAME(out[j * 16 + i], (1 + i * 0.25f) * 16 + (1 + j * 0.125f) * 4);
  }
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaFreeArray(plane));

  cudaArray_t volume = filled(kWidth, kHeight, kDepth, 0, stream);
  t = texture_of(volume, {.filter = cudaFilterModeLinear});
  read_3d<<<1, dim3(6, 6, 6), 0, stream>>>(t, out, make_float3(1.5f, 1.5f, 1.5f), 0.5f);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int k = 0; k < 6; ++k) {
    for (int j = 0; j < 6; ++j) {
      for (int i = 0; i < 6; ++i)
        SAME(out[(k * 6 + j) * 6 + i], (1 + i * 0.5f) * 16 + (1 + j * 0.5f) * 4 + (1 + k * 0.5f) * 512);
    }
  }
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaFreeArray(volume));

  cudaArray_t lines = filled(kWidth, 0, 3, cudaArrayLayered, stream),
              planes = filled(kWidth, kHeight, 3, cudaArrayLayered, stream);
  t = texture_of(lines, {});
  cudaTextureObject_t u = texture_of(planes, {});
  read_layers<<<5, kWidth, 0, stream>>>(t, u, out);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int layer = 0; layer < 5; ++layer) {
    int z = layer == 0 || layer > 3 ? 2 : layer - 1;  // beside the layers is the last one, on either side
    for (int i = 0; i < kWidth; ++i) {
      SAME(out[(layer * kWidth + i) * 2], value(i, 0, z));
      SAME(out[(layer * kWidth + i) * 2 + 1], value(i, i % kHeight, z));
    }
  }
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaDestroyTextureObject(u));
  CHECK_RUNTIME(cudaFreeArray(lines));
  CHECK_RUNTIME(cudaFreeArray(planes));

  cudaArray_t cube = filled(8, 8, 6, cudaArrayCubemap, stream),
              cubes = filled(8, 8, 12, cudaArrayCubemap | cudaArrayLayered, stream);
  t = texture_of(cube, {.normalized = true});
  u = texture_of(cubes, {.normalized = true});
  read_cube<<<1, 6, 0, stream>>>(t, u, out);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  const int places[6][2] = {{7, 3}, {1, 3}, {5, 1}, {5, 7 - 0}, {5, 7}, {3, 7}};
  for (int face = 0; face < 6; ++face) {
    int x = places[face][0], y = places[face][1];
    SAME(out[face * 2], value(x, y, face));
    SAME(out[face * 2 + 1], value(x, y, face + 6));
  }
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaDestroyTextureObject(u));
  CHECK_RUNTIME(cudaFreeArray(cube));
  CHECK_RUNTIME(cudaFreeArray(cubes));
}

template <class T>
__global__ void read_elements(cudaTextureObject_t t, T* out) {
  out[threadIdx.x] = tex2D<T>(t, threadIdx.x + 0.5f, 0.5f);
}
template <class T>
__global__ void read_scaled(cudaTextureObject_t t, T* out) {
  out[threadIdx.x] = tex2D<T>(t, threadIdx.x + 0.5f, 0.5f);
}

template <class T>
static cudaArray_t row_of(const std::vector<T>& texels, cudaChannelFormatDesc format = cudaCreateChannelDesc<T>()) {
  cudaArray_t array;
  CHECK_RUNTIME(cudaMallocArray(&array, &format, texels.size(), 1));
  CHECK_RUNTIME(cudaMemcpy2DToArray(array, 0, 0, texels.data(), texels.size() * sizeof(T), texels.size() * sizeof(T), 1,
                                    cudaMemcpyHostToDevice));
  return array;
}

// As they are.
template <class T>
static void elements(std::function<T(int)> make, std::function<bool(const T&, const T&)> same) {
  std::vector<T> texels(32);
  for (int i = 0; i < 32; ++i) texels[i] = make(i);
  cudaArray_t array = row_of(texels);
  cudaTextureObject_t t = texture_of(array, {});
  T* out = reinterpret_cast<T*>(results());
  read_elements<T><<<1, 32>>>(t, out);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (int i = 0; i < 32; ++i) expect(same(out[i], texels[i]), __LINE__, __PRETTY_FUNCTION__, i, i);
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaFreeArray(array));
}

// Scaled to [0, 1] or [-1, 1].
template <class T>
static void scaled(double largest) {
  std::vector<T> texels(32);
  for (int i = 0; i < 32; ++i) texels[i] = T(i * 8377 - 1000);
  texels[31] = std::numeric_limits<T>::min();
  texels[30] = std::numeric_limits<T>::max();
  cudaArray_t array = row_of(texels);
  cudaTextureObject_t t = texture_of(array, {.read = cudaReadModeNormalizedFloat});
  float* out = results();
  read_scaled<float><<<1, 32>>>(t, out);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (int i = 0; i < 32; ++i) NEAR(double(out[i]), std::max(texels[i] / largest, -1.0));
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaFreeArray(array));
}

__global__ void read_half(cudaTextureObject_t t, float* out) {
  out[threadIdx.x] = tex2D<float>(t, threadIdx.x + 0.5f, 0.5f);
}

static void read_formats() {
  auto plain = [](auto a, auto b) { return a == b; };
  elements<unsigned char>([](int i) { return (unsigned char)(i * 77); }, plain);
  elements<signed char>([](int i) { return (signed char)(i * 77); }, plain);
  elements<unsigned short>([](int i) { return (unsigned short)(i * 7777); }, plain);
  elements<short>([](int i) { return short(i * 7777); }, plain);
  elements<unsigned>([](int i) { return i * 777777777u; }, plain);
  elements<int>([](int i) { return int(i * 777777777u); }, plain);
  elements<float>([](int i) { return i * 0.37f; }, plain);
  elements<float2>(
      [](int i) {
        return float2{float(i), -float(i)};
      },
      [](float2 a, float2 b) { return a.x == b.x && a.y == b.y; });
  elements<uchar4>(
      [](int i) {
        return uchar4{(unsigned char)i, (unsigned char)(i * 3), (unsigned char)(i * 5), (unsigned char)(i * 7)};
      },
      [](uchar4 a, uchar4 b) { return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w; });
  elements<short2>(
      [](int i) {
        return short2{short(-i), short(i * 999)};
      },
      [](short2 a, short2 b) { return a.x == b.x && a.y == b.y; });
  elements<int4>(
      [](int i) {
        return int4{i, -i, i * 2, i * 3};
      },
      [](int4 a, int4 b) { return a.x == b.x && a.y == b.y && a.z == b.z && a.w == b.w; });
  scaled<unsigned char>(255);
  scaled<signed char>(127);
  scaled<unsigned short>(65535);
  scaled<short>(32767);

  std::vector<__half> halves(32);
  for (int i = 0; i < 32; ++i) halves[i] = __float2half(i * 0.75f - 3);
  cudaArray_t array = row_of(halves, cudaCreateChannelDescHalf());
  cudaTextureObject_t t = texture_of(array, {});
  float* out = results();
  read_half<<<1, 32>>>(t, out);
  CHECK_RUNTIME(cudaDeviceSynchronize());
  for (int i = 0; i < 32; ++i) SAME(out[i], i * 0.75f - 3);
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaFreeArray(array));
}

__global__ void read_linear(cudaTextureObject_t line, cudaTextureObject_t plane, float* out) {
  int i = threadIdx.x;
  out[i] = tex1Dfetch<float>(line, i);
  out[32 + i] = tex2D<float>(plane, i % 8 + 0.5f, i / 8 + 0.5f);
}

__global__ void gather(cudaTextureObject_t t, float4* out) { out[0] = tex2Dgather<float4>(t, 3, 2, 0); }

static void read_memory(cudaStream_t stream) {
  float *line, *plane, *out = results();
  size_t pitch;
  std::vector<float> texels(64);
  for (int i = 0; i < 64; ++i) texels[i] = i * 3;
  CHECK_RUNTIME(cudaMalloc(&line, 32 * sizeof(float)));
  CHECK_RUNTIME(cudaMemcpy(line, texels.data(), 32 * sizeof(float), cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaMallocPitch(&plane, &pitch, 8 * sizeof(float), 4));
  CHECK_RUNTIME(
      cudaMemcpy2D(plane, pitch, texels.data(), 8 * sizeof(float), 8 * sizeof(float), 4, cudaMemcpyHostToDevice));
  CHECK_RUNTIME(cudaDeviceSynchronize());  // which `stream` would not wait for
  cudaResourceDesc resource{};
  cudaTextureDesc d = describe({});
  cudaTextureObject_t t, u;
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = line;
  resource.res.linear.desc = cudaCreateChannelDesc<float>();
  resource.res.linear.sizeInBytes = 32 * sizeof(float);
  CHECK_RUNTIME(cudaCreateTextureObject(&t, &resource, &d, nullptr));
  cudaResourceDesc asked{};
  CHECK_RUNTIME(cudaGetTextureObjectResourceDesc(&asked, t));
  expect(asked.res.linear.devPtr == line && asked.res.linear.sizeInBytes == 128, __LINE__, "resource description", 0,
         1);
  resource.resType = cudaResourceTypePitch2D;
  resource.res.pitch2D.devPtr = plane;
  resource.res.pitch2D.desc = cudaCreateChannelDesc<float>();
  resource.res.pitch2D.width = 8;
  resource.res.pitch2D.height = 4;
  resource.res.pitch2D.pitchInBytes = pitch;
  CHECK_RUNTIME(cudaCreateTextureObject(&u, &resource, &d, nullptr));
  read_linear<<<1, 32, 0, stream>>>(t, u, out);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int i = 0; i < 32; ++i) {
    SAME(out[i], texels[i]);
    SAME(out[32 + i], texels[i]);
  }
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaDestroyTextureObject(u));
  CHECK_RUNTIME(cudaFree(line));
  CHECK_RUNTIME(cudaFree(plane));

  cudaArray_t array = filled(kWidth, kHeight, 0, cudaArrayTextureGather, stream);
  t = texture_of(array, {});
  gather<<<1, 1, 0, stream>>>(t, reinterpret_cast<float4*>(out));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  SAME(out[0], value(2, 2, 0));
  SAME(out[1], value(3, 2, 0));
  SAME(out[2], value(3, 1, 0));
  SAME(out[3], value(2, 1, 0));
  CHECK_RUNTIME(cudaDestroyTextureObject(t));
  CHECK_RUNTIME(cudaFreeArray(array));
}

__global__ void write_surfaces(cudaSurfaceObject_t line, cudaSurfaceObject_t plane, cudaSurfaceObject_t volume,
                               cudaSurfaceObject_t layers) {
  int x = threadIdx.x, y = threadIdx.y, z = blockIdx.x;
  float v = x + y * 100 + z * 10000;
  if (y == 0 && z == 0) surf1Dwrite(v, line, x * 4);
  if (z == 0) surf2Dwrite(make_uchar4(x, y, x + y, 255), plane, x * 4, y);
  surf3Dwrite(v, volume, x * 4, y, z);
  surf2DLayeredwrite(v + 0.5f, layers, x * 4, y, z);
  // Beside it: dropped.
  surf3Dwrite(-1.0f, volume, (x + kWidth) * 4, y, z, cudaBoundaryModeZero);
}

__global__ void read_surfaces(cudaSurfaceObject_t line, cudaSurfaceObject_t plane, cudaSurfaceObject_t volume,
                              cudaSurfaceObject_t layers, float* out) {
  int x = threadIdx.x, y = threadIdx.y, z = blockIdx.x;
  float* mine = out + ((z * kHeight + y) * kWidth + x) * 6;
  mine[0] = surf1Dread<float>(line, x * 4);
  uchar4 pixel = surf2Dread<uchar4>(plane, x * 4, y);
  mine[1] = pixel.x + pixel.y * 256 + pixel.z * 65536;
  mine[2] = surf3Dread<float>(volume, x * 4, y, z);
  mine[3] = surf2DLayeredread<float>(layers, x * 4, y, z);
  mine[4] = surf3Dread<float>(volume, (x + 3) * 4, y - 2, z, cudaBoundaryModeClamp);
  mine[5] = surf3Dread<float>(volume, (x + 3) * 4, y - 2, z, cudaBoundaryModeZero);
}

static void surfaces(cudaStream_t stream) {
  cudaChannelFormatDesc real = cudaCreateChannelDesc<float>(), pixel = cudaCreateChannelDesc<uchar4>();
  cudaArray_t line, plane, volume, layers;
  CHECK_RUNTIME(cudaMallocArray(&line, &real, kWidth, 0, cudaArraySurfaceLoadStore));
  CHECK_RUNTIME(cudaMallocArray(&plane, &pixel, kWidth, kHeight, cudaArraySurfaceLoadStore));
  CHECK_RUNTIME(cudaMalloc3DArray(&volume, &real, make_cudaExtent(kWidth, kHeight, kDepth), cudaArraySurfaceLoadStore));
  CHECK_RUNTIME(cudaMalloc3DArray(&layers, &real, make_cudaExtent(kWidth, kHeight, kDepth),
                                  cudaArraySurfaceLoadStore | cudaArrayLayered));
  cudaSurfaceObject_t a = surface_of(line), b = surface_of(plane), c = surface_of(volume), d = surface_of(layers);
  float* out = results();
  write_surfaces<<<kDepth, dim3(kWidth, kHeight), 0, stream>>>(a, b, c, d);
  read_surfaces<<<kDepth, dim3(kWidth, kHeight), 0, stream>>>(a, b, c, d, out);
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int z = 0; z < kDepth; ++z) {
    for (int y = 0; y < kHeight; ++y) {
      for (int x = 0; x < kWidth; ++x) {
        const float* mine = out + ((z * kHeight + y) * kWidth + x) * 6;
        float v = x + y * 100 + z * 10000;
        SAME(mine[0], x);
        SAME(mine[1], x + y * 256 + (x + y) * 65536);
        SAME(mine[2], v);
        SAME(mine[3], v + 0.5f);
        int cx = std::min(x + 3, kWidth - 1), cy = std::max(y - 2, 0);
        SAME(mine[4], cx + cy * 100 + z * 10000);
        SAME(mine[5], x + 3 < kWidth && y >= 2 ? v + 3 - 200 : 0);
      }
    }
  }
  // The array has the surface's writes.
  std::vector<uchar4> pixels(kWidth * kHeight);
  CHECK_RUNTIME(
      cudaMemcpy2DFromArray(pixels.data(), kWidth * 4, plane, 0, 0, kWidth * 4, kHeight, cudaMemcpyDeviceToHost));
  for (int i = 0; i < kWidth * kHeight; ++i) SAME(pixels[i].z, i % kWidth + i / kWidth);
  for (auto s : {a, b, c, d}) CHECK_RUNTIME(cudaDestroySurfaceObject(s));
  for (auto array : {line, plane, volume, layers}) CHECK_RUNTIME(cudaFreeArray(array));
}

__global__ void read_levels(cudaTextureObject_t t, float* out) {
  int i = threadIdx.x;
  out[i] = tex2DLod<float>(t, 0.3f, 0.6f, i * 0.25f);
  out[32 + i] = tex2DGrad<float>(t, 0.3f, 0.6f, make_float2((1 << i) / 32.0f, 0), make_float2(0, (1 << i) / 64.0f));
}

static void mipmaps(cudaStream_t stream) {
  cudaMipmappedArray_t mipmap;
  cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  CHECK_RUNTIME(cudaMallocMipmappedArray(&mipmap, &format, make_cudaExtent(32, 32, 0), 4));
  for (int level = 0; level < 4; ++level) {
    cudaArray_t array;
    CHECK_RUNTIME(cudaGetMipmappedArrayLevel(&array, mipmap, level));
    cudaExtent extent;
    cudaChannelFormatDesc told;
    unsigned flags;
    CHECK_RUNTIME(cudaArrayGetInfo(&told, &extent, &flags, array));
    SAME(extent.width, size_t(32 >> level));
    SAME(extent.height, size_t(32 >> level));
    std::vector<float> texels(extent.width * extent.height, float(level * 64));
    CHECK_RUNTIME(cudaMemcpy2DToArrayAsync(array, 0, 0, texels.data(), extent.width * 4, extent.width * 4,
                                           extent.height, cudaMemcpyHostToDevice, stream));
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
  }
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeMipmappedArray;
  resource.res.mipmap.mipmap = mipmap;
  float* out = results();
  for (bool linear : {false, true}) {
    cudaTextureDesc d = describe({.normalized = true});
    d.mipmapFilterMode = linear ? cudaFilterModeLinear : cudaFilterModePoint;
    d.maxMipmapLevelClamp = 2.75f;
    cudaTextureObject_t t;
    CHECK_RUNTIME(cudaCreateTextureObject(&t, &resource, &d, nullptr));
    read_levels<<<1, 16, 0, stream>>>(t, out);
    CHECK_RUNTIME(cudaStreamSynchronize(stream));
    for (int i = 0; i < 16; ++i) {
      float level = std::min(i * 0.25f, 2.75f);
      if (linear) SAME(out[i], level * 64);
      else if (level - std::floor(level) != 0.5f) SAME(out[i], std::floor(level + 0.5f) * 64);
    }
    for (int i = 0; i < 3; ++i) SAME(out[32 + i], i * 64);
    CHECK_RUNTIME(cudaDestroyTextureObject(t));
  }
  CHECK_RUNTIME(cudaFreeMipmappedArray(mipmap));
}

static void copies(cudaStream_t stream) {
  cudaArray_t from = filled(kWidth, kHeight, 0, 0, stream), to;
  cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  CHECK_RUNTIME(cudaMallocArray(&to, &format, kWidth, kHeight));
  // Array to array, then by way of device memory with a pitch, then back: pinned memory, asynchronously, a part.
  CHECK_RUNTIME(cudaMemcpy2DArrayToArray(to, 0, 0, from, 0, 0, kWidth * 4, kHeight));
  CHECK_RUNTIME(cudaDeviceSynchronize());  // which `stream` would not wait for
  float *device, *pinned;
  size_t pitch;
  CHECK_RUNTIME(cudaMallocPitch(&device, &pitch, kWidth * 4, kHeight));
  CHECK_RUNTIME(cudaMemcpy2DFromArrayAsync(device, pitch, to, 16, 1, (kWidth - 4) * 4, kHeight - 1,
                                           cudaMemcpyDeviceToDevice, stream));
  CHECK_RUNTIME(cudaMemcpy2DToArrayAsync(to, 0, 0, device, pitch, 32, 2, cudaMemcpyDeviceToDevice, stream));
  CHECK_RUNTIME(cudaMallocHost(&pinned, kWidth * kHeight * 4));
  CHECK_RUNTIME(
      cudaMemcpy2DFromArrayAsync(pinned, kWidth * 4, to, 0, 0, kWidth * 4, kHeight, cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) {
      bool moved = y < 2 && x < 8;
      SAME(pinned[y * kWidth + x], moved ? value(x + 4, y + 1, 0) : value(x, y, 0));
    }
  }
  // Pinned memory into the array and out again, nothing waited for in between.
  for (int i = 0; i < kWidth * kHeight; ++i) pinned[i] = i * 2;
  CHECK_RUNTIME(
      cudaMemcpy2DToArrayAsync(to, 0, 0, pinned, kWidth * 4, kWidth * 4, kHeight, cudaMemcpyHostToDevice, stream));
  std::vector<float> back(kWidth * kHeight);
  CHECK_RUNTIME(cudaMemcpy2DFromArrayAsync(back.data(), kWidth * 4, to, 0, 0, kWidth * 4, kHeight,
                                           cudaMemcpyDeviceToHost, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  for (int i = 0; i < kWidth * kHeight; ++i) SAME(back[i], i * 2);

  // In a graph.
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK_RUNTIME(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CHECK_RUNTIME(
      cudaMemcpy2DFromArrayAsync(device, pitch, from, 0, 0, kWidth * 4, kHeight, cudaMemcpyDeviceToDevice, stream));
  CHECK_RUNTIME(
      cudaMemcpy2DToArrayAsync(to, 0, 0, device, pitch, kWidth * 4, kHeight, cudaMemcpyDeviceToDevice, stream));
  CHECK_RUNTIME(cudaStreamEndCapture(stream, &graph));
  CHECK_RUNTIME(cudaGraphInstantiate(&exec, graph, 0));
  CHECK_RUNTIME(cudaGraphLaunch(exec, stream));
  CHECK_RUNTIME(cudaStreamSynchronize(stream));
  CHECK_RUNTIME(cudaMemcpy2DFromArray(back.data(), kWidth * 4, to, 0, 0, kWidth * 4, kHeight, cudaMemcpyDeviceToHost));
  for (int i = 0; i < kWidth * kHeight; ++i) SAME(back[i], value(i % kWidth, i / kWidth, 0));
  CHECK_RUNTIME(cudaGraphExecDestroy(exec));
  CHECK_RUNTIME(cudaGraphDestroy(graph));
  CHECK_RUNTIME(cudaFree(device));
  CHECK_RUNTIME(cudaFreeHost(pinned));
  CHECK_RUNTIME(cudaFreeArray(from));
  CHECK_RUNTIME(cudaFreeArray(to));
}

int main() {
  cudaStream_t stream;
  CHECK_RUNTIME(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  read_shapes(stream);
  read_formats();
  read_memory(stream);
  surfaces(stream);
  mipmaps(stream);
  copies(stream);
  std::printf("PASSED\n");
  return 0;
}
