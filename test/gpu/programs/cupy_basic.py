"""CuPy: RawKernel, linear algebra, FFT, sorting, against numpy."""

import cupy
import numpy

random = numpy.random.default_rng(9)
a = random.standard_normal((256, 256)).astype(numpy.float32)


def close(name, value, expected, tolerance=1e-4):
    error = numpy.linalg.norm(cupy.asnumpy(value) - expected) / numpy.linalg.norm(expected)
    print(f"{name}: {'right' if error < tolerance else f'WRONG ({error:.2e})'}")
    assert error < tolerance, name


kernel = cupy.RawKernel(r"""
extern "C" __global__ void scale(const float* in, float* out, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * factor;
}""", "scale")
device = cupy.asarray(a)
out = cupy.empty_like(device)
kernel((256,), (256,), (device, out, numpy.float32(1.5), numpy.int32(a.size)))
close("RawKernel", out, a * 1.5)
close("matmul", device @ device, a @ a)
close("fft", cupy.abs(cupy.fft.fft2(device)), numpy.abs(numpy.fft.fft2(a)))
close("sort", cupy.sort(device, axis=1), numpy.sort(a, axis=1))
close("reduction", device.sum(axis=0), a.sum(axis=0), 1e-3)
close("svd", cupy.linalg.svd(device, compute_uv=False), numpy.linalg.svd(a, compute_uv=False), 1e-3)
close("elementwise", cupy.exp(device) + 1, numpy.exp(a) + 1)
print("PASSED")
