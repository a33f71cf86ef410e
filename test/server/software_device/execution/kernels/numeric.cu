// Arithmetic whose results are compared with the CPU's.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void integers64(const unsigned long long* a, const unsigned long long* b, unsigned long long* out,
                                      int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  unsigned long long x = a[i], y = b[i];
  long long sx = x, sy = y;
  unsigned long long* o = out + i * 16;
  o[0] = x + y;
  o[1] = x * y;
  o[2] = y ? x / y : 0;
  o[3] = y ? x % y : 0;
  o[4] = sy > 0 ? sx / sy : 0;
  o[5] = sy > 0 ? sx % sy : 0;
  o[6] = __umul64hi(x, y);
  o[7] = __mul64hi(sx, sy);
  o[8] = x << (y & 63);
  o[9] = sx >> (y & 63);
  o[10] = __popcll(x) + 100 * __clzll(y) + 10000 * __ffsll(x);
  o[11] = __brevll(x);
  o[12] = min(sx, sy);
  o[13] =
      static_cast<unsigned long long>(static_cast<double>(x)) ^ static_cast<unsigned long long>(static_cast<float>(sy));
  o[14] =
      __funnelshift_l(x, x >> 32, y) + __byte_perm(x, y, 0x7531) + __dp4a(static_cast<int>(x), static_cast<int>(y), 5);
  unsigned __int128 wide = static_cast<unsigned __int128>(x) * y + x;
  o[15] = static_cast<unsigned long long>(wide >> 64) ^ static_cast<unsigned long long>(wide);
}

// o: quotient and remainder, low words first.
extern "C" __global__ void quotients128(const unsigned long long* a, const unsigned long long* b,
                                        unsigned long long* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  using Wide = unsigned __int128;
  Wide x = (Wide)a[2 * i + 1] << 64 | a[2 * i], y = (Wide)b[2 * i + 1] << 64 | b[2 * i];
  Wide quotient = x / y, remainder = x % y;
  unsigned long long* o = out + 4 * i;
  o[0] = quotient, o[1] = quotient >> 64, o[2] = remainder, o[3] = remainder >> 64;
}

extern "C" __global__ void reciprocal_roots(const double* a, double* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = rsqrt(a[i]);
}

extern "C" __global__ void rounded(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = a[i], y = b[i];
  float* o = out + i * 16;
  o[0] = __fadd_rn(x, y), o[1] = __fadd_rz(x, y), o[2] = __fadd_ru(x, y), o[3] = __fadd_rd(x, y);
  o[4] = __fmul_rz(x, y), o[5] = __fdiv_ru(x, y), o[6] = __fsqrt_rd(fabsf(x)), o[7] = __frcp_rz(y);
  o[8] = __fmaf_ru(x, y, x), o[9] = __fmaf_rn(x, y, y), o[10] = x / y, o[11] = sqrtf(fabsf(y));
  o[12] = __saturatef(x), o[13] = fminf(x, y), o[14] = fmaxf(x, y), o[15] = rintf(x) + floorf(y) + ceilf(x) + truncf(y);
}

extern "C" __global__ void rounded_double(const double* a, const double* b, double* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double x = a[i], y = b[i];
  double* o = out + i * 8;
  o[0] = __dadd_rz(x, y), o[1] = __dmul_ru(x, y), o[2] = __ddiv_rd(x, y), o[3] = __dsqrt_rn(fabs(x));
  o[4] = __fma_rz(x, y, x), o[5] = x / y, o[6] = __drcp_ru(y), o[7] = __double2float_rd(x) + __double2float_rz(y);
}

extern "C" __global__ void halves(const float* a, const float* b, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  __half x = __float2half(a[i]), y = __float2half(b[i]);
  float* o = out + i * 16;
  o[0] = __half2float(x + y), o[1] = __half2float(x * y), o[2] = __half2float(__hfma(x, y, x)),
  o[3] = __half2float(x / y);
  __half2 p = __halves2half2(x, y), q = __hmul2(p, p);
  o[4] = __low2float(q), o[5] = __high2float(q), o[6] = x < y, o[7] = __half2float(hsqrt(__habs(x)));
  __nv_bfloat16 u = __float2bfloat16(a[i]), v = __float2bfloat16(b[i]);
  o[8] = __bfloat162float(u + v), o[9] = __bfloat162float(u * v), o[10] = __bfloat162float(u - v), o[11] = u < v;
  o[12] = __half2float(__float2half_rz(a[i])), o[13] = __half2float(__float2half_ru(b[i])), o[14] = __half2int_rn(x),
  o[15] = __half2float(__hmax(x, y));
}

extern "C" __global__ void functions_float(const float* a, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = a[i], p = fabsf(x) + 0.01f;
  float* o = out + i * 16;
  o[0] = sinf(x), o[1] = cosf(x), o[2] = tanf(x), o[3] = expf(x), o[4] = logf(p), o[5] = powf(p, 1.7f), o[6] = erff(x),
  o[7] = tanhf(x);
  o[8] = atan2f(x, p), o[9] = cbrtf(x), o[10] = log1pf(p), o[11] = expm1f(x), o[12] = lgammaf(p), o[13] = asinhf(x),
  o[14] = fmodf(x, 1.3f), o[15] = hypotf(x, p);
}

extern "C" __global__ void functions_double(const double* a, double* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double x = a[i], p = fabs(x) + 0.01;
  double* o = out + i * 16;
  o[0] = sin(x), o[1] = cos(x), o[2] = tan(x), o[3] = exp(x), o[4] = log(p), o[5] = pow(p, 1.7), o[6] = erf(x),
  o[7] = tanh(x);
  o[8] = atan2(x, p), o[9] = cbrt(x), o[10] = log1p(p), o[11] = expm1(x), o[12] = tgamma(p * 0.1), o[13] = acosh(p + 1),
  o[14] = fmod(x, 1.3), o[15] = hypot(x, p);
}

extern "C" __global__ void fast_functions(const float* a, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float x = a[i];
  float* o = out + i * 8;
  o[0] = __sinf(x), o[1] = __cosf(x), o[2] = __expf(x), o[3] = __logf(fabsf(x) + 1), o[4] = rsqrtf(fabsf(x) + 1),
  o[5] = __fdividef(x, 3.0f), o[6] = __powf(2.5f, x), o[7] = x;
}

extern "C" __global__ void conversions(const double* a, long long* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  double x = a[i];
  float f = static_cast<float>(x);
  long long* o = out + i * 16;
  o[0] = __double2int_rn(x), o[1] = __double2uint_rz(x), o[2] = __double2ll_rd(x), o[3] = __double2ull_ru(x);
  o[4] = __float2int_rn(f), o[5] = __float2uint_rz(f), o[6] = __float2ll_rd(f), o[7] = __float2ull_ru(f);
  o[8] = static_cast<signed char>(__float2int_rz(f)), o[9] = static_cast<short>(x);
  o[10] = __float_as_int(__int2float_rz(static_cast<int>(o[2]))),
  o[11] = __double_as_longlong(__ll2double_ru(o[6] * 1237));
  o[12] = __float_as_int(__ull2float_rn(static_cast<unsigned long long>(o[6]) * 1237u)),
  o[13] = __float_as_int(__ll2float_rd(o[2] * 77777));
  o[14] = __half_as_ushort(__double2half(x)), o[15] = __float_as_int(f);
}
