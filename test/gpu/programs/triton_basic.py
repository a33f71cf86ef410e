"""A Triton kernel, compiled by Triton and launched through its own launcher."""

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, count, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < count
    tl.store(out + offsets, tl.load(x + offsets, mask) + tl.load(y + offsets, mask), mask)


x, y = torch.randn(100003, device="cuda"), torch.randn(100003, device="cuda")
out = torch.empty_like(x)
add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
print("PASSED" if torch.equal(out, x + y) else "FAILED")
