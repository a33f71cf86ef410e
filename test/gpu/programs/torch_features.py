"""One feature of PyTorch a run: torch_features.py NAME. Each checks itself and ends with PASSED."""

import contextlib
import os
import subprocess
import sys
import tempfile

import torch


def close(gpu, expected, tolerance=1e-4):
    error = (gpu.detach().double().cpu() -
             expected.detach().double().cpu()).norm() / expected.double().norm().clamp_min(1e-12)
    assert error < tolerance, f"relative error {error:.2e}"
    print(f"right, within {tolerance:g}")


def graphs():
    x = torch.zeros(1000, device="cuda")
    weight = torch.randn(1000, 1000, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            y = torch.relu(x @ weight)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.relu(x @ weight).sum()
    for seed in range(5):
        torch.manual_seed(seed)
        x.copy_(torch.randn(1000))
        graph.replay()
        close(y, torch.relu(x @ weight).sum())


def graphed_training():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data, target = torch.randn(256, 64, device="cuda"), torch.randn(256, 1, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = (model(data) - target).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            first = step().item()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(200):
        graph.replay()
    assert loss.item() < first * 0.9


def compile():
    @torch.compile
    def f(x, y):
        return (torch.sin(x) * y + x.pow(2)).sum(1)

    x, y = torch.randn(512, 512, device="cuda"), torch.randn(512, 512, device="cuda")
    close(f(x, y), (torch.sin(x) * y + x.pow(2)).sum(1))


def autocast():
    model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.LayerNorm(256),
                                torch.nn.Linear(256, 16)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data, target = torch.randn(512, 128, device="cuda"), torch.randint(0, 16, (512,), device="cuda")
    losses = []
    for _ in range(60):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] * 0.8


def attention():
    q, k, v = (torch.randn(2, 8, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    expected = torch.softmax(q.float() @ k.float().transpose(-1, -2) / 8, -1) @ v.float()
    close(torch.nn.functional.scaled_dot_product_attention(q, k, v), expected, 2e-2)
    from torch.nn.attention import SDPBackend, sdpa_kernel
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        close(torch.nn.functional.scaled_dot_product_attention(q, k, v), expected, 2e-2)


def fp8():
    a, b = torch.randn(256, 512, device="cuda"), torch.randn(128, 512, device="cuda")
    one = torch.ones((), device="cuda")
    a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    out = torch._scaled_mm(a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    close(out, a8.float() @ b8.float().t(), 2e-2)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return torch.full((1000,), float(index))


def workers():
    loader = torch.utils.data.DataLoader(Rows(), batch_size=32, num_workers=2, pin_memory=True)
    total = torch.zeros((), device="cuda", dtype=torch.float64)
    for batch in loader:
        total += batch.to("cuda", non_blocking=True).double().sum()
        assert batch.is_pinned()
    assert total.item() == 1000.0 * 511 * 512 / 2


def memory():
    before = torch.cuda.memory_allocated()
    x = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() - before >= 64 << 20
    del x
    torch.cuda.empty_cache()
    assert torch.cuda.memory_allocated() == before
    assert "Allocated memory" in torch.cuda.memory_summary()
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory


def training_once():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 300), torch.nn.ReLU(), torch.nn.Linear(300, 10)).cuda()
    data = torch.randn(64, 100, device="cuda")
    for _ in range(20):
        model(data).pow(2).mean().backward()
    close(model(data), torch.nn.Sequential(*[m.cpu() for m in model])(data.cpu()), 1e-3)


expandable = training_once
no_caching = training_once


def saving():
    model = torch.nn.Linear(50, 20).cuda()
    with tempfile.NamedTemporaryFile() as file:
        torch.save(model.state_dict(), file.name)
        other = torch.nn.Linear(50, 20).cuda()
        other.load_state_dict(torch.load(file.name, map_location="cuda"))
    assert torch.equal(model.weight, other.weight)


def _child(queue, back):
    tensor = queue.get()
    tensor += 1
    torch.cuda.synchronize()
    back.put(tensor.sum().item())


def sharing():
    import torch.multiprocessing as processes
    context = processes.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=_child, args=(queue, back))
    child.start()
    tensor = torch.zeros(1000, device="cuda")
    queue.put(tensor)
    assert back.get(timeout=60) == 1000.0
    torch.cuda.synchronize()
    assert tensor.sum().item() == 1000.0
    child.join()


def profiler():
    with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profile:
        x = torch.randn(100, 100, device="cuda")
        (x @ x).sum().item()
    assert "aten::matmul" in profile.key_averages().table()


def _where_it_fails(name, broken):
    """Prints which statement reports the error of a kernel: its launch or the synchronisation after it."""
    try:
        broken()
        try:
            torch.cuda.synchronize()
            where, error = "nowhere", ""
        except RuntimeError as failed:
            where, error = "the synchronize", str(failed)
    except RuntimeError as failed:
        where, error = "the launch", str(failed)
    print(f"{name}: told by {where}: {error.splitlines()[0] if error else ''}", flush=True)
    try:
        torch.ones(1, device="cuda")
        again = "fine"
    except RuntimeError as failed:
        again = str(failed).splitlines()[0]
    print(f"the next operation: {again}\n{'PASSED' if error else 'FAILED'}", flush=True)
    os._exit(0)  # after such an error nothing can be cleaned up, as natively


def illegal_address():
    write = torch.cuda._compile_kernel('extern "C" __global__ void write(float* at) { at[1ull << 40] = 1; }', "write")
    x = torch.zeros(4, device="cuda")
    torch.cuda.synchronize()
    _where_it_fails("an illegal address", lambda: write((1, 1, 1), (1, 1, 1), (x,)))


illegal_address_blocking = illegal_address


def device_assert():
    x, index = torch.zeros(4, device="cuda"), torch.tensor([1 << 40], device="cuda")
    torch.cuda.synchronize()
    _where_it_fails("an index out of range", lambda: x[index])


def streams():
    torch.manual_seed(0)
    many = [torch.cuda.Stream(priority=-(i % 2)) for i in range(4)]
    x = torch.randn(512, 512, device="cuda")
    expected = [(x.double() @ x.double()) * i for i in range(8)]
    torch.cuda.synchronize()
    results, events = [], []
    for i in range(8):
        stream = many[i % 4]
        with torch.cuda.stream(stream):
            y = x.double() @ x.double()
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        other = many[(i + 1) % 4]
        other.wait_event(event)
        with torch.cuda.stream(other):
            results.append(y * i)
        y.record_stream(other)
        events.append(event)
    torch.cuda.synchronize()
    assert events[0].elapsed_time(events[-1]) > 0
    for result, value in zip(results[1:], expected[1:]):
        close(result, value, 1e-12)


def out_of_memory():
    free, total = torch.cuda.mem_get_info()
    held = torch.ones(1 << 20, device="cuda")
    for _ in range(3):
        try:
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
            raise SystemExit("more than there is was allocated")
        except torch.OutOfMemoryError as error:
            assert "out of memory" in str(error)
    assert held.sum().item() == 1 << 20
    close(held[:1000].view(10, 100) @ held[:1000].view(100, 10), torch.full((10, 10), 100.0))


def resnet():
    import torchvision
    torch.manual_seed(0)
    model = torchvision.models.resnet50().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data, target = torch.randn(16, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last), torch.randint(
        0, 1000, (16,), device="cuda")
    losses = []
    for _ in range(8):
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(data), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    model.eval()
    with torch.no_grad():
        assert model(data[:1]).isfinite().all()


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config()).cuda().eval()
    prompt = torch.randint(0, 50000, (1, 16), device="cuda")
    with torch.no_grad():
        once = model.generate(prompt, max_new_tokens=30, do_sample=False, pad_token_id=0)
        again = model.generate(prompt, max_new_tokens=30, do_sample=False, pad_token_id=0)
    assert torch.equal(once, again) and once.shape == (1, 46)


def nccl():
    import torch.distributed as distributed
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    distributed.init_process_group("nccl", rank=0, world_size=1)
    x = torch.arange(1000.0, device="cuda")
    distributed.all_reduce(x)
    torch.cuda.synchronize()
    assert x.sum().item() == 499500.0
    distributed.destroy_process_group()


def lstm():
    torch.manual_seed(0)
    model = torch.nn.LSTM(32, 64, 2, batch_first=True)
    data = torch.randn(8, 20, 32)
    expected = model(data)[0]
    close(model.cuda()(data.cuda())[0], expected, 1e-2)


def green_contexts():
    from torch.cuda.green_contexts import GreenContext
    x = torch.randn(512, 512, device="cuda")
    green = GreenContext.create(num_sms=32, device_id=0)
    green.set_context()
    y = x @ x
    torch.cuda.current_stream().synchronize()
    green.pop_context()
    torch.cuda.synchronize()
    close(y, x.double().cpu() @ x.double().cpu(), 1e-3)


def reduce_overhead():
    """torch.compile that records CUDA graphs of what it has compiled: inference, and training with its backward."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 16)).cuda()
    compiled = torch.compile(model, mode="reduce-overhead")
    for seed in range(4):
        torch.manual_seed(seed)
        data = torch.randn(32, 64, device="cuda")
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            close(compiled(data).clone(), model(data), 1e-2)
    for _ in range(4):
        data = torch.randn(32, 64, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        wanted = torch.autograd.grad(model(data).pow(2).mean(), list(model.parameters()))
        found = torch.autograd.grad(compiled(data).pow(2).mean(), list(model.parameters()))
        for one, other in zip(found, wanted):
            close(one, other, 2e-2)


@contextlib.contextmanager
def one_rank():
    import torch.distributed as distributed
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("nccl", init_method=f"file://{folder}/meeting", rank=0, world_size=1,
                                       device_id=torch.device("cuda", 0))
        try:
            yield
        finally:
            distributed.destroy_process_group()


def fsdp():
    from torch.distributed.fsdp import fully_shard

    def network():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).cuda()

    def trained(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(1)
        data = torch.randn(32, 64, device="cuda")
        for _ in range(10):
            optimizer.zero_grad()
            model(data).pow(2).mean().backward()
            optimizer.step()
        return model

    with one_rank():
        plain, sharded = trained(network()), network()
        for layer in sharded:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        trained(fully_shard(sharded))
        for one, other in zip(sharded.parameters(), plain.parameters()):
            close(one.full_tensor(), other, 1e-5)


def dtensor():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    with one_rank():
        mesh = init_device_mesh("cuda", (1,))
        torch.manual_seed(0)
        a, b = torch.randn(64, 32, device="cuda"), torch.randn(32, 48, device="cuda")
        product = distribute_tensor(a, mesh, [Shard(0)]) @ distribute_tensor(b, mesh, [Replicate()])
        close(product.redistribute(mesh, [Replicate()]).to_local(), a.double().cpu() @ b.double().cpu(), 1e-2)
        close(product.full_tensor().sum(), (a.double().cpu() @ b.double().cpu()).sum(), 1e-2)


def linalg():
    a = torch.randn(100, 100, dtype=torch.float64)
    spd = a @ a.T + 100 * torch.eye(100, dtype=torch.float64)
    close(torch.linalg.cholesky(spd.cuda()), torch.linalg.cholesky(spd))
    close(torch.linalg.solve(spd.cuda(), a.cuda()), torch.linalg.solve(spd, a))
    close(torch.linalg.svdvals(a.cuda()), torch.linalg.svdvals(a))
    close(torch.linalg.eigvalsh(spd.cuda()), torch.linalg.eigvalsh(spd))
    sparse = torch.randn(200, 200).relu().to_sparse_csr()
    dense = torch.randn(200, 30)
    close(sparse.cuda() @ dense.cuda(), sparse.to_dense() @ dense)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("PASSED")
