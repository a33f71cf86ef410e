#!/usr/bin/env python3
"""A PyTorch tenant of a shared GPU, for bench/sharing/run: inference or training, one line of JSON at the end.

usage: torch_tenant.py infer|train-small|train-large|nccl [--seconds S] [--pause-ms T] [--rounds N]

Each iteration ends with the result on the host and adds one to a counter on the GPU, which has to agree with the number
of iterations in the end. Says
"ready" when it has warmed up; each line "go" on standard input begins a round, which ends with one line of JSON.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time

import torch
from torch import nn


def block(inputs, outputs, stride):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def network(width, depth):
    layers = [block(3, width, 1)] + [block(width, width, 1) for _ in range(depth)] + [
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)
    ]
    return nn.Sequential(*layers).cuda()


def inference():
    model = network(32, 10).eval()
    images = torch.randn(1, 3, 32, 32, device="cuda")

    @torch.no_grad()
    def iteration():
        return model(images).argmax(1).item()
    return iteration


def training(width, depth, batch, size):
    model = network(width, depth)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    images = torch.randn(batch, 3, size, size, device="cuda")
    labels = torch.randint(0, 10, (batch,), device="cuda")

    def iteration():
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()
    return iteration


def collective():
    """NCCL of one rank: what a library does that shares the GPU with itself alone; and some arithmetic before it."""
    import torch.distributed as distributed
    folder = tempfile.TemporaryDirectory()
    meeting = "file://" + os.path.join(folder.name, "rendezvous")
    distributed.init_process_group("nccl", init_method=meeting, rank=0, world_size=1)
    part = torch.randn(512, 512, device="cuda")
    whole = torch.empty_like(part)

    def iteration():
        distributed.all_gather_into_tensor(whole, torch.tanh(part @ part))
        return whole[0, 0].item()
    iteration.folder = folder
    return iteration


MODES = {
    "infer": inference,
    "nccl": collective,
    "train-small": lambda: training(32, 8, 64, 32),
    "train-large": lambda: training(128, 12, 128, 64),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--pause-ms", type=float, default=0, help="mean pause between two iterations (a request each)")
    parser.add_argument("--rounds", type=int, default=1, help="0: until standard input ends")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    pauses = random.Random(options.seed)
    torch.backends.cudnn.benchmark = False
    iteration = MODES[options.mode]()
    counter = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(20):
        iteration()
    torch.cuda.synchronize()
    print("ready", flush=True)
    total = rounds = 0
    while rounds < options.rounds or not options.rounds:
        line = sys.stdin.readline()
        if not line and not options.rounds:
            break
        if line.strip() != "go":
            sys.exit(3)
        ends, latencies = run_round(options, iteration, counter, pauses)
        total += len(ends)
        rounds += 1
        if counter.item() != total:
            sys.exit(f"the GPU has counted {counter.item()} iterations, not {total}")
        print(
            json.dumps({
                "mode": options.mode, "ends": [round(end, 6) for end in ends],
                "latencies_us": [round(l, 1) for l in latencies]
            }), flush=True)


def run_round(options, iteration, counter, pauses):
    ends, latencies = [], []
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        if options.pause_ms:
            time.sleep(pauses.uniform(0.5, 1.5) * options.pause_ms / 1000)
        start = time.monotonic()
        counter += 1
        iteration()
        ends.append(time.monotonic())
        latencies.append((ends[-1] - start) * 1e6)
    return ends, latencies


if __name__ == "__main__":
    main()
