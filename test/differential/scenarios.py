"""Programs' use of each family of the API, call by call. A scenario is a generator: it yields where other scenarios may
interleave."""

from grammar import PAGE, WAIT_NOR, on_device, structure
from kernels import PTX

HOST_BYTES = 65536
# The attributes about the program's host memory differ (docs/differences.md).
ATTRIBUTES = sorted(set(range(1, 100)) - {86, 88, 89})
MEMORY_SIZES = (1, 255, 512, 4096, 65536, PAGE + 4)


def allocate(sequence, thread, size):
    memory, out = sequence.new("memory", size)
    sequence.call(thread, "cuMemAlloc_v2", out, size)
    filled = sequence.call(thread, "cuMemsetD8_v2", memory, sequence.random.randrange(256), size)
    memory.needs = [filled,
                    sequence.call(thread, "cuStreamSynchronize",
                                  0)]  # the fill is asynchronous, and streams that do not block would not wait for it
    return memory


def check(sequence, thread, memory, size=None):
    """Shows the memory's contents on the host."""
    size = min(size or memory.size, HOST_BYTES)
    host = sequence.host(thread, HOST_BYTES)
    copied = sequence.call(thread, "cuMemcpyDtoH_v2", host, memory, size)
    sequence.digest(thread, host, 0, size, [*memory.needs, copied])


def memory(sequence, thread):
    """Plain device memory: sizes, fills, copies, pointers, frees."""
    size = sequence.pick(*MEMORY_SIZES)
    sequence.risky(thread, "cuMemAlloc_v2", (">never", 0), (size, 0, 1 << 60), probability=0.1)
    block, other = allocate(sequence, thread, size), allocate(sequence, thread, size)
    yield
    host = sequence.host(thread, HOST_BYTES)
    for _ in range(sequence.random.randrange(2, 7)):
        part = sequence.random.randrange(0, min(size, HOST_BYTES) + 1)
        at = sequence.random.randrange(0, size - part + 1)
        block_at, beyond = block.at(at), size - at + 1
        sequence.pick(
            lambda: sequence.risky(thread, "cuMemcpyHtoD_v2",
                                   (block_at, 0), host, part), lambda: sequence.risky(thread, "cuMemcpyDtoH_v2", host,
                                                                                      (block_at, 0), part),
            lambda: sequence.risky(thread, "cuMemcpyDtoD_v2", (block_at, 0), (other.at(at), 0), (part, beyond)),
            lambda: sequence.risky(thread, "cuMemcpy", block_at, other.at(at), part),
            lambda: sequence.risky(thread, "cuMemsetD8_v2", (block_at, 0), 7, (part, beyond)),
            lambda: sequence.risky(thread, "cuMemsetD16_v2", (block.at(at & ~1), block.at(at | 1)), 0x1234,
                                   (part // 2 if at + part <= size else 0)),
            lambda: sequence.risky(thread, "cuMemsetD32_v2",
                                   (block.at(at & ~3), block.at(at | 2)), 0x12345678, part // 4),
            lambda: sequence.risky(thread, "cuMemGetAddressRange_v2", ">base", "?u64",
                                   (block_at, 0)), lambda: sequence.risky(thread, "cuPointerGetAttribute", ("?i32", 0),
                                                                          (2, 0, 99), (block_at, 0)),
        )()
        yield
    if size >= 4096:
        sequence.risky(thread, "cuMemsetD2D8_v2", (block, 0), (64, 15), 3, 16, (8, 1 << 40))
        sequence.risky(thread, "cuMemsetD2D32_v2", (block, block.at(2)), (64, 62), 3, 4, (8, 0))
        yield
        fields = {
            "srcMemoryType": 2, "srcDevice": block, "srcPitch": sequence.edge(64, 8), "dstMemoryType": 2,
            "dstDevice": other, "dstPitch": 128, "WidthInBytes": 32, "Height": sequence.edge(16, 0, 1000)
        }
        sequence.call(thread, "cuMemcpy2D_v2", structure("CUDA_MEMCPY2D", fields))
        fields = {
            "srcMemoryType": 1, "srcHost": host, "srcPitch": 64, "srcHeight": 4, "dstMemoryType": 2, "dstDevice": other,
            "dstPitch": 64, "dstHeight": 4, "WidthInBytes": sequence.edge(32, 0), "Height": 4,
            "Depth": sequence.edge(2, 0, 100)
        }
        sequence.call(thread, "cuMemcpy3D_v2", structure("CUDA_MEMCPY3D", fields))
        yield
    check(sequence, thread, block)
    check(sequence, thread, other)
    yield
    sequence.risky(thread, "cuMemFree_v2", (block, block.at(1) if size > 1 else 0), probability=0.3)
    yield
    # The freed address is used at once, since any allocation may get it.
    sequence.call(thread, "cuMemFree_v2", other)
    sequence.call(thread, "cuMemFree_v2", sequence.pick(other, 0))
    sequence.call(thread, "cuMemcpyDtoH_v2", host, other, 1)
    sequence.call(thread, "cuMemGetAddressRange_v2", ">base", "?u64", other)


def virtual_memory(sequence, thread):
    """Reservations, physical memory, mappings: each piece by itself."""
    pages = sequence.random.randrange(2, 6)
    prop = structure("CUmemAllocationProp", {"type": 1, **on_device(0)})
    bad_prop = structure("CUmemAllocationProp", {"type": 1, **on_device(sequence.devices + 7)})
    sequence.risky(thread, "cuMemGetAllocationGranularity", ("?u64", 0), (prop, 0), (0,))
    space, out = sequence.new("memory", pages * PAGE)
    if not sequence.risky(thread, "cuMemAddressReserve", (out, 0), (pages * PAGE, 0, 12345), (0, 3), 0,
                          (0, 1), probability=0.1):
        sequence.call(thread, "cuMemAddressReserve", out, pages * PAGE, 0, 0, 0)
    yield
    handles = []
    for _ in range(sequence.random.randrange(1, pages + 1)):
        handle, made = sequence.new("physical")
        if not sequence.risky(thread, "cuMemCreate", (made, 0), (PAGE, 0, 4096), (prop, bad_prop, 0),
                              (0, 1), probability=0.1):
            sequence.call(thread, "cuMemCreate", made, PAGE, prop, 0)
        handles.append(handle)
        yield
    access = structure("CUmemAccessDesc", {**on_device(0), "flags": 3})
    denied = structure("CUmemAccessDesc", on_device(0))
    mapped = {}
    for _ in range(sequence.random.randrange(4, 14)):
        page, handle = sequence.random.randrange(pages), sequence.random.choice(handles)
        place = space.at(page * PAGE)
        action = sequence.pick("map", "map", "unmap", "access", "deny", "ask", "write", "free", "get", "retain")
        if action == "map":
            right = sequence.risky(thread, "cuMemMap", (place, 0, space.at(page * PAGE + 4096)), (PAGE, 0, 2 * PAGE),
                                   (0, PAGE), (handle, 0), (0, 1), probability=0.15)
            if right and page not in mapped:
                mapped[page] = False
        elif action == "unmap":
            # Unmapped pages are skipped: the driver's answer depends on their neighbours.
            if page in mapped:
                sequence.call(thread, "cuCtxSynchronize")  # work in flight on it would fault
                sequence.call(thread, "cuMemUnmap", place, PAGE)
                mapped.pop(page)
        elif action == "access" and page in mapped:
            if sequence.risky(thread, "cuMemSetAccess", place, (PAGE, 0), (access, 0), (1, 0), probability=0.15):
                space.needs.append(sequence.call(thread, "cuMemsetD8_v2", place, page + 1, PAGE))
                mapped[page] = True
        elif action == "deny" and page in mapped:
            sequence.call(thread, "cuCtxSynchronize")  # what still works there would fault
            sequence.call(thread, "cuMemSetAccess", place, PAGE, denied, 1)
            mapped[page] = False
        elif action == "ask":
            sequence.call(thread, "cuPointerGetAttribute", ">base", 3, place)
            sequence.call(thread, "cuMemGetAddressRange_v2", ">base", "?u64", place)
            sequence.call(thread, "cuPointerGetAttributes", 4, "[u32 2 8 12 16]", "[?i32 ?u32 ?u64 ?u32]", place)
        elif action == "write" and mapped.get(page):
            sequence.call(thread, "cuMemGetAccess", "?u64", structure("CUmemLocation", {"type": 1, "id": 0}), place)
            sequence.call(thread, "cuMemsetD32_v2", place, 99, 1024)
            check(sequence, thread, space, 64) if page == 0 else None
        elif action == "free" and mapped:
            sequence.call(thread, "cuMemAddressFree", space, pages * PAGE)
        elif action == "get":
            sequence.call(thread, "cuMemGetAllocationPropertiesFromHandle",
                          structure("CUmemAllocationProp", {}, "type location.id"), handle)
        elif action == "retain" and page in mapped:
            again, out = sequence.new("physical")
            sequence.call(thread, "cuMemRetainAllocationHandle", out, place)
            sequence.call(thread, "cuMemRelease", again)
        yield
    for handle in handles:
        sequence.call(thread, "cuMemRelease", handle)
    yield
    for page in list(mapped):
        sequence.call(thread, "cuCtxSynchronize")
        sequence.call(thread, "cuMemUnmap", space.at(page * PAGE), PAGE)
        yield
    sequence.risky(thread, "cuMemAddressFree", (space, space.at(PAGE)), (pages * PAGE, PAGE), probability=0.3)
    sequence.call(thread, "cuMemAddressFree", space, pages * PAGE)


def stream_of(sequence, thread):
    stream, out = sequence.new("stream")
    sequence.call(thread, "cuStreamCreate", out, sequence.pick(0, 1))
    return stream


def pools(sequence, thread):
    """Memory in stream order, and pools."""
    stream = stream_of(sequence, thread)
    props = structure("CUmemPoolProps", {"allocType": 1, **on_device(0)})
    bad = structure("CUmemPoolProps", {"allocType": 1, **on_device(sequence.devices + 7)})
    pool, out = sequence.new("pool")
    sequence.call(thread, "cuMemPoolCreate", ">nopool", bad)
    sequence.call(thread, "cuMemPoolCreate", out, props)
    yield
    blocks = []
    for _ in range(sequence.random.randrange(1, 4)):
        size = sequence.pick(1, 512, 4096, 100000)
        block, out = sequence.new("memory", size)
        if sequence.chance(0.5):
            sequence.call(thread, "cuMemAllocAsync", out, size, stream)
        else:
            sequence.call(thread, "cuMemAllocFromPoolAsync", out, size, pool, stream)
        filled = sequence.call(thread, "cuMemsetD8Async", block, 5, size, stream)
        block.needs = [filled, sequence.call(thread, "cuStreamSynchronize", stream)]
        blocks.append(block)
        yield
    nothing, out = sequence.new("memory")
    sequence.risky(thread, "cuMemAllocAsync", (out, 0), (0, 1 << 60), stream)
    sequence.risky(thread, "cuMemAllocFromPoolAsync", (out, 0), 0, (pool, 0), stream)
    sequence.call(thread, "cuMemPoolGetAttribute", pool, sequence.pick(1, 2, 3, 99), "?u32")
    sequence.call(thread, "cuMemPoolGetAttribute", pool, 4, "?u64")
    sequence.risky(thread, "cuMemPoolSetAttribute", (pool, 0), (4, 99), "[4096]")
    sequence.risky(thread, "cuMemPoolTrimTo", (pool, 0), (0, 1 << 40))
    sequence.risky(thread, "cuMemPoolGetAccess", ("?u32", 0), pool,
                   structure("CUmemLocation", {"type": 1, "id": sequence.edge(0, sequence.devices + 7)}))
    sequence.risky(thread, "cuDeviceGetDefaultMemPool", (">default", 0), (0, sequence.devices + 7))
    yield
    for block in blocks:
        check(sequence, thread, block)
        sequence.call(thread, "cuMemFreeAsync", block, stream) if sequence.chance(0.6) else sequence.call(
            thread, "cuMemFree_v2", block)
        yield
    sequence.call(thread, "cuMemFreeAsync", 0, stream)
    sequence.call(thread, "cuStreamSynchronize", stream)
    sequence.risky(thread, "cuMemPoolDestroy", (pool, 0))
    sequence.call(thread, "cuStreamDestroy_v2", stream)


def streams(sequence, thread):
    """Streams and events: flags, priorities, waits, queries."""
    stream, out = sequence.new("stream")
    if not sequence.risky(thread, "cuStreamCreateWithPriority", (out, 0), (1, 99), (0, -100, 100)):
        sequence.call(thread, "cuStreamCreate", out, 1)
    other = stream_of(sequence, thread)
    event, out = sequence.new("event")
    if not sequence.risky(thread, "cuEventCreate", (out, 0), (0, 2, 99, 4)):
        sequence.call(thread, "cuEventCreate", out, 2)
    yield
    never, out = sequence.new("event")
    sequence.call(thread, "cuEventCreate", out, 0)
    for _ in range(sequence.random.randrange(3, 10)):
        sequence.pick(
            lambda: sequence.risky(thread, "cuEventRecord", (event, 0), sequence.pick(stream, other, 0, 1, 2)),
            lambda: sequence.risky(thread, "cuStreamWaitEvent", sequence.pick(stream, other, 0, 2), (event, 0),
                                   (0, 99)), lambda: sequence.risky(thread, "cuEventRecordWithFlags", event, stream,
                                                                    (0, 99)),
            lambda: sequence.call(thread, "~cuStreamQuery", sequence.pick(stream, other, 0, 1, 2)),
            lambda: sequence.call(thread, "~cuEventQuery", sequence.pick(event, never)),
            lambda: sequence.risky(thread, "cuEventSynchronize", (event, 0)),
            lambda: sequence.call(thread, "cuStreamSynchronize", sequence.pick(stream, other, 0, 1, 2)),
            lambda: sequence.risky(thread, "cuStreamGetFlags", stream, ("?u32", 0)),
            lambda: sequence.risky(thread, "cuStreamGetPriority", sequence.pick(stream, 0),
                                   ("?i32", 0)), lambda: sequence.risky(thread, "cuStreamGetCtx", stream, (">its", 0)),
            lambda: sequence.risky(thread, "cuStreamGetDevice", stream,
                                   ("?i32", 0)), lambda: sequence.risky(thread, "cuStreamGetId", stream, ("?hide", 0)),
            lambda: sequence.risky(thread, "cuStreamIsCapturing", sequence.pick(stream, 0, 2), ("?i32", 0)),
            lambda: sequence.risky(thread, "cuStreamCopyAttributes", stream, other),
            lambda: sequence.risky(thread, "cuEventElapsedTime_v2", ("?hide", 0), (never, 0), event),
            lambda: sequence.risky(thread, "cuCtxGetStreamPriorityRange", "?i32", "?i32"),
        )()
        yield
    sequence.call(thread, "cuStreamSynchronize", stream)
    sequence.call(thread, "cuStreamSynchronize", other)
    sequence.call(thread, "cuEventDestroy_v2", sequence.edge(event, 0))
    sequence.call(thread, "cuEventDestroy_v2", never)
    sequence.call(thread, "cuStreamDestroy_v2", stream)
    sequence.call(thread, "cuStreamDestroy_v2", sequence.edge(other, 0))


def load(sequence, thread):
    module, out = sequence.new("module")
    sequence.call(thread, "cuModuleLoadData", out, f'"{PTX}"')
    return module


def function_of(sequence, thread, module, name):
    function, out = sequence.new("function")
    sequence.call(thread, "cuModuleGetFunction", out, module, f'"{name}"')
    return function


def modules(sequence, thread):
    """Modules, functions, launches of every shape."""
    module = load(sequence, thread)
    yield
    fill, bounded, nothing = (function_of(sequence, thread, module, name) for name in ("fill", "bounded", "nothing"))
    sequence.risky(thread, "cuModuleGetFunction", (">none", 0), (module, 0), ('"nothing"', '"no_such"', '""', 0),
                   probability=0.6)
    sequence.risky(thread, "cuModuleGetGlobal_v2", ">global", ("?u64",), (module, 0), ('"counter"', '"no_such"', 0),
                   probability=0.4)
    sequence.call(thread, "cuModuleGetFunctionCount", "?u32", sequence.edge(module, 0))
    yield
    stream = stream_of(sequence, thread)
    target = allocate(sequence, thread, 4096)
    # A choice only if the function exists, so that the sequences for the software device, which lacks it, do not
    # change.
    staged = []
    if "cuLaunchGrid" not in sequence.left_out:
        staged = [lambda: staged_launch(sequence, thread, fill, target, stream)]
    for _ in range(sequence.random.randrange(3, 9)):
        arguments = f"(8:{target} 4:{sequence.random.randrange(1000)} 4:1024)"
        sequence.pick(
            *staged,
            lambda: sequence.risky(thread, "cuLaunchKernel", (fill, 0), (4, 0, 1 << 31), (1, 0, 65536), (1, 65536),
                                   (256, 0, 1025, 2048), (1, 1025), (1, 65),
                                   (0, 300000, 49152), sequence.pick(stream, 0, 2), (arguments, 0), 0),
            lambda: sequence.risky(thread, "cuLaunchKernel", bounded, 1, 1, 1,
                                   (64, 65, 128, 1024), 1, 1, 0, stream, 0, 0, probability=0.5),
            lambda: sequence.risky(thread, "cuLaunchCooperativeKernel", nothing, (1, 0, 1 << 20), 1, 1,
                                   (32, 0), 1, 1, 0, stream, 0),
            lambda: sequence.risky(thread, "cuFuncGetAttribute", ("?i32", 0), (0, 1, 3, 8, 9, 99),
                                   (bounded, 0)), lambda: sequence.risky(thread, "cuFuncSetAttribute", (fill, 0),
                                                                         (8, 0, 4, 99), (1024, -1, 1 << 30)),
            lambda: sequence.risky(thread, "cuFuncSetCacheConfig", (fill, 0),
                                   (1, 99)), lambda: sequence.risky(thread, "cuFuncGetName", ("?text", 0),
                                                                    (bounded, 0)),
            lambda: sequence.risky(thread, "cuFuncGetModule", (">its", 0),
                                   (fill, 0)), lambda: sequence.risky(thread, "cuFuncGetParamInfo", (fill, 0),
                                                                      (sequence.pick(0, 1, 2), 3, 99), "?u64", "?u64"),
            lambda: sequence.risky(thread, "cuOccupancyMaxActiveBlocksPerMultiprocessor", ("?i32", 0), (nothing, 0),
                                   (128, 0, -1, 2048),
                                   (0, 1 << 20)), lambda: launch_with_attributes(sequence, thread, nothing, stream),
        )()
        target.needs.append(sequence.call(thread, "cuCtxSynchronize"))
        yield
    check(sequence, thread, target)
    sequence.call(thread, "cuModuleUnload", sequence.edge(module, 0))
    sequence.call(thread, "cuStreamDestroy_v2", stream)
    sequence.call(thread, "cuMemFree_v2", target)


def staged_launch(sequence, thread, function, target, stream):
    """The launch interface of CUDA 3, where a launch's parameters are set on the function before."""
    # Wrong calls come first, then all the right ones: a kernel without its address would fault.
    wrong = [("cuFuncSetBlockShape", (function, 0), (256, 0, -1), (1, 0), (1, 0)),
             ("cuFuncSetSharedSize", (function, 0), (0,)), ("cuParamSetv", (function, 0), (0,), f"[{target}]", 8),
             ("cuParamSeti", (function, 0), (8,), 7), ("cuParamSetf", (function, 0), (12,), 2),
             ("cuParamSetSize", (function, 0), (16, 1 << 20))]
    for name, *arguments in sequence.random.sample(wrong, 2):
        sequence.risky(thread, name, *arguments, probability=1)
    for name, *arguments in (("cuFuncSetBlockShape", 256, 1, 1), ("cuFuncSetSharedSize", sequence.pick(0, 1024)),
                             ("cuParamSetSize", 16), ("cuParamSetv", 0, f"[{target}]", 8),
                             ("cuParamSeti", 8, sequence.random.randrange(1000)), ("cuParamSeti", 12, 1024)):
        sequence.call(thread, name, function, *arguments)
    sequence.pick(lambda: sequence.call(thread, "cuLaunch", function),
                  lambda: sequence.risky(thread, "cuLaunchGrid", (function, 0), (4, 0, -1), (1, 0)),
                  lambda: sequence.risky(thread, "cuLaunchGridAsync", (function, 0), (4, 0, -1), (1, 0), stream))()


def launch_with_attributes(sequence, thread, function, stream):
    cluster, grid, block = sequence.one_wrong([(2, 0, 3, 32), (4, 0), (32, 0, 4096)], probability=0.4)
    attribute = sequence.pick(
        {"id": 2, "value.cooperative": 1}, {"id": 8, "value.priority": 0},
        {"id": 4, "value.clusterDim.x": cluster, "value.clusterDim.y": 1, "value.clusterDim.z": 1})
    shape = {"gridDimX": grid, "gridDimY": 1, "gridDimZ": 1, "blockDimX": block, "blockDimY": 1, "blockDimZ": 1,
             "hStream": stream, "attrs": structure("CUlaunchAttribute", attribute), "numAttrs": 1}
    sequence.call(thread, "cuLaunchKernelEx", structure("CUlaunchConfig", shape), function, 0, 0)


def libraries(sequence, thread):
    """Libraries and kernels that belong to no context."""
    library, out = sequence.new("library")
    sequence.call(thread, "cuLibraryLoadData", out, f'"{PTX}"', 0, 0, 0, 0, 0, 0)
    yield
    kernel, out = sequence.new("kernel")
    sequence.call(thread, "cuLibraryGetKernel", out, library, '"fill"')
    sequence.risky(thread, "cuLibraryGetKernel", (">none", 0), (library, 0), ('"nothing"', '"no_such"', 0),
                   probability=0.6)
    sequence.risky(thread, "cuLibraryGetKernelCount", ("?u32", 0), (library, 0))
    sequence.risky(thread, "cuLibraryGetGlobal", ">global", "?u64", (library, 0), ('"counter"', '"no_such"', 0))
    sequence.risky(thread, "cuLibraryGetModule", (">its", 0), (library, 0))
    sequence.risky(thread, "cuKernelGetFunction", (">function", 0), (kernel, 0))
    sequence.risky(thread, "cuKernelGetAttribute", ("?i32", 0), (0, 99), (kernel, 0), (0, sequence.devices + 7))
    sequence.risky(thread, "cuKernelGetName", ("?text", 0), (kernel, 0))
    yield
    target = allocate(sequence, thread, 4096)
    sequence.call(thread, "cuLaunchKernel", kernel, 4, 1, 1, 256, 1, 1, 0, 0, f"(8:{target} 4:7 4:1024)", 0)
    target.needs.append(sequence.call(thread, "cuCtxSynchronize"))
    check(sequence, thread, target)
    sequence.call(thread, "cuMemFree_v2", target)
    sequence.call(thread, "cuLibraryUnload", library)


def textures(sequence, thread):
    """Arrays and objects over them."""
    descriptor = structure(
        "CUDA_ARRAY_DESCRIPTOR", {
            "Width": sequence.edge(64, 0, 1 << 30), "Height": sequence.edge(32, 1 << 30), "Format": sequence.edge(
                1, 99), "NumChannels": sequence.edge(1, 0, 3, 5)
        })
    sequence.call(thread, "cuArrayCreate_v2", ">never", descriptor)
    array, out = sequence.new("array")
    sequence.call(thread, "cuArrayCreate_v2", out,
                  structure("CUDA_ARRAY_DESCRIPTOR", {"Width": 64, "Height": 32, "Format": 1, "NumChannels": 4}))
    yield
    shown = structure("CUDA_ARRAY_DESCRIPTOR", {}, "Width Height Format NumChannels")
    sequence.risky(thread, "cuArrayGetDescriptor_v2", (shown, 0), (array, 0))
    host = sequence.host(thread, HOST_BYTES)
    copy = {
        "srcMemoryType": 1, "srcHost": host, "srcPitch": 256, "dstMemoryType": 3, "dstArray": array,
        "dstXInBytes": sequence.edge(0, 300), "WidthInBytes": 256, "Height": sequence.edge(32, 33, 0)
    }
    written = sequence.call(thread, "cuMemcpy2D_v2", structure("CUDA_MEMCPY2D",
                                                               {**copy, "dstXInBytes": 0, "Height": 32}))
    sequence.call(thread, "cuMemcpy2D_v2", structure("CUDA_MEMCPY2D", copy))
    back = sequence.host(thread, HOST_BYTES)
    read = sequence.call(
        thread, "cuMemcpy2D_v2",
        structure(
            "CUDA_MEMCPY2D", {
                "srcMemoryType": 3, "srcArray": array, "dstMemoryType": 1, "dstHost": back, "dstPitch": 256,
                "WidthInBytes": 256, "Height": 32
            }))
    sequence.digest(thread, back, 0, 8192, [written, read])
    yield
    resource, without = (structure("CUDA_RESOURCE_DESC", {"resType": 0, "res.array.hArray": each})
                         for each in (array, 0))
    texture, out = sequence.new("texture")
    sequence.risky(thread, "cuTexObjectCreate", (out, 0), (resource, without, 0),
                   (structure("CUDA_TEXTURE_DESC", {"addressMode[0]": 1, "flags": 2}), 0), 0, probability=0.2)
    sequence.call(thread, "cuTexObjectCreate", out,
                  structure("CUDA_RESOURCE_DESC", {"resType": 0, "res.array.hArray": array}),
                  structure("CUDA_TEXTURE_DESC", {"addressMode[0]": 1}), 0)
    sequence.call(thread, "cuTexObjectDestroy", texture)
    yield
    sequence.call(thread, "cuArrayDestroy", sequence.edge(array, 0))


def host_memory(sequence, thread):
    """Page-locked memory, allocated and registered."""
    size = sequence.pick(1, 4096, 10000)
    pinned, out = sequence.new("host", size)
    if not sequence.risky(thread, "cuMemHostAlloc", (out, 0), (size, 0), (sequence.pick(0, 1, 2, 4), 0x80)):
        sequence.call(thread, "cuMemAllocHost_v2", out, size)
    yield
    sequence.risky(thread, "cuMemHostGetDevicePointer_v2", (">mapped", 0), (pinned, 0), (0, 1))
    sequence.risky(thread, "cuMemHostGetFlags", ("?hide", 0), (pinned, 0))
    sequence.risky(thread, "cuPointerGetAttribute", ("?i32", 0), 2, (pinned, 0))
    plain = sequence.host(thread, 16384)
    registered = sequence.risky(thread, "cuMemHostRegister_v2", (plain, 0), (16384, 0), (sequence.pick(0, 1, 2), 0x80),
                                probability=0.4)
    sequence.call(thread, "cuMemHostRegister_v2", plain, 16384, 0)
    yield
    block = allocate(sequence, thread, 4096)
    there = sequence.call(thread, "cuMemcpyHtoDAsync_v2", block, plain.at(64), 4096, 0)
    back = sequence.call(thread, "cuMemcpyDtoHAsync_v2", plain.at(8192), block, 4096, 0)
    sequence.digest(thread, plain, 8192, 4096, [there, back, sequence.call(thread, "cuStreamSynchronize", 0)])
    yield
    sequence.call(thread, "cuMemHostUnregister", sequence.edge(plain, plain.at(4096), 0))
    sequence.call(thread, "cuMemHostUnregister", plain)
    sequence.call(thread, "cuMemFreeHost", sequence.edge(pinned, 0, plain, probability=0.4))
    sequence.call(thread, "cuMemFreeHost", pinned)
    sequence.call(thread, "cuMemFree_v2", block)
    del registered


def managed(sequence, thread):
    """Managed memory: accesses and advice."""
    size = sequence.pick(64, 4096, 200000, PAGE)
    block, out = sequence.new("memory", size)
    if not sequence.risky(thread, "cuMemAllocManaged", (out, 0), (size, 0), (1, 0, 4, 99)):
        sequence.call(thread, "cuMemAllocManaged", out, size, 1)
    filled = sequence.call(thread, "cuMemsetD8_v2", block, 9, size)
    block.needs = [filled, sequence.call(thread, "cuCtxSynchronize")]
    sequence.digest(thread, block, 0, size, block.needs)
    yield
    sequence.risky(thread, "cuMemAdvise", (block, 0), (size, 0, size + 10000000), (sequence.pick(1, 2), 0, 99), 0)
    sequence.risky(thread, "cuMemPrefetchAsync", (block, 0), (size, 0, size + 10000000),
                   (sequence.pick(0, -1), sequence.devices + 7), 0)
    if size == PAGE:  # smaller allocations share pages and their advice
        sequence.risky(thread, "cuMemRangeGetAttribute", ("?i32", 0), (4, 8), (1, 99), (block, 0), size)
    sequence.risky(thread, "cuPointerGetAttribute", ("?u32", 0), 8, (block, 0))
    sequence.call(thread, "cuCtxSynchronize")
    yield
    check(sequence, thread, block)
    sequence.call(thread, "cuMemFree_v2", sequence.edge(block, block.at(8)))
    sequence.call(thread, "cuMemFree_v2", block)


def contexts(sequence, thread):
    """Contexts on this thread's stack, their limits and ends."""
    context, out = sequence.new("context")
    params = structure("CUctxCreateParams", {})
    if not sequence.risky(thread, "cuCtxCreate_v4", (out, 0), params, (0, 0x1000), (0, sequence.devices + 7, -1)):
        sequence.call(thread, "cuCtxCreate_v4", out, 0, 0, 0)
    for _ in range(sequence.random.randrange(3, 9)):
        sequence.pick(
            lambda: sequence.risky(thread, "cuCtxGetCurrent",
                                   (">now", 0)), lambda: sequence.risky(thread, "cuCtxGetDevice", ("?i32", 0)),
            lambda: sequence.risky(thread, "cuCtxGetFlags",
                                   ("?u32", 0)), lambda: sequence.risky(thread, "cuCtxGetApiVersion", (context, 0),
                                                                        ("?hide", 0)),
            lambda: sequence.risky(thread, "cuCtxGetLimit", ("?hide", 0),
                                   (0, 1, 99)), lambda: sequence.risky(thread, "cuCtxSetLimit",
                                                                       (sequence.pick(0, 1), 99), 65536),
            lambda: sequence.risky(thread, "cuCtxGetCacheConfig",
                                   ("?i32", 0)), lambda: sequence.risky(thread, "cuCtxSetCacheConfig", (1, 99)),
            lambda: sequence.risky(thread, "cuCtxGetId", (context, 0),
                                   ("?hide", 0)), lambda: sequence.call(thread, "cuCtxSynchronize"),
            lambda: (sequence.call(thread, "cuCtxPushCurrent_v2", context),
                     sequence.call(thread, "cuCtxPopCurrent_v2", ">top")),
        )()
    block = allocate(sequence, thread, 512)
    sequence.call(thread, "cuCtxPopCurrent_v2", ">popped")
    sequence.call(thread, "cuCtxSetCurrent", sequence.context_of(thread))
    yield
    sequence.call(thread, "cuMemcpyDtoH_v2", sequence.host(thread, 4096), block, 512)
    sequence.call(thread, "cuCtxDestroy_v2", context)
    sequence.call(thread, "cuMemFree_v2", block)
    yield
    sequence.call(thread, "cuCtxDestroy_v2", 0)
    sequence.call(thread, "cuDevicePrimaryCtxGetState", sequence.edge(0, sequence.devices + 7), "?u32", "?i32")
    sequence.call(thread, "cuDevicePrimaryCtxSetFlags_v2", sequence.edge(0, sequence.devices + 7),
                  sequence.pick(0x1000, 0))


def devices(sequence, thread):
    """Queries of devices, peers and errors."""
    wrong = sequence.devices + 7
    for _ in range(sequence.random.randrange(3, 8)):
        sequence.pick(
            lambda: sequence.risky(thread, "cuDeviceGet", ("?i32", 0),
                                   (0, wrong, -1)), lambda: sequence.risky(thread, "cuDeviceGetCount", ("?i32", 0)),
            lambda: sequence.risky(thread, "cuDeviceGetAttribute", ("?i32", 0),
                                   (sequence.pick(*ATTRIBUTES), 0, 9999, -1), (0, wrong)),
            lambda: sequence.risky(thread, "cuDeviceTotalMem_v2", ("?hide", 0),
                                   (0, wrong)), lambda: sequence.risky(thread, "cuDeviceCanAccessPeer", ("?i32", 0),
                                                                       (0, wrong), 0),
            lambda: sequence.risky(thread, "cuCtxEnablePeerAccess", (sequence.contexts[0], 0),
                                   (0, 1)), lambda: sequence.risky(thread, "cuCtxDisablePeerAccess",
                                                                   (sequence.contexts[0], 0)),
            lambda: sequence.risky(thread, "cuDeviceGetP2PAttribute", ("?i32", 0), (1, 99), 0, (0, wrong)),
            lambda: sequence.risky(thread, "cuGetErrorString", (sequence.pick(*range(0, 1000)), 12345), "?text"),
            lambda: sequence.risky(thread, "cuGetErrorName", (sequence.pick(*range(0, 1000)), -1), "?text"),
            lambda: sequence.risky(thread, "cuDriverGetVersion",
                                   ("?i32", 0)), lambda: sequence.risky(thread, "cuInit", (0, 1)),
        )()
        yield


def callbacks(sequence, thread):
    """Functions of the program in stream order, and destructors of user objects."""
    stream = stream_of(sequence, thread)
    for _ in range(sequence.random.randrange(1, 4)):
        sequence.risky(thread, "cuLaunchHostFunc", stream, ("%host", 0), 0)
        sequence.risky(thread, "cuStreamAddCallback", stream, ("%stream", 0), 0, (0, 1))
        sequence.call(thread, "cuStreamSynchronize", stream)
        sequence.call(thread, "counts")
        yield
    sequence.call(thread, "cuStreamDestroy_v2", stream)


def memory_operations(sequence, thread):
    """Words that a stream writes, and waits for words that are written already."""
    stream = stream_of(sequence, thread)
    block = allocate(sequence, thread, 4096)
    # No wait depends on a write that may fail, or on a block that a capture kept from being cleared: each accepts any
    # word but all ones.
    sequence.call(thread, "cuMemsetD8_v2", block, 0, 4096)
    sequence.call(thread, "cuStreamSynchronize", 0)
    for _ in range(sequence.random.randrange(2, 6)):
        at = 8 * sequence.random.randrange(64)
        # The NULL stream and this one have no order: each uses its own half.
        writer, half = sequence.pick((stream, 0), (0, 2048))
        sequence.risky(thread, "cuStreamWriteValue32_v2", writer, (block.at(half + at), block.at(half + at + 2), 0), 7,
                       (0, 99))
        sequence.risky(thread, "cuStreamWriteValue64_v2", stream, (block.at(at), block.at(at + 4), 0), 7, 0)
        sequence.risky(thread, "cuStreamWaitValue32_v2", stream, (block.at(at), block.at(at + 2), 0), 0,
                       (WAIT_NOR, 99))
        block.needs.append(sequence.call(thread, "cuStreamSynchronize", stream))
        yield
    check(sequence, thread, block)
    sequence.call(thread, "cuMemFree_v2", block)
    sequence.call(thread, "cuStreamDestroy_v2", stream)


def reset(sequence, thread):
    """The primary context is reset with all its objects, however often it is retained, and can be retained again."""
    primary = sequence.contexts[0]
    sequence.call(thread, "cuCtxSetCurrent", primary)
    block = allocate(sequence, thread, 4096)
    check(sequence, thread, block)
    yield
    sequence.risky(thread, sequence.pick("cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxReset"),
                   (0, sequence.devices + 7), probability=0.2)
    sequence.call(thread, "cuCtxGetCurrent", ">now")
    sequence.call(thread, "cuCtxSynchronize")
    sequence.call(thread, "cuMemcpyDtoH_v2", sequence.host(thread, 4096), block, 512)
    yield
    again, out = sequence.new("context")
    sequence.call(thread, "cuDevicePrimaryCtxRetain", out, 0)
    sequence.call(thread, "cuCtxSetCurrent", again)
    other = allocate(sequence, thread, 4096)
    check(sequence, thread, other)
    sequence.call(thread, "cuMemFree_v2", other)


def runtime(sequence, thread):
    """The runtime, with its last error."""
    size = sequence.pick(64, 4096)
    block, out = sequence.new("memory", size)
    sequence.call(thread, "cudaMalloc", out, size)
    filled = sequence.call(thread, "cudaMemset", block, 1, size)
    host = sequence.host(thread, HOST_BYTES)
    stream, made = sequence.new("stream")
    sequence.call(thread, "cudaStreamCreate", made)
    yield
    for _ in range(sequence.random.randrange(4, 12)):
        sequence.pick(
            lambda: sequence.risky(thread, "cudaMemset", (block, 0), 3, (size, size + 1000000000)),
            lambda: sequence.risky(thread, "cudaMemcpy", (block, 0), host, size,
                                   (1, 99)), lambda: sequence.risky(thread, "cudaMemcpyAsync", host, (block, 0), size,
                                                                    (2, 99), stream),
            lambda: sequence.call(thread, "cudaMallocAsync", ">nothing", 0, stream),
            lambda: sequence.call(thread, "cudaFreeHost", 0), lambda: sequence.call(thread, "cudaFree", 0),
            lambda: sequence.call(thread, "cudaFree", block.at(1)),
            lambda: sequence.call(thread, "cudaGraphInstantiate", ">exec", 0, 0),
            lambda: sequence.call(thread, "cudaGraphLaunch", 0, stream),
            lambda: sequence.call(thread, "cudaEventDestroy", 0), lambda: sequence.call(thread, "cudaStreamDestroy", 0),
            lambda: sequence.risky(thread, "cudaMallocHost", (">pinned", 0), (0, 64)),
            # Returns to the thread's own context, which other scenarios use.
            lambda: (sequence.risky(thread, "cudaSetDevice", (0, sequence.devices + 7)),
                     sequence.call(thread, "cuCtxSetCurrent", sequence.context_of(thread))),
            lambda: sequence.risky(thread, "cudaDeviceGetAttribute", ("?i32", 0), (1, 9999), 0),
            lambda: sequence.call(thread, "cudaPointerGetAttributes",
                                  structure("cudaPointerAttributes", {}, "type device devicePointer hostPointer"),
                                  sequence.pick(block, host)), lambda: sequence.call(thread, "cudaPeekAtLastError"),
            lambda: sequence.call(thread, "cudaGetLastError"),
        )()
        yield
    sequence.digest(thread, host, 0, size, [filled, sequence.call(thread, "cudaStreamSynchronize", stream)])
    sequence.call(thread, "cudaGetLastError")
    sequence.call(thread, "cudaFree", block)
    sequence.call(thread, "cudaStreamDestroy", stream)
    sequence.call(thread, "cudaGetLastError")


def fault(sequence, thread):
    """A kernel that traps, and the context's answers after it. It is the last scenario of a sequence, in a context
    without captures."""
    sequence.call(thread, "cuCtxCreate_v4", ">faulty", structure("CUctxCreateParams", {}), 0, 0)
    module = load(sequence, thread)
    trap = function_of(sequence, thread, module, "trap_always")
    stream = stream_of(sequence, thread)
    event, out = sequence.new("event")
    sequence.call(thread, "cuEventCreate", out, 0)
    sequence.call(thread, "cuLaunchKernel", trap, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
    sequence.call(thread, "cuCtxSynchronize")
    for name, *arguments in (("cuMemAlloc_v2", ">m", 64), ("cuStreamSynchronize", stream), ("cuCtxSynchronize",),
                             ("cuEventCreate", ">e", 0), ("cuStreamCreate", ">s", 0), ("cuMemFree_v2", 0),
                             ("cuModuleGetFunction", ">f", module, '"nothing"'), ("cuCtxGetCurrent", ">c"),
                             ("cuCtxGetDevice", "?i32"), ("cuDeviceGetCount", "?i32"), ("cuModuleUnload", module),
                             ("cuEventDestroy_v2", event), ("cuStreamDestroy_v2", stream)):
        if sequence.chance(0.6):
            sequence.call(thread, name, *arguments)
        yield
