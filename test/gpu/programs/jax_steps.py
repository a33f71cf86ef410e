"""usage: jax_steps.py STEPS: calls of one compiled function on data that stay on the device. A steady call waits for
nothing but its host callback."""

import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ["JAX_PLATFORMS"] = "cuda"

import numpy

from check import close, needs

jax = needs("jax")
steps = int(sys.argv[1])
x = jax.device_put(numpy.linspace(-1, 1, 300 * 300, dtype=numpy.float32).reshape(300, 300))
scale = jax.device_put(numpy.float32(0.5))


@jax.jit
def step(x):
    return jax.numpy.sin(x) * scale + x * scale


for _ in range(20):
    y = step(x)
y.block_until_ready()
expected = numpy.asarray(x, numpy.float64)
y = x
for _ in range(steps):
    y = step(y)
result = numpy.asarray(y)
for _ in range(steps):
    expected = numpy.sin(expected) * 0.5 + expected * 0.5
close("iterated", result, expected, 1e-4)
print("PASSED")
