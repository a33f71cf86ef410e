"""PyTorch's everyday operations against the CPU."""

import torch

torch.manual_seed(1)
torch.backends.cuda.matmul.allow_tf32 = False
assert torch.cuda.is_available()
print(torch.cuda.get_device_name(0))


def close(name, gpu, cpu, tolerance=1e-4):
    error = (gpu.double().cpu() - cpu.double()).norm() / cpu.double().norm().clamp_min(1e-12)
    print(f"{name}: {'right' if error < tolerance else f'WRONG ({error:.2e})'}, within {tolerance:g}")
    assert error < tolerance, name


a, b = torch.randn(300, 200), torch.randn(200, 250)
close("matmul", a.cuda() @ b.cuda(), a @ b)
close("softmax", a.cuda().softmax(1), a.softmax(1))
close("sum", a.cuda().sum(), a.sum(), 1e-3)
close("sort", a.cuda().sort(1).values, a.sort(1).values)
close("cumsum", a.cuda().cumsum(1), a.cumsum(1))
close("index", a.cuda()[torch.arange(0, 300, 3).cuda()], a[::3])
image, weight = torch.randn(4, 3, 32, 32), torch.randn(8, 3, 3, 3)
close("conv2d", torch.nn.functional.conv2d(image.cuda(), weight.cuda(), padding=1),
      torch.nn.functional.conv2d(image, weight, padding=1), 1e-3)
close("bf16 matmul", (a.cuda().bfloat16() @ b.cuda().bfloat16()), a @ b, 2e-2)
close("fft", torch.fft.rfft(a.cuda()).abs(), torch.fft.rfft(a).abs())
x = torch.randn(64, 64, requires_grad=True)
y = x.detach().cuda().requires_grad_()
(x.tanh() @ x).pow(2).sum().backward()
(y.tanh() @ y).pow(2).sum().backward()
close("autograd", y.grad, x.grad)
pinned = torch.randn(1 << 18).pin_memory()
close("pinned copy", pinned.to("cuda", non_blocking=True), pinned)
streams = [torch.cuda.Stream() for _ in range(2)]
results = []
for stream in streams:
    with torch.cuda.stream(stream):
        results.append(a.cuda() * 2)
torch.cuda.synchronize()
close("streams", results[0] + results[1], a * 4)
assert a.cuda().sum().item() == a.cuda().sum().item()
free, total = torch.cuda.mem_get_info()
assert 0 < free <= total
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    raise SystemExit("an allocation of a petabyte succeeded")
except torch.OutOfMemoryError:
    print("out of memory: caught")
close("after it", a.cuda() @ b.cuda(), a @ b)
print("PASSED")
