"""usage: notebook.py torch|jax|cupy: a notebook. Executes a deterministic cell for each line "cell" of its standard
input and prints the bits of its results; "hold GIB" fills so much device memory (torch), "touch" checks it. Prints
"ready" first and PASSED at the end."""

import hashlib
import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
GIB = 1 << 30


def digest(*arrays):
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(array.tobytes())
    return hashed.hexdigest()[:16]


class Torch:
    """Training, a captured graph, an attention, a transform, and copies in two streams."""

    def __init__(self):
        import torch
        from torch import nn
        self.torch, self.nn = torch, nn
        torch.manual_seed(7)
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
        self.model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 26 * 26, 64), nn.ReLU(),
                                   nn.Linear(64, 10)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.side = torch.cuda.Stream()
        self.pinned = torch.empty(1 << 20, dtype=torch.float32, pin_memory=True)
        self.state = torch.ones(1 << 20, device="cuda")
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.state.mul_(1.0001).add_(0.25)
        self.held = []

    def cell(self):
        torch, nn = self.torch, self.nn
        for _ in range(3):
            images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
            loss = nn.functional.cross_entropy(self.model(images.cuda(non_blocking=True)), labels.cuda())
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
        for _ in range(5):
            self.graph.replay()
        heads = torch.randn(2, 4, 64, 32).cuda()
        attended = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        spectrum = torch.fft.rfft(self.state[:4096])
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.pinned.copy_(self.state, non_blocking=True)
        self.side.synchronize()
        weights = [parameter.detach().cpu().numpy() for parameter in self.model.parameters()]
        return digest(loss.detach().cpu().numpy(), attended.cpu().numpy(), spectrum.cpu().numpy(), self.pinned.numpy(),
                      *weights)

    def hold(self, gib):
        for number in range(gib):
            self.held.append(self.torch.full((GIB // 8,), number + 1, dtype=self.torch.int64, device="cuda"))
        self.torch.cuda.synchronize()
        return "held"

    def touch(self):
        wrong = sum(int((block != number + 1).sum()) for number, block in enumerate(self.held))
        return "right" if wrong == 0 else f"{wrong} words are wrong"

    def first(self):
        """The first launch after a suspension."""
        self.state.add_(0)
        self.torch.cuda.synchronize()
        return "done"


class Jax:
    """A training step that is compiled once, and a sort."""

    def __init__(self):
        import jax
        import jax.numpy as jnp
        import numpy
        self.jax, self.jnp, self.numpy = jax, jnp, numpy
        self.key = jax.random.PRNGKey(3)
        self.weights = [jax.random.normal(jax.random.PRNGKey(n), (128, 128)) * 0.05 for n in range(3)]

        def loss(weights, inputs):
            for weight in weights:
                inputs = jnp.tanh(inputs @ weight)
            return (inputs**2).mean()

        def trained(weights, inputs):
            return [weight - 0.1 * slope for weight, slope in zip(weights, jax.grad(loss)(weights, inputs))]

        self.step = jax.jit(trained)

    def cell(self):
        for _ in range(5):
            self.key, sub = self.jax.random.split(self.key)
            inputs = self.jax.random.normal(sub, (256, 128))
            self.weights = self.step(self.weights, inputs)
        ordered = self.jnp.sort(inputs.ravel())
        return digest(self.numpy.asarray(ordered), *[self.numpy.asarray(weight) for weight in self.weights])


class Cupy:
    """A kernel of one's own, a transform, a product and random numbers, in a stream of one's own."""

    def __init__(self):
        import cupy
        self.cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.random = cupy.random.RandomState(5)
        self.values = cupy.arange(1 << 16, dtype=cupy.float32)
        self.kernel = cupy.RawKernel(r"""extern "C" __global__ void step(float* v, float by) {
          int i = blockIdx.x * blockDim.x + threadIdx.x; v[i] = v[i] * 0.5f + by * i; }""", "step")
        cupy.cuda.Device().synchronize()

    def cell(self):
        cupy = self.cupy
        with self.stream:
            self.kernel((256,), (256,), (self.values, cupy.float32(0.25)))
            spectrum = cupy.fft.rfft(self.values)
            square = self.values.reshape(256, 256)
            product = square @ square.T
            numbers = self.random.random_sample(1000)
            ordered = cupy.sort(numbers)
        self.stream.synchronize()
        return digest(*[cupy.asnumpy(array) for array in (self.values, spectrum, product, ordered)])


try:
    notebook = {"torch": Torch, "jax": Jax, "cupy": Cupy}[sys.argv[1]]()
except ImportError:
    print(f"NOT INSTALLED: {sys.argv[1]}")
    sys.exit(77)
print("ready", flush=True)
for line in sys.stdin:
    words = line.split()
    print(getattr(notebook, words[0])(*[int(word) for word in words[1:]]), flush=True)
print("PASSED")
