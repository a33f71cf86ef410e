"""A failed context's answers to functions of the description, with objects from before the fault, and with NULL in the
place of one; and the answers to a thread without a current context."""

import re

import model
from grammar import Sequence, on_device, structure
from kernels import PTX
from scenarios import function_of, load, stream_of

CALLS = 48
ARRAY = {"Width": 16, "Height": 16, "Format": 32, "NumChannels": 1}
MIPMAPPED = {"Width": 64, "Height": 64, "Format": 1, "NumChannels": 1}
# These functions change the current context, end objects that others use, or act outside the context; and NVIDIA's
# driver crashes where a library ends after a fault.
LEFT_OUT = {
    "cuInit", "cuCtxCreate_v2", "cuCtxSetCurrent", "cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2", "cuCtxDetach",
    "cuCtxAttach", "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2", "cuGetExportTable",
    "cuThreadExchangeStreamCaptureMode", "cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuProfilerStart",
    "cuProfilerStop", "cuLibraryUnload",
}
# Functions for nodes of one kind; the node here is of another.
OF_ONE_KIND_OF_NODE = re.compile(r"cuGraph(Exec)?[A-Z]\w*Node(Get|Set|Copy)")
SCALARS = set(model.SCALARS) - {"f32", "f64", "pointer"}
NON_BLOCKING = 1
GLOBAL, RELAXED = 0, 2  # CUstreamCaptureMode
# The memory that frees get: a free in stream order ends it at a time that no other question may depend on.
FREED = "freed memory"
RESULTS = ("new", "given", "out", "inout")


def things(sequence, thread):
    """Makes one object of each cheap kind, all in one context; returns them by the description's name of the kind."""

    def made(kind, function, *arguments):
        thing, out = sequence.new(kind)
        sequence.call(thread, function, out, *arguments)
        return thing

    module, stream = load(sequence, thread), stream_of(sequence, thread)
    function = function_of(sequence, thread, module, "nothing")
    library = made("library", "cuLibraryLoadData", f'"{PTX}"', 0, 0, 0, 0, 0, 0)
    graph = made("graph", "cuGraphCreate", 0)
    node = made("node", "cuGraphAddEmptyNode", graph, 0, 0)
    memory, freed = block(sequence, thread), block(sequence, thread)
    return {
        "module": module,
        "stream": stream,
        "function": function,
        "func": function,
        "library": library,
        "kernel": made("kernel", "cuLibraryGetKernel", library, '"fill"'),
        "event": made("event", "cuEventCreate", 0),
        "graph": graph,
        "graph_node": node,
        "graph_exec": made("exec", "cuGraphInstantiateWithFlags", graph, 0),
        "array": made("array", "cuArrayCreate_v2", structure("CUDA_ARRAY_DESCRIPTOR", ARRAY)),
        "mipmapped_array": made("mipmapped", "cuMipmappedArrayCreate", structure("CUDA_ARRAY3D_DESCRIPTOR", MIPMAPPED),
                                3),
        "memory_pool": made("pool", "cuMemPoolCreate", structure("CUmemPoolProps", {"allocType": 1, **on_device(0)})),
        "deviceptr": memory,
        FREED: freed,
    }


def block(sequence, thread):
    memory, out = sequence.new("memory", 4096)
    sequence.call(thread, "cuMemAlloc_v2", out, 4096)
    return memory


def answers(function, of_kind, never):
    """Returns whether a sequence can have a call of the function, which must not end objects that others use."""
    return not (
        function.unsupported or function.same_as or function.via or function.needs == "nothing"
        or function.is_old_abi or function.name in LEFT_OUT or function.name in never
        or OF_ONE_KIND_OF_NODE.match(function.name)
    ) and all(can_be_given(p, of_kind) for p in function.params)


def can_be_given(p, of_kind):
    if p.direction in RESULTS:
        return p.kind not in ("struct", "bytes", "list", "by_attribute")
    if p.is_handle:
        return p.opt or p.kind in of_kind
    return p.kind in ("enum", "string", "deviceptr") or p.kind in SCALARS


def right(function, p, of_kind):
    if p.direction in RESULTS:
        return "?hide"
    if p.is_handle:
        return of_kind.get(p.kind, 0) if p.direction == "in" else 0
    if p.kind == "deviceptr":
        return of_kind[FREED if function.charges == "gives_back" else p.kind]
    return '"nothing"' if p.kind == "string" else 0 if p.kind == "device" else 1


def questions(api, of_kind, never):
    """Returns calls of each possible function: with right arguments, with NULL for each argument that can be NULL, and
    with NULL for all of these."""
    asked = []
    for function in api.functions:
        if not answers(function, of_kind, never):
            continue
        arguments = [right(function, p, of_kind) for p in function.params]
        able = [
            i for i, p in enumerate(function.params)
            if arguments[i] and (p.is_handle or p.is_pointer) and p.kind != "stream"
        ]
        every = [able] if len(able) > 1 else []
        asked += [(function.name, [0 if i in nulls else argument for i, argument in enumerate(arguments)])
                  for nulls in ([], *[[i] for i in able], *every)]
    return asked


def parts(api, never):
    """Returns the number of consecutive seeds that make every call once."""
    sequence = Sequence(0, 1)
    sequence.contexts = [sequence.fresh("context")]
    return -(-len(questions(api, things(sequence, 0), never)) // CALLS)


def asked_in_part(sequence, thread, api, of_kind, never):
    """Makes one part of the calls, another one for each of parts() seeds."""
    count = parts(api, never)
    part = questions(api, of_kind, never)[sequence.seed % count::count]
    sequence.random.shuffle(part)
    for name, arguments in part:
        sequence.call(thread, name, *arguments)
        yield


def contextless(sequence, thread, api, never):
    """Calls of a thread without a current context. `never`: functions that no sequence calls."""
    of_kind = things(sequence, thread)
    yield
    sequence.call(thread, "cuCtxSetCurrent", 0)
    yield from asked_in_part(sequence, thread, api, of_kind, never)
    sequence.call(thread, "cuCtxSetCurrent", sequence.contexts[0])


def faulted(sequence, thread, api, never):
    """Calls after a kernel that traps. `never`: functions that no sequence calls."""
    of_kind = things(sequence, thread)
    fault = trap(sequence, thread)
    yield
    fault()
    yield from asked_in_part(sequence, thread, api, of_kind, never)
    for function, kind in (("cuArrayDestroy", "array"), ("cuMipmappedArrayDestroy", "mipmapped_array"),
                           ("cuGraphExecDestroy", "graph_exec"), ("cuGraphDestroy", "graph"),
                           ("cuMemPoolDestroy", "memory_pool"), ("cuMemFree_v2", "deviceptr"),
                           ("cuEventDestroy_v2", "event"), ("cuStreamDestroy_v2", "stream"),
                           ("cuModuleUnload", "module")):
        if sequence.chance(0.7):
            sequence.call(thread, function, of_kind[kind])


def trap(sequence, thread):
    """Prepares a fault; returns a function that causes it."""
    module, (stream, out) = load(sequence, thread), sequence.new("stream")
    sequence.call(thread, "cuStreamCreate", out, NON_BLOCKING)
    function = function_of(sequence, thread, module, "trap_always")

    def happen():
        # NVIDIA's driver notices a fault at a wait, which a capture in another mode would refuse.
        sequence.call(thread, "cuThreadExchangeStreamCaptureMode", f"[u32 {RELAXED}]")
        sequence.call(thread, "cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
        sequence.call(thread, "cuStreamSynchronize", stream)
        sequence.call(thread, "cuThreadExchangeStreamCaptureMode", f"[u32 {GLOBAL}]")
        sequence.left_out |= {"cuLibraryUnload"}  # NVIDIA's driver crashes there

    return happen
