"""usage: torch_resume.py [STEPS]: a deterministic training; the bits of the loss of each step, so that one wrong byte
anywhere shows."""

import os
import struct
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
try:
    import torch
    import torch.nn as nn
except ImportError:
    print("NOT INSTALLED: torch")
    sys.exit(77)

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 300
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False
model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(),
                      nn.Linear(32 * 24 * 24, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
curve = []
for step in range(steps):
    # Made on the host, so that each step sends its batch, and each loss comes back.
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    loss = nn.functional.cross_entropy(model(images.cuda(non_blocking=True)), labels.cuda())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    curve.append(loss.item())
print("CURVE " + " ".join(struct.pack(">f", value).hex() for value in curve))
print("WEIGHTS " +
      " ".join(struct.pack(">d",
                           parameter.detach().double().sum().item()).hex() for parameter in model.parameters()))
print("PASSED")
