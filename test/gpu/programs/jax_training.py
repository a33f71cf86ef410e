"""usage: jax_training.py perceptron|convolutional: two small networks for handwritten digits, trained with JAX alone.

`perceptron`: 784-256-10 with ReLU, batches of 256, plain gradient descent. `convolutional`: 32 filters of 3 x 3, ReLU,
2 x 2 maxima, 64 and 10 units,
batches of 64, Adam, 5 epochs. Prints the loss curve, which the runner compares between native and remote.
"""

import json
import os
import sys

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ["JAX_PLATFORMS"] = "cuda"  # without a GPU JAX would use the CPU, and nothing would be tested

import numpy

from check import needs
from digits import make_digits

jax = needs("jax")
jnp = jax.numpy


def dense(key, inputs, outputs):
    return jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5, jnp.zeros(outputs)


def perceptron(parameters, x):
    (w1, b1), (w2, b2) = parameters
    return jax.nn.relu(x.reshape(-1, 784) @ w1 + b1) @ w2 + b2


def convolutional(parameters, x):
    (filters, bias), (w1, b1), (w2, b2) = parameters
    x = jax.lax.conv_general_dilated(x, filters, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    x = jax.nn.relu(x + bias)
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return jax.nn.relu(x.reshape(len(x), -1) @ w1 + b1) @ w2 + b2


def loss_of(network):
    def loss(parameters, x, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(network(parameters, x)), y[:, None], 1).mean()
    return loss


def descent(rate):
    return lambda parameters: (), lambda gradients, state, parameters: (jax.tree.map(lambda p, g: p - rate * g,
                                                                                     parameters, gradients), state)


def adam(rate, decay=0.9, square_decay=0.999):
    def start(parameters):
        zeros = jax.tree.map(jnp.zeros_like, parameters)
        return zeros, zeros, 0

    def step(gradients, state, parameters):
        mean, square, count = state
        count += 1
        mean = jax.tree.map(lambda m, g: decay * m + (1 - decay) * g, mean, gradients)
        square = jax.tree.map(lambda s, g: square_decay * s + (1 - square_decay) * g * g, square, gradients)
        scale = rate * (1 - square_decay ** count) ** 0.5 / (1 - decay ** count)
        return jax.tree.map(lambda p, m, s: p - scale * m / (jnp.sqrt(s) + 1e-8), parameters, mean,
                            square), (mean, square, count)
    return start, step


keys = jax.random.split(jax.random.PRNGKey(0), 3)
if sys.argv[1] == "perceptron":
    network, batch, epochs, (start, update) = perceptron, 256, 5, descent(0.5)
    parameters = [dense(keys[0], 784, 256), dense(keys[1], 256, 10)]
else:
    network, batch, epochs, (start, update) = convolutional, 64, 5, adam(1e-3)
    parameters = [(jax.random.normal(keys[0], (3, 3, 1, 32)) * (2 / 9)**0.5, jnp.zeros(32)),
                  dense(keys[1], 13 * 13 * 32, 64),
                  dense(keys[2], 64, 10)]


@jax.jit
def step(parameters, state, x, y):
    loss, gradients = jax.value_and_grad(loss_of(network))(parameters, x, y)
    parameters, state = update(gradients, state, parameters)
    return parameters, state, loss


train_x, train_y = make_digits(6400, 1)
test_x, test_y = make_digits(2000, 2)
train_x, test_x = (x.reshape(-1, 28, 28, 1) for x in (train_x, test_x))
random, state, curve = numpy.random.default_rng(3), start(parameters), []
for epoch in range(epochs):
    order, losses = random.permutation(len(train_x)), []
    for first in range(0, len(order) - batch + 1, batch):
        rows = order[first:first + batch]
        parameters, state, loss = step(parameters, state, train_x[rows], train_y[rows].astype(numpy.int32))
        losses.append(loss)
    curve.append(float(jnp.stack(losses).mean()))
    print(f"epoch {epoch + 1}: loss {curve[-1]:.4f}", flush=True)
accuracy = float((jax.jit(network)(parameters, test_x).argmax(1) == test_y).mean())
print("METRICS " + json.dumps({"accuracy": accuracy, "curve": curve}))
print("PASSED" if accuracy >= 0.95 else "FAILED")
