"""The start of every program with PyTorch: the import and a first operation. The runner compares the times."""

import torch

print("PASSED" if torch.ones(4, device="cuda").sum().item() == 4 else "FAILED")
