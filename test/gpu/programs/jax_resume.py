"""usage: jax_resume.py [STEPS]: a deterministic training; the bits of the loss of each step, so that one wrong byte
anywhere shows."""

import os
import struct
import sys

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
    import jax.numpy as jnp
    import numpy
except ImportError:
    print("NOT INSTALLED: jax")
    sys.exit(77)

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
numbers = numpy.random.default_rng(7)
weights = [jnp.asarray(numbers.normal(0, 0.05, shape), jnp.float32) for shape in ((256, 512), (512, 512), (512, 10))]


def loss_of(weights, images, labels):
    hidden = jnp.tanh(jnp.tanh(images @ weights[0]) @ weights[1]) @ weights[2]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(hidden), labels[:, None], axis=1))


@jax.jit
def step(weights, images, labels):
    loss, slopes = jax.value_and_grad(loss_of)(weights, images, labels)
    return loss, [weight - 0.05 * slope for weight, slope in zip(weights, slopes)]


curve = []
for _ in range(steps):
    loss, weights = step(weights, numbers.normal(0, 1, (128, 256)).astype(numpy.float32), numbers.integers(0, 10, 128))
    curve.append(float(loss))
print("CURVE " + " ".join(struct.pack(">f", value).hex() for value in curve))
print("PASSED")
