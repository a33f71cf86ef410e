#!/usr/bin/env python3
"""Steps of networks in PyTorch, as one line of JSON.

usage: torch_workloads.py [cnn|cnn-read|resnet50|resnet50-infer|gpt2]... [--steps N] [--seed N]

cnn       training of a small convolutional network; each step copies its batch of 0.8 MB out of pageable memory
cnn-read  the same, with the loss read after each step
resnet50  training of ResNet-50, 32 images of 224 x 224 in pinned memory, mixed precision, the loss read every 10 steps
resnet50-infer  ResNet-50 of one image at a time, out of pageable memory; each answer is read
gpt2      tokens of GPT-2 small (124 M parameters, random ones), one after the other with kept keys and values; each is
          read, as a program does that prints it

One after the other in one process. Prints the milliseconds of the first step of each, which for the first of them has
CUDA's start in it, and the median of its others. Exit code 77: PyTorch is not installed.
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as error:
    print(f"PyTorch is not installed: {error}")
    sys.exit(77)

WARM_UP_STEPS = 5
ROUNDS = 5


def cnn(read):
    model = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1),
                          nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(4096, 128), nn.ReLU(),
                          nn.Linear(128, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, labels = torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))

    def step(_):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        if read:
            loss.item()

    return step


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut (He et al., Deep Residual Learning, table 1)."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
                                  nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images):
        return F.relu(self.body(images) + self.shortcut(images))


def resnet50_model():
    layers, inputs = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
    for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for index in range(depth):
            layers.append(Bottleneck(inputs, width, 2 if index == 0 and width > 64 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)).cuda()


def resnet50():
    model = resnet50_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    images, labels = torch.randn(32, 3, 224, 224).pin_memory(), torch.randint(0, 1000, (32,)).pin_memory()

    def step(number):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
        loss.backward()
        optimizer.step()
        if number % 10 == 9:
            loss.item()

    return step


def resnet50_infer():
    model = resnet50_model().eval()
    image = torch.randn(1, 3, 224, 224)

    @torch.no_grad()
    def step(_):
        model(image.cuda(non_blocking=True)).argmax(-1).item()

    return step


class Block(nn.Module):
    """A layer of GPT-2 for one token at a time; keys and values of the ones before stay on the GPU."""

    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.register_buffer("kept", torch.zeros(2, 1, heads, context, width // heads))

    def forward(self, token, position):
        query, key, value = self.attention(self.before(token)).view(1, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.kept[0, :, :, position] = key[:, :, 0]
        self.kept[1, :, :, position] = value[:, :, 0]
        keys, values = self.kept[:, :, :, :position + 1]
        attended = F.scaled_dot_product_attention(query, keys, values)
        token = token + self.projection(attended.transpose(1, 2).reshape(token.shape))
        return token + self.mlp(self.after(token))


class Gpt2(nn.Module):

    def __init__(self, words=50257, context=1024, width=768, depth=12, heads=12):
        super().__init__()
        self.context = context
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, context) for _ in range(depth))
        self.last = nn.LayerNorm(width)

    def forward(self, word, position):
        token = self.words(word) + self.positions.weight[position]
        for block in self.blocks:
            token = block(token, position)
        return F.linear(self.last(token), self.words.weight).argmax(-1)


def gpt2():
    model = Gpt2().cuda().eval()
    word = torch.zeros(1, 1, dtype=torch.long, device="cuda")

    @torch.no_grad()
    def step(number):
        nonlocal word
        word = model(word, number % model.context)
        word.item()

    return step


WORKLOADS = {"cnn": lambda: cnn(False), "cnn-read": lambda: cnn(True), "resnet50": resnet50,
             "resnet50-infer": resnet50_infer, "gpt2": gpt2}


def measure(workload, steps):
    begun = time.perf_counter()
    step = WORKLOADS[workload]()
    step(0)
    torch.cuda.synchronize()
    first = time.perf_counter() - begun
    for number in range(1, WARM_UP_STEPS):
        step(number)
    torch.cuda.synchronize()
    # Steps that wait for nothing run ahead of the GPU: what counts is the whole of some.
    times = []
    each = max(steps // ROUNDS, 1)
    for turn in range(ROUNDS):
        start = time.perf_counter()
        for number in range(each):
            step(WARM_UP_STEPS + turn * each + number)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / each)
    return {"first_step_ms": 1000 * first, "step_ms": 1000 * statistics.median(times)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], metavar="WORKLOAD")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    print(json.dumps({name: measure(name, options.steps) for name in options.workloads or WORKLOADS}))


if __name__ == "__main__":
    main()
