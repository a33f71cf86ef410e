"""Numba: a kernel with shared memory."""

import numpy

if not hasattr(numpy, "row_stack"):
    numpy.row_stack = numpy.vstack  # some releases of Numba ask for the name that NumPy 2 dropped
from numba import cuda, float32


@cuda.jit
def block_sums(values, out):
    partial = cuda.shared.array(128, float32)
    thread = cuda.threadIdx.x
    partial[thread] = values[cuda.grid(1)]
    cuda.syncthreads()
    half = 64
    while half > 0:
        if thread < half:
            partial[thread] += partial[thread + half]
        cuda.syncthreads()
        half //= 2
    if thread == 0:
        out[cuda.blockIdx.x] = partial[0]


values = numpy.arange(128 * 50, dtype=numpy.float32) % 17
out = numpy.zeros(50, numpy.float32)
block_sums[50, 128](values, out)
right = numpy.array_equal(out, values.reshape(50, 128).sum(1))
print("PASSED" if right else "FAILED")
