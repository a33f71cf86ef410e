"""JAX: jit, grad, scan, against numpy."""

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ["JAX_PLATFORMS"] = "cuda"  # without a GPU JAX would use the CPU, and nothing would be tested
import numpy

from check import close, needs

jax = needs("jax")
jnp = jax.numpy

jax.config.update("jax_default_matmul_precision", "highest")
print(jax.devices())
random = numpy.random.default_rng(5)
a, b = random.standard_normal((200, 300), numpy.float32), random.standard_normal((300, 100), numpy.float32)

close("jit", jax.jit(lambda x, y: jnp.tanh(x @ y))(a, b), numpy.tanh(a.astype(numpy.float64) @ b))
close("grad", jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 2))(a), 2 * numpy.sin(a) * numpy.cos(a))
total, steps = jax.lax.scan(lambda carry, x: (carry * 0.5 + x, carry), jnp.zeros(300), a)
expected = numpy.zeros(300)
for row in a:
    expected = expected * 0.5 + row
close("scan", total, expected)
close("sort", jnp.sort(a, axis=1), numpy.sort(a, axis=1))
f = jax.jit(lambda x: (x * 2).sum())
assert all(float(f(a)) == float(f(a)) for _ in range(20))
print("PASSED")
