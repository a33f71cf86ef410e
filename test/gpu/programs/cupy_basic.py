"""CuPy: RawKernel, fft, linear algebra, sorting, sparse matrices, against numpy."""

import numpy

from check import close, needs

cupy = needs("cupy")
import cupyx.scipy.sparse

random = numpy.random.default_rng(9)
a = random.standard_normal((256, 256)).astype(numpy.float32)

kernel = cupy.RawKernel(r"""
extern "C" __global__ void scale(const float* in, float* out, float factor, int count) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] * factor;
}""", "scale")
device = cupy.asarray(a)
out = cupy.empty_like(device)
kernel((256,), (256,), (device, out, numpy.float32(1.5), numpy.int32(a.size)))


def same(name, value, expected, tolerance=1e-4):
    close(name, cupy.asnumpy(value), expected, tolerance)


same("RawKernel", out, a * 1.5)
same("matmul", device @ device, a @ a)
same("fft2", cupy.abs(cupy.fft.fft2(device)), numpy.abs(numpy.fft.fft2(a)))
same("irfft", cupy.fft.irfft(cupy.fft.rfft(device)), a)
same("sort", cupy.sort(device, axis=1), numpy.sort(a, axis=1), 0)
same("argsort", cupy.argsort(device, axis=1), numpy.argsort(a, axis=1), 0)
same("unique", cupy.unique(cupy.asarray([5, 3, 5, 1, 3])), numpy.array([1, 3, 5]), 0)
same("reduction", device.sum(axis=0), a.sum(axis=0), 1e-3)
same("elementwise", cupy.exp(device) + 1, numpy.exp(a) + 1)

symmetric = (a @ a.T + 256 * numpy.eye(256)).astype(numpy.float64)
right = random.standard_normal((256, 3))
same("solve", cupy.linalg.solve(cupy.asarray(symmetric), cupy.asarray(right)), numpy.linalg.solve(symmetric, right),
     1e-9)
same("cholesky", cupy.linalg.cholesky(cupy.asarray(symmetric)), numpy.linalg.cholesky(symmetric), 1e-9)
same("eigvalsh", cupy.linalg.eigvalsh(cupy.asarray(symmetric)), numpy.linalg.eigvalsh(symmetric), 1e-9)
same("svd", cupy.linalg.svd(device, compute_uv=False), numpy.linalg.svd(a, compute_uv=False), 1e-3)

pattern = numpy.where(random.random((256, 256)) < 0.1, a, 0).astype(numpy.float32)
sparse = cupyx.scipy.sparse.csr_matrix(cupy.asarray(pattern))
same("sparse product with a matrix", sparse @ device, pattern @ a)
same("sparse product with a vector", sparse @ device[0], pattern @ a[0])
same("sparse sum", (sparse + sparse).toarray(), 2 * pattern)
print("PASSED")
