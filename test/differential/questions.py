"""Scenarios of queries: attributes of devices, contexts, streams, pools, pointers and kernels, and their settings."""

from grammar import PAGE, WAIT_NOR, on_device, structure
from kernels import PTX
from scenarios import allocate, check, function_of, load, stream_of

NEWEST = 13000  # the newest version that both sides know
ANSWER_BYTES = 4096


def in_some_order(sequence, calls):
    """Makes a part of the calls, each once, in random order."""
    for call in sequence.random.sample(calls, len(calls)):
        if sequence.chance(0.6):
            call()
            yield


def device_questions(sequence, thread):
    """Queries of a device, as most programs make them at their start."""
    wrong = sequence.devices + 7

    def ask(name, *arguments):
        return lambda: sequence.risky(thread, name, *arguments)

    properties = structure("CUdevprop", {}, "maxThreadsPerBlock sharedMemPerBlock SIMDWidth regsPerBlock")
    yield from in_some_order(sequence, [
        ask("cuDeviceGetName", ("?chars", 0), (256, 8, -1), (0, wrong)),
        ask("cuDeviceGetUuid", ("?hide", 0), (0, wrong)),
        ask("cuDeviceGetUuid_v2", ("?hide", 0), (0, wrong)),
        ask("cuDeviceGetProperties", (properties, 0), (0, wrong)),
        ask("cuDeviceComputeCapability", ("?i32", 0), ("?i32", 0), (0, wrong)),
        ask("cuDeviceGetByPCIBusId", ("?i32", 0), ('"nonsense"', '"ffff:ff:1f.0"', 0)),
        ask("cuDeviceGetPCIBusId", ("?chars", 0), (32, 13, 3, 0), (0, wrong)),
        ask("cuDeviceGetExecAffinitySupport", ("?i32", 0), (0, 99), (0, wrong)),
        ask("cuDeviceGetTexture1DLinearMaxWidth", ("?u64", 0), (1, 32, 99), (1, 4, 3, 0), (0, wrong)),
        ask("cuDeviceGetMemPool", (">pool", 0), (0, wrong)),
        ask("cuDeviceGetGraphMemAttribute", (0, wrong), (0, 1, 99), ("?hide", 0)),
        ask("cuDeviceSetGraphMemAttribute", (0, wrong), (1, 0, 99), "[0]"),
        ask("cuDeviceGraphMemTrim", (0, wrong)),
        ask("cuFlushGPUDirectRDMAWrites", (0, 99), (100, 200, 7)),
        ask("cuModuleGetLoadingMode", ("?i32",)),
        ask("cuDeviceGetLuid", "?hide", "?hide", 0),
        ask("cuDeviceGetHostAtomicCapabilities", "?hide", "[u32 0]", 1, 0),
        ask("cuDeviceGetP2PAtomicCapabilities", "?hide", "[u32 0]", 1, 0, 0),
        ask("cuGetExportTable", "?hide", "[1 2]"),
        ask("cuProfilerStart"),
        ask("cuProfilerStop"),
        ask("cuMemGetInfo_v2", *sequence.pick(("?hide", "?hide"), ("?hide", 0), (0, "?hide"))),
        ask("cuGetProcAddress", ('"cuMemAlloc"', '"cuNoSuchThing"'), ("?hide",), (NEWEST, 2000), (0, 99)),
        # NULL for the name or for the address's place crashes NVIDIA's driver.
        ask("cuGetProcAddress_v2", ('"cuMemcpyAsync"', '"cuNoSuchThing"'), ("?hide",), (NEWEST, 12000, 2000),
            (0, 1, 2, 99), ("?i32",)),
    ])


def logs(sequence, thread):
    """The log of errors, whose text differs between the sides."""
    listener, out = sequence.new("listener")
    sequence.call(thread, "cuLogsRegisterCallback", "%log", 0, out)
    sequence.call(thread, "cuLogsCurrent", "?hide", 0)
    sequence.call(thread, "cuDeviceGet", "?i32", sequence.pick(0, sequence.devices + 7))
    yield
    sequence.call(thread, "cuLogsDumpToMemory", 0, sequence.host(thread, 65536), "[65536]", 0)
    sequence.call(thread, "cuLogsDumpToFile", 0, '"/dev/null"', 0)
    sequence.call(thread, "cuLogsDumpToFile", "[u32 0]", '"/dev/null"', 0)
    yield
    sequence.call(thread, "cuLogsUnregisterCallback", listener)
    sequence.call(thread, "cuLogsCurrent", "?hide", 0)


def context_questions(sequence, thread):
    """A context of this scenario's own: its attributes, and every older way to make and to leave one."""
    wrong = sequence.devices + 7
    context, out = sequence.new("context")
    sequence.pick(
        lambda: sequence.call(thread, "cuCtxCreate_v2", out, sequence.pick(0, 1, 4), 0),
        lambda: sequence.call(thread, "cuCtxCreate_v3", out, 0, 0, 0, 0),
        lambda: sequence.call(thread, "cuCtxCreate_v4", out, 0, 0, 0),
    )()
    sequence.call(thread, "cuCtxCreate_v2", ">never", 0, sequence.pick(wrong, -1))
    sequence.call(thread, "cuCtxCreate_v3", 0, 0, 0, 0, 0)

    def ask(name, *arguments):
        return lambda: sequence.risky(thread, name, *arguments)

    # These queries have no yield between them: another scenario of the thread makes its own context current.
    for call in sequence.random.sample([
            ask("cuCtxGetDevice_v2", ("?i32", 0), (context, 0)),
            ask("cuCtxSynchronize_v2", (context, 0)),
            ask("cuCtxGetSharedMemConfig", ("?i32", 0)),
            ask("cuCtxSetSharedMemConfig", (0, 1, 2, 99)),
            ask("cuCtxResetPersistingL2Cache"),
            ask("cuCtxGetExecAffinity", (structure("CUexecAffinityParam", {}, "type"), 0), (0, 99)),
            ask("cuCtxSetFlags", (0, 1, 4)),
            ask("cuCtxGetFlags", ("?u32", 0)),
    ], 5):
        call()
    ended = False
    if sequence.chance(0.5):
        ended = not sequence.risky(thread, "cuCtxAttach", (">attached", 0), (0, 1))
        sequence.call(thread, "cuCtxDetach", context)
    sequence.call(thread, "cuCtxSetCurrent", sequence.context_of(thread))
    if not ended:
        sequence.call(thread, "cuCtxDestroy_v2", context)
    yield
    again, out = sequence.new("context")
    sequence.call(thread, "cuDevicePrimaryCtxRetain", out, 0)
    yield
    sequence.risky(thread, "cuDevicePrimaryCtxRelease_v2", (0, wrong))


def stream_questions(sequence, thread):
    """Attributes of streams, values in batches, and queries and changes of a capture."""
    stream, other = stream_of(sequence, thread), stream_of(sequence, thread)
    block = allocate(sequence, thread, 4096)
    zeroed = sequence.call(thread, "cuMemsetD8_v2", block, 0, 4096)
    block.needs = [zeroed, sequence.call(thread, "cuStreamSynchronize", 0)]
    yield

    def value(**fields):
        return structure("CUlaunchAttributeValue", fields)

    def operation(kind, at, number, flags=0):
        place = "writeValue" if kind in (2, 5) else "waitValue"
        return structure("CUstreamBatchMemOpParams",
                         {"operation": kind, f"{place}.address": block.at(at), f"{place}.value64": number,
                          f"{place}.flags": flags})

    yield from in_some_order(sequence, [
        lambda: sequence.risky(thread, "cuStreamSetAttribute", stream, (3, 2, 4, 99), value(syncPolicy=2)),
        lambda: sequence.call(thread, "cuStreamSetAttribute", stream, 3, value(syncPolicy=99)),
        lambda: sequence.call(thread, "cuStreamSetAttribute", stream, *sequence.pick((10, value(memSyncDomain=1)),
                                                                                     (10, value(memSyncDomain=99)))),
        lambda: sequence.risky(thread, "cuStreamGetAttribute", stream, (3, 99), structure(
            "CUlaunchAttributeValue", {}, "syncPolicy")),
        lambda: sequence.risky(thread, "cuStreamSetAttribute", sequence.pick(stream, other), 8,
                               (value(priority=sequence.pick(0, -1)), value(priority=99), value(priority=-100))),
        lambda: sequence.call(thread, "cuStreamGetPriority", sequence.pick(stream, other), "?i32"),
        lambda: sequence.risky(thread, "cuStreamGetAttribute", stream, 8, structure(
            "CUlaunchAttributeValue", {}, "priority")),
        lambda: sequence.call(thread, "cuStreamCopyAttributes", other, stream),
        lambda: sequence.risky(thread, "cuStreamGetCtx_v2", stream, (">its", 0), (">green", 0)),
        lambda: sequence.risky(thread, "cuStreamGetGreenCtx", stream, (">green", 0)),
        lambda: sequence.risky(thread, "cuStreamWaitValue64_v2", stream, (block.at(8), block.at(4), 0), 0,
                               (WAIT_NOR, 99)),
        lambda: sequence.risky(thread, "cuStreamBatchMemOp_v2", stream, 1,
                               (operation(2, 16, 7), operation(5, 24, 8), operation(1, 32, 0, WAIT_NOR),
                                operation(9, 16, 7)), (0, 99)),
    ])
    block.needs.append(sequence.call(thread, "cuStreamSynchronize", stream))
    check(sequence, thread, block)
    yield
    mode = sequence.pick(0, 1, 2)
    sequence.call(thread, "cuThreadExchangeStreamCaptureMode", f"[u32 {mode}]")
    sequence.risky(thread, "cuThreadExchangeStreamCaptureMode", ("[u32 0]", "[u32 99]"))
    sequence.call(thread, "cuThreadExchangeStreamCaptureMode", "[u32 0]")
    sequence.call(thread, "cuStreamBeginCapture_v2" if mode else "cuStreamBeginCapture", stream, *([mode] if mode else
                                                                                                  []))
    sequence.call(thread, "cuMemsetD8Async", block, 3, 64, stream)
    sequence.risky(thread, "cuStreamGetCaptureInfo", stream, ("?i32", 0), "?hide")
    sequence.risky(thread, "cuStreamGetCaptureInfo_v2", stream, ("?i32", 0), "?hide", "?hide", 0, "?u64")
    sequence.risky(thread, "cuStreamUpdateCaptureDependencies", stream, 0, 0, (1, 0, 99))
    sequence.risky(thread, "cuStreamUpdateCaptureDependencies_v2", stream, 0, 0, 0, (1, 0, 99))
    sequence.call(thread, "cuMemsetD8Async", block.at(64), 4, 64, stream)
    graph, out = sequence.new("graph")
    sequence.call(thread, "cuStreamEndCapture", stream, out)
    sequence.call(thread, "cuGraphGetEdges", graph, 0, 0, "?u64")
    sequence.call(thread, "cuGraphDestroy", graph)
    yield
    for name, thing in (("cuStreamDestroy_v2", stream), ("cuStreamDestroy_v2", other), ("cuMemFree_v2", block)):
        sequence.call(thread, name, thing)


def pool_questions(sequence, thread):
    """A pool's device and access, and a device's pool."""
    props = structure("CUmemPoolProps", {"allocType": 1, **on_device(0)})
    access = structure("CUmemAccessDesc", {**on_device(0), "flags": 3})
    nobody = structure("CUmemAccessDesc", {**on_device(sequence.devices + 7), "flags": 3})
    here = structure("CUmemLocation", {"type": 1, "id": 0})
    pool, out = sequence.new("pool")
    sequence.call(thread, "cuMemPoolCreate", out, props)
    stream = stream_of(sequence, thread)
    block, out = sequence.new("memory", 512)
    sequence.call(thread, "cuMemAllocFromPoolAsync", out, 512, pool, stream)
    yield
    yield from in_some_order(sequence, [
        lambda: sequence.risky(thread, "cuMemPoolSetAccess", (pool, 0), (access, nobody, 0), (1,)),
        lambda: sequence.risky(thread, "cuMemGetDefaultMemPool", (">default", 0), (here, 0), (1, 99)),
        lambda: sequence.risky(thread, "cuMemGetMemPool", (">default", 0), (here, 0), (1, 99)),
        lambda: sequence.risky(thread, "cuMemSetMemPool", (here, 0), (1, 99), (pool, 0)),
        lambda: sequence.risky(thread, "cuMemPoolExportPointer", ("?hide", 0), (block, 0)),
    ])
    default, out = sequence.new("pool")
    sequence.call(thread, "cuDeviceGetDefaultMemPool", out, 0)
    sequence.call(thread, "cuDeviceSetMemPool", 0, default)
    sequence.call(thread, "cuMemFreeAsync", block, stream)
    sequence.call(thread, "cuStreamSynchronize", stream)
    sequence.call(thread, "cuMemPoolDestroy", pool)
    sequence.call(thread, "cuStreamDestroy_v2", stream)


def pointer_questions(sequence, thread):
    """Attributes of addresses, and advice about managed memory."""
    block = allocate(sequence, thread, 4096)
    shared, out = sequence.new("memory", PAGE)
    sequence.call(thread, "cuMemAllocManaged", out, PAGE, 1)
    filled = sequence.call(thread, "cuMemsetD8_v2", shared, 6, PAGE)
    shared.needs = [filled, sequence.call(thread, "cuCtxSynchronize")]
    stream = stream_of(sequence, thread)
    here, host = (structure("CUmemLocation", {"type": kind, "id": 0}) for kind in (1, 2))
    yield
    yield from in_some_order(sequence, [
        lambda: sequence.risky(thread, "cuPointerGetAttributes", (2, 0), "[u32 2 8]", "[?i32 ?u32]", (block, shared, 0)
                               ),
        lambda: sequence.risky(thread, "cuPointerSetAttribute", ("[u32 1]", 0), (6, 99), (block, 0)),
        lambda: sequence.risky(thread, "cuMemAdvise_v2", (shared, 0), (PAGE, 0), (sequence.pick(1, 2), 0, 99), here),
        lambda: sequence.risky(thread, "cuMemPrefetchAsync_v2", (shared, 0), (PAGE, 0), sequence.pick(here, host),
                               (0, 99), stream),
        lambda: sequence.risky(thread, "cuMemRangeGetAttributes", "[?i32]", "[4]", ("[u32 1]",), (1, 0), (shared, 0),
                               PAGE),
        lambda: sequence.risky(thread, "cuMemPrefetchBatchAsync", (f"[{shared}]",), f"[{PAGE}]", (1,), (here,), "[0]",
                               1, (0, 99), stream),
        lambda: sequence.risky(thread, "cuStreamAttachMemAsync", stream, (shared, 0), 0, sequence.pick(1, 4)),
        lambda: sequence.risky(thread, "cuMemAllocPitch_v2", (">pitched", 0), ("?u64", 0), (100, 0), (4, 0),
                               (4, 16, 5)),
    ])
    sequence.call(thread, "cuStreamAttachMemAsync", stream, shared, 0, 1)
    sequence.call(thread, "cuStreamSynchronize", stream)
    check(sequence, thread, shared)
    yield
    # Discarded memory has no defined contents.
    last = sequence.pick("cuMemDiscardBatchAsync", "cuMemDiscardAndPrefetchBatchAsync")
    where = (here, "[0]", 1) if last == "cuMemDiscardAndPrefetchBatchAsync" else ()
    sequence.call(thread, last, f"[{shared}]", f"[{PAGE}]", 1, *where, 0, stream)
    sequence.call(thread, "cuStreamSynchronize", stream)
    for name, thing in (("cuMemFree_v2", shared), ("cuMemFree_v2", block), ("cuStreamDestroy_v2", stream)):
        sequence.call(thread, name, thing)


def kernel_questions(sequence, thread):
    """Modules loaded in every way, the linker, and occupancy."""
    for name, *arguments in sequence.random.sample(
        [("cuModuleLoad", ">nofile", ('"/nonexistent/module"', 0)),
         ("cuLibraryLoadFromFile", ">nofile", ('"/nonexistent/library"', 0), 0, 0, 0, 0, 0, 0)], 1):
        sequence.risky(thread, name, *arguments)
    module, out = sequence.new("module")
    sequence.pick(
        lambda: sequence.call(thread, "cuModuleLoadDataEx", out, f'"{PTX}"', 0, 0, 0),
        lambda: sequence.call(thread, "cuModuleLoadFatBinary", out, f'"{PTX}"'),
    )()
    fill = function_of(sequence, thread, module, "fill")
    yield
    shape = structure("CUlaunchConfig", {"gridDimX": 4, "gridDimY": 1, "gridDimZ": 1, "blockDimX": 64, "blockDimY": 1,
                                         "blockDimZ": 1, "hStream": sequence.pick(0, 1, 2)})
    yield from in_some_order(sequence, [
        lambda: sequence.risky(thread, "cuOccupancyMaxPotentialBlockSize", ("?i32", 0), ("?i32", 0), (fill, 0), 0,
                               (0, 1024), (0, 128)),
        lambda: sequence.risky(thread, "cuOccupancyMaxPotentialBlockSizeWithFlags", ("?i32", 0), ("?i32", 0), (fill, 0),
                               0, 0, (0, 100), (0, 1)),
        lambda: sequence.risky(thread, "cuOccupancyMaxActiveClusters", ("?i32", 0), (fill, 0), (shape, 0)),
        lambda: sequence.risky(thread, "cuOccupancyMaxPotentialClusterSize", ("?i32", 0), (fill, 0), (shape, 0)),
    ])
    link, out = sequence.new("link")
    sequence.call(thread, sequence.pick("cuLinkCreate", "cuLinkCreate_v2"), 0, 0, 0, out)
    size = len(PTX) + 1
    added = sequence.pick("cuLinkAddData", "cuLinkAddData_v2")
    sequence.call(thread, added, link, 1, f'"{PTX}"', size, '"ptx"', 0, 0, 0)
    sequence.risky(thread, sequence.pick("cuLinkAddFile", "cuLinkAddFile_v2"), link, 1, '"/nonexistent/file"', 0, 0, 0)
    sequence.call(thread, "cuLinkComplete", link, "?hide", "?hide")
    sequence.call(thread, "cuLinkDestroy", link)
    sequence.call(thread, "cuModuleUnload", module)


def green_contexts(sequence, thread):
    """Partitions of a device's multiprocessors, and work on them."""
    whole, part = sequence.host(thread, ANSWER_BYTES), sequence.host(thread, ANSWER_BYTES)
    sequence.risky(thread, "cuDeviceGetDevResource", (0, sequence.devices + 7), (whole, 0), (1, 99))
    sequence.call(thread, "cuDeviceGetDevResource", 0, whole, 1)
    sequence.call(thread, "cuCtxGetDevResource", sequence.context_of(thread), part, 1)
    sequence.call(thread, "cuDevSmResourceSplitByCount", part, "[u32 1]", whole, 0, 0, 2)
    yield
    description, out = sequence.new("description")
    sequence.risky(thread, "cuDevResourceGenerateDesc", (">never", 0), (part, 0), (1,), probability=1)
    sequence.call(thread, "cuDevResourceGenerateDesc", out, part, 1)
    green, out = sequence.new("green")
    sequence.call(thread, "cuGreenCtxCreate", out, description, 0, 1)
    yield
    stream, out = sequence.new("stream")
    sequence.call(thread, "cuGreenCtxStreamCreate", out, green, 1, 0)
    event, out = sequence.new("event")
    sequence.call(thread, "cuEventCreate", out, 2)
    sequence.call(thread, "cuGreenCtxGetDevResource", green, whole, 1)
    sequence.call(thread, "cuGreenCtxRecordEvent", green, event)
    sequence.call(thread, "cuGreenCtxWaitEvent", green, event)
    sequence.call(thread, "cuStreamGetGreenCtx", stream, ">its")
    sequence.call(thread, "cuStreamSynchronize", stream)
    yield
    sequence.call(thread, "cuStreamDestroy_v2", stream)
    sequence.call(thread, "cuEventDestroy_v2", event)
    sequence.call(thread, "cuGreenCtxDestroy", green)


def tensor_maps(sequence, thread):
    """Tensor maps, as the bytes that kernels get."""
    block = allocate(sequence, thread, 65536)
    maps = sequence.host(thread, ANSWER_BYTES)
    element = (0, "[64 32]", "[64]")  # u8, extents, strides
    kind, extents, strides = element
    made = sequence.call(thread, "cuTensorMapEncodeTiled", maps, kind, 2, block, extents, strides, "[u32 16 8]",
                         "[u32 1 1]", 0, 0, 0, 0)
    sequence.risky(thread, "cuTensorMapEncodeTiled", (maps.at(128), 0), (kind, 99), (2, 0, 6), (block, block.at(1)),
                   extents, strides, ("[u32 16 8]", "[u32 0 8]", "[u32 512 8]"), "[u32 1 1]", (0, 99), (0, 99), (0, 99),
                   (0, 99), probability=0.7)
    yield
    sequence.risky(thread, "cuTensorMapReplaceAddress", (maps,), (block.at(1024), block.at(3)))
    sequence.risky(thread, "cuTensorMapEncodeIm2col", (maps.at(256), 0), 0, (3, 2), block, "[64 32 2]", "[64 2048]",
                   "[u32 0]", "[u32 0]", (16, 0), (8, 0), "[u32 1 1 1]", 0, 0, 0, 0)
    sequence.risky(thread, "cuTensorMapEncodeIm2colWide", (maps.at(384), 0), 0, (3, 2), block, "[64 32 2]", "[64 2048]",
                   0, 0, (64, 0), (32, 0), "[u32 1 1 1]", 0, 0, (3, 0), 0, 0)
    del made
    sequence.call(thread, "cuMemFree_v2", block)
