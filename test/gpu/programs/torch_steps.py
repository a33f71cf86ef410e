"""usage: torch_steps.py [read|unread STEPS]: training steps of a small convolutional network, with the loss read each
step and without.

Without arguments: the milliseconds of both. With them: STEPS steps of one kind after some others, so that the waits of
a step can be counted.
"""

import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
model = nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                      nn.Linear(9216, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
data, target = torch.randn(64, 1, 28, 28, device="cuda"), torch.randint(0, 10, (64,), device="cuda")


def step():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data), target)
    loss.backward()
    optimizer.step()
    return loss


def ms_per_step(count, read):
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(count):
        loss = step()
        if read:
            loss.item()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - started) / count


for _ in range(20):
    first = step()
first = first.item()
if len(sys.argv) > 1:
    ms_per_step(int(sys.argv[2]), sys.argv[1] == "read")
else:
    unread = min(ms_per_step(100, False) for _ in range(3))
    read = min(ms_per_step(100, True) for _ in range(3))
    print("METRICS " + json.dumps({"ms_step": unread, "ms_step_item": read}))
last = step().item()
print("PASSED" if last < first else "FAILED")
