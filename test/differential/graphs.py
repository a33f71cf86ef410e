"""Scenarios about graphs: built node by node, and captured."""

from grammar import on_device, structure
from scenarios import HOST_BYTES, allocate, check, function_of, load, stream_of


def node_list(nodes):
    return "[" + " ".join(map(str, nodes)) + "]" if nodes else 0


def some(sequence, nodes):
    return sequence.random.sample(nodes, min(len(nodes), sequence.random.randrange(3)))


def kernel_params(fill, block, extra=None):
    fields = {
        "func": fill, "gridDimX": 4, "gridDimY": 1, "gridDimZ": 1, "blockDimX": 256, "blockDimY": 1, "blockDimZ": 1,
        "kernelParams": f"(8:{block} 4:5 4:1024)"
    }
    return structure("CUDA_KERNEL_NODE_PARAMS", {**fields, **(extra or {})})


def fill_params(block, **extra):
    return structure("CUDA_MEMSET_NODE_PARAMS",
                     {"dst": block, "pitch": 0, "value": 4, "elementSize": 4, "width": 256, "height": 1, **extra})


def copy_params(source, target, size=1024):
    return structure(
        "CUDA_MEMCPY3D", {
            "srcMemoryType": 2, "srcDevice": source, "dstMemoryType": 2, "dstDevice": target, "WidthInBytes": size,
            "Height": 1, "Depth": 1
        })


def built(sequence, thread):
    """Nodes of every type in one chain, so that their effects have one order."""
    module = load(sequence, thread)
    fill = function_of(sequence, thread, module, "fill")
    block, other = allocate(sequence, thread, 4096), allocate(sequence, thread, 4096)
    stream = stream_of(sequence, thread)
    event, out = sequence.new("event")
    sequence.call(thread, "cuEventCreate", out, 2)
    graph, out = sequence.new("graph")
    sequence.risky(thread, "cuGraphCreate", (">nograph", 0), (0, 1))
    sequence.call(thread, "cuGraphCreate", out, 0)
    yield
    nodes, context = [], sequence.contexts[0]
    for _ in range(sequence.random.randrange(2, 9)):
        node, out = sequence.new("node")
        last = node_list(nodes[-1:])
        count = len(nodes[-1:])
        head = [(out, 0), (graph, 0), (last, 0) if count else (last,), (count,)]
        right = sequence.pick(
            lambda: sequence.risky(thread, "cuGraphAddEmptyNode", *head), lambda: sequence.risky(
                thread, "cuGraphAddKernelNode_v2", *head,
                (kernel_params(fill, block), kernel_params(0, block), kernel_params(fill, block, {"gridDimX": 0}), 0)),
            lambda: sequence.risky(thread, "cuGraphAddMemsetNode", *head,
                                   (fill_params(block), fill_params(block, elementSize=3), fill_params(block, width=0),
                                    fill_params(0), 0), context),
            lambda: sequence.risky(thread, "cuGraphAddMemcpyNode", *head,
                                   (copy_params(block, other), copy_params(block, other, 1 << 20), 0), context),
            lambda: sequence.risky(thread, "cuGraphAddHostNode", *head,
                                   (structure("CUDA_HOST_NODE_PARAMS", {"fn": "%host"}),
                                    structure("CUDA_HOST_NODE_PARAMS", {}), 0)),
            lambda: sequence.risky(thread, "cuGraphAddEventRecordNode", *head, event),
            lambda: sequence.risky(thread, "cuGraphAddEventWaitNode", *head, event),
        )()
        if right:
            nodes.append(node)
        yield
    for _ in range(sequence.random.randrange(0, 6)):
        node = sequence.random.choice(nodes) if nodes else 0
        if not nodes:
            break
        sequence.pick(
            lambda: sequence.risky(thread, "cuGraphNodeGetType", (node, 0), ("?i32", 0)),
            lambda: sequence.call(thread, "cuGraphDebugDotPrint", graph, '"/dev/null"', sequence.pick(0, 1)),
            lambda: sequence.risky(thread, "cuGraphGetNodes",
                                   (graph, 0), 0, "?u64"), lambda: sequence.risky(thread, "cuGraphGetRootNodes",
                                                                                  (graph, 0), 0, "?u64"),
            lambda: sequence.risky(thread, "cuGraphNodeGetDependencies",
                                   (node, 0), 0, "?u64"), lambda: sequence.risky(thread, "cuGraphNodeGetDependentNodes",
                                                                                 (node, 0), 0, "?u64"),
            lambda: sequence.risky(thread, "cuGraphKernelNodeGetParams_v2",
                                   (node, 0), structure("CUDA_KERNEL_NODE_PARAMS", {}, "gridDimX blockDimX")),
            lambda: sequence.risky(thread, "cuGraphMemsetNodeGetParams", node,
                                   structure("CUDA_MEMSET_NODE_PARAMS", {}, "value elementSize")),
            lambda: sequence.risky(thread, "cuGraphHostNodeGetParams", node, structure(
                "CUDA_HOST_NODE_PARAMS", {}, "fn")),
            lambda: sequence.risky(thread, "cuGraphEventRecordNodeGetEvent", node, ">its"),
            lambda: sequence.risky(thread, "cuGraphAddDependencies",
                                   (graph, 0), node_list([node]), node_list([node]), 1),
            lambda: sequence.risky(thread, "cuGraphMemsetNodeSetParams", node, fill_params(block, value=7)),
        )()
        yield
    clone, out = sequence.new("graph")
    sequence.risky(thread, "cuGraphClone", (out, 0), (graph, 0))
    exec_, out = sequence.new("exec")
    sequence.risky(thread, "cuGraphInstantiateWithFlags", (">noexec", 0), (graph, 0), (0, 0x1000), probability=0.6)
    sequence.call(thread, "cuGraphInstantiateWithFlags", out, graph, 0)
    yield
    for _ in range(sequence.random.randrange(1, 4)):
        sequence.risky(thread, "cuGraphLaunch", (exec_, 0), stream)
        done = sequence.call(thread, "cuStreamSynchronize", stream)
        block.needs.append(done)
        other.needs.append(done)
        sequence.risky(thread, "cuGraphUpload", (exec_, 0), stream, probability=0.3)
        sequence.call(thread, "cuGraphExecGetFlags", sequence.edge(exec_, 0), "?u64")
        if nodes:
            node = sequence.random.choice(nodes)
            sequence.call(thread, "cuGraphNodeSetEnabled", exec_, node, sequence.pick(0, 1))
            sequence.call(thread, "cuGraphNodeGetEnabled", exec_, node, "?u32")
            sequence.call(thread, "cuGraphExecMemsetNodeSetParams", exec_, node, fill_params(block, value=8), context)
            if node != nodes[-1]:  # nodes behind a disabled one have no order (grammar.py)
                sequence.call(thread, "cuGraphNodeSetEnabled", exec_, node, 1)
        yield
    sequence.call(thread, "cuStreamSynchronize", stream)
    check(sequence, thread, block)
    check(sequence, thread, other)
    sequence.call(thread, "counts")
    sequence.call(thread, "cuGraphExecDestroy", sequence.edge(exec_, 0))
    sequence.call(thread, "cuGraphDestroy", sequence.edge(graph, 0))
    for name, thing in (("cuEventDestroy_v2", event), ("cuStreamDestroy_v2", stream), ("cuMemFree_v2", block),
                        ("cuMemFree_v2", other), ("cuModuleUnload", module)):
        sequence.call(thread, name, thing)


def with_memory(sequence, thread):
    """Graphs that allocate memory, which the graph, another graph, a stream or the program frees."""
    stream = stream_of(sequence, thread)
    graph, out = sequence.new("graph")
    sequence.call(thread, "cuGraphCreate", out, 0)
    memory = sequence.fresh("memory", 4096)
    params = structure(
        "CUDA_MEM_ALLOC_NODE_PARAMS",
        {"poolProps.allocType": 1, **{f"poolProps.{k}": v for k, v in on_device(0).items()}, "bytesize": 4096},
        f"dptr>{memory.name}@4096")
    wrong = structure(
        "CUDA_MEM_ALLOC_NODE_PARAMS",
        {"poolProps.allocType": 1, **{f"poolProps.{k}": v for k, v in on_device(0).items()}, "bytesize": 0})
    allocation, out = sequence.new("node")
    sequence.risky(thread, "cuGraphAddMemAllocNode", ">nonode", graph, 0, 0, (wrong, 0), probability=0.5)
    sequence.call(thread, "cuGraphAddMemAllocNode", out, graph, 0, 0, params)
    fill, out = sequence.new("node")
    sequence.call(thread, "cuGraphAddMemsetNode", out, graph, node_list([allocation]), 1, fill_params(memory),
                  sequence.contexts[0])
    yield
    inside = sequence.chance(0.3)
    if inside:
        sequence.call(thread, "cuGraphAddMemFreeNode", ">freed", graph, node_list([fill]), 1, memory)
    sequence.risky(thread, "cuGraphMemAllocNodeGetParams", (allocation, fill),
                   structure("CUDA_MEM_ALLOC_NODE_PARAMS", {}, "dptr bytesize"))
    exec_, out = sequence.new("exec")
    sequence.call(thread, "cuGraphInstantiateWithFlags", out, graph, sequence.pick(0, 0, 1))
    yield
    for _ in range(sequence.random.randrange(1, 5)):
        memory.needs = [
            sequence.call(thread, "cuGraphLaunch", exec_, stream),
            sequence.call(thread, "cuStreamSynchronize", stream)
        ]
        if not inside:
            check(sequence, thread, memory, 1024)
            sequence.pick(
                lambda: sequence.call(thread, "cuMemFree_v2", memory),
                lambda: sequence.call(thread, "cuMemFreeAsync", memory, stream),
                lambda: None,
            )()
        sequence.call(thread, "cuStreamSynchronize", stream)
        yield
    if not inside:
        sequence.call(thread, "cuMemFree_v2", memory)
    sequence.call(thread, "cuGraphExecDestroy", exec_)
    sequence.call(thread, "cuGraphDestroy", graph)
    sequence.call(thread, "cuStreamDestroy_v2", stream)


def captured(sequence, thread):
    """Streams that capture, in every mode, with the calls that are forbidden meanwhile."""
    stream, other = stream_of(sequence, thread), stream_of(sequence, thread)
    event, out = sequence.new("event")
    sequence.call(thread, "cuEventCreate", out, 2)
    joined, out = sequence.new("event")
    sequence.call(thread, "cuEventCreate", out, 2)
    block = allocate(sequence, thread, 4096)
    # Work captured in the other stream may run concurrently, so it writes to other memory.
    beside = allocate(sequence, thread, 4096)
    # Work that is given beside the capture may still run when the graph does.
    apart = allocate(sequence, thread, 4096)
    module = load(sequence, thread)
    fill = function_of(sequence, thread, module, "fill")
    host = sequence.host(thread, HOST_BYTES)
    graph, out = sequence.new("graph")
    sequence.call(thread, "cuCtxSynchronize")
    mode = sequence.random.randrange(3)
    into = sequence.chance(0.3)
    if into:
        sequence.call(thread, "cuGraphCreate", out, 0)
        begin = ("cuStreamBeginCaptureToGraph", (stream, 0), (graph, 0), 0, 0, 0, (mode, 99))
    else:
        begin = ("cuStreamBeginCapture_v2", (stream, 0), (mode, 99))
    if sequence.chance(0.2):
        sequence.risky(thread, *begin, probability=1)
    # Work that was not captured would run at once, outside the capture's order.
    sequence.risky(thread, *begin, probability=0)
    yield
    forked = False
    for _ in range(sequence.random.randrange(2, 8)):
        on, mine = (other, beside) if forked and sequence.chance(0.3) else (stream, block)
        action = sequence.pick("fill", "kernel", "copy", "host", "fork", "join", "unsafe", "ask", "alloc", "begin")
        if action == "fill":
            sequence.risky(thread, "cuMemsetD32Async", (mine, 0), 3, 256, on)
        elif action == "kernel":
            sequence.risky(thread, "cuLaunchKernel", fill, (4, 0), 1, 1, 256, 1, 1, 0, on, f"(8:{mine} 4:5 4:1024)", 0)
        elif action == "copy":
            sequence.call(thread, "cuMemcpyDtoDAsync_v2", mine.at(2048), mine, 1024, on)
        elif action == "host":
            sequence.call(thread, "cuLaunchHostFunc", on, "%host", 0)
        elif action == "fork" and not forked:
            sequence.call(thread, "cuEventRecord", event, stream)
            sequence.call(thread, "cuStreamWaitEvent", other, event, 0)
            forked = True
        elif action == "join" and forked:
            sequence.call(thread, "cuEventRecord", joined, other)
            sequence.call(thread, "cuStreamWaitEvent", stream, joined, 0)
        elif action == "unsafe" and sequence.chance(0.3):
            sequence.pick(
                lambda: sequence.call(thread, "cuMemAlloc_v2", ">unsafe", 64),
                lambda: sequence.call(thread, "cuStreamSynchronize", stream),
                lambda: sequence.call(thread, "cuEventSynchronize", event),
                lambda: sequence.call(thread, "cuMemsetD8Async", apart, 1, 16, 0),
                lambda: sequence.call(thread, "~cuStreamQuery", stream),
            )()
        elif action == "ask":
            sequence.call(thread, "cuStreamIsCapturing", sequence.pick(stream, other), "?i32")
            sequence.call(thread, "cuStreamGetCaptureInfo_v3", stream, "?i32", "?hide", "?hide", 0, 0, "?u64")
        elif action == "alloc":
            memory, out_memory = sequence.new("memory", 4096)
            sequence.call(thread, "cuMemAllocAsync", out_memory, 4096, on)
            sequence.call(thread, "cuMemsetD8Async", memory, 1, 4096, on)
            sequence.call(thread, "cuMemFreeAsync", memory, on)
        elif action == "begin" and sequence.chance(0.2):
            sequence.call(thread, "cuStreamBeginCapture_v2", sequence.pick(stream, other), mode)
        yield
    if forked and sequence.chance(0.8):
        sequence.call(thread, "cuEventRecord", joined, other)
        sequence.call(thread, "cuStreamWaitEvent", stream, joined, 0)
    ending = thread if sequence.chance(0.85) else (thread + 1) % sequence.threads
    if forked and sequence.chance(0.1):
        sequence.call(ending, "cuStreamEndCapture", other, ">unmatched")
    if not into and sequence.chance(0.1):
        sequence.call(ending, "cuStreamEndCapture", stream, 0)
    sequence.call(ending, "cuStreamEndCapture", stream, 0 if into and sequence.chance(0.5) else f">{graph.name}")
    for each in (stream, other):
        sequence.call(thread, "cuStreamIsCapturing", each, "?i32")
    yield
    exec_, out = sequence.new("exec")
    sequence.call(thread, "cuGraphGetNodes", graph, 0, "?u64")
    sequence.call(thread, "cuGraphInstantiateWithFlags", out, graph, 0)
    for _ in range(sequence.random.randrange(1, 3)):
        sequence.call(thread, "cuGraphLaunch", exec_, stream)
        done = sequence.call(thread, "cuStreamSynchronize", stream)
        block.needs.append(done)
        beside.needs.append(done)
        # If the capture was invalid before the other stream joined it, that stream's work runs by itself.
        beside.needs.append(sequence.call(thread, "cuStreamSynchronize", other))
        yield
    check(sequence, thread, block)
    check(sequence, thread, beside)
    sequence.call(thread, "cuMemcpyDtoH_v2", host, block, 4096)
    sequence.call(thread, "counts")
    for name, thing in (("cuGraphExecDestroy", exec_), ("cuGraphDestroy", graph), ("cuStreamDestroy_v2", stream),
                        ("cuStreamDestroy_v2", other), ("cuEventDestroy_v2", event), ("cuEventDestroy_v2", joined),
                        ("cuMemFree_v2", block), ("cuMemFree_v2", beside), ("cuModuleUnload", module)):
        sequence.call(thread, name, thing)
