"""A seed's sequence: interleaved scenarios of all families on some threads and contexts."""

import sys
from pathlib import Path

import copies
import graphs
import nodes
import promises
import questions
import scenarios
import sharing
from grammar import Sequence, structure

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "protocol" / "codegen"))
import model  # noqa: E402
import faulted  # noqa: E402

SCENARIOS = {
    "memory": scenarios.memory,
    "virtual_memory": scenarios.virtual_memory,
    "pools": scenarios.pools,
    "streams": scenarios.streams,
    "modules": scenarios.modules,
    "libraries": scenarios.libraries,
    "textures": scenarios.textures,
    "host_memory": scenarios.host_memory,
    "managed": scenarios.managed,
    "contexts": scenarios.contexts,
    "devices": scenarios.devices,
    "callbacks": scenarios.callbacks,
    "memory_operations": scenarios.memory_operations,
    "sharing": sharing.sharing,
    "descriptors": sharing.descriptors,
    "reset": scenarios.reset,
    "logs": questions.logs,
    "runtime": scenarios.runtime,
    "device_questions": questions.device_questions,
    "context_questions": questions.context_questions,
    "stream_questions": questions.stream_questions,
    "pool_questions": questions.pool_questions,
    "pointer_questions": questions.pointer_questions,
    "kernel_questions": questions.kernel_questions,
    "green_contexts": questions.green_contexts,
    "tensor_maps": questions.tensor_maps,
    "copies": copies.copies,
    "arrays": copies.arrays,
    "nodes": nodes.nodes,
    "graphs": graphs.built,
    "graph_memory": graphs.with_memory,
    "capture": graphs.captured,
    "null": lambda *arguments: nulls(*arguments),
    "faulted": lambda sequence, thread, api: faulted.faulted(sequence, thread, api, NEVER_CALLED),
    "contextless": lambda sequence, thread, api: faulted.contextless(sequence, thread, api, NEVER_CALLED),
}
OF_DESCRIPTION = {"null", "faulted", "contextless"}  # scenarios that get the description
# The software device shares neither events nor pools with other processes, and keeps no log.
NOT_BY_SOFTWARE = {"sharing", "logs"}
# Functions that the software device does not offer and the client sends without waiting, so that the error comes later;
# and functions that use their results.
LEFT_OUT_BY_SOFTWARE = {
    "cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", "cuMemcpy3DBatchAsync", "cuMemcpy3DBatchAsync_v2",
    "cuUserObjectCreate", "cuGraphRetainUserObject", "cuGraphReleaseUserObject", "cuCtxAttach", "cuCtxDetach",
    "cuFuncSetBlockShape", "cuFuncSetSharedSize", "cuParamSetSize", "cuParamSeti", "cuParamSetf", "cuParamSetv",
    "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync",
}
# Functions that no sequence calls, with the reasons.
NEVER_CALLED = {
    "cuCtxPushCurrent": "of CUDA 3, whose contexts belonged to one thread: what the next cuCtxPopCurrent gives varies",
    "cuCtxPopCurrent": "of CUDA 3, as cuCtxPushCurrent",
    "cuCtxCreate": "of CUDA 3, before cuCtxCreate_v2: NVIDIA's driver finds no memory for it",
    "cuMemPoolImportPointer": "the pointer is another process's",
    "cuMulticastCreate": "wants several GPUs",
    "cuMulticastBindMem": "wants several GPUs",
    "cuMulticastBindAddr": "wants several GPUs",
    "cuMulticastGetGranularity": "wants several GPUs",
}
# Scenarios that make or end contexts.
OF_CONTEXTS = {"contexts", "context_questions", "green_contexts", "reset", "faulted"}
# Scenarios that run alone: they end the others' objects.
ALONE = {"reset", "faulted"}
# Scenarios that run only if --families names them.
ONLY_NAMED = {"contextless"}
ALONE_CHANCE = 0.05
SCENARIOS_MAX = 6
THREADS_MAX = 8
CONTEXTS_MAX = 4
FAULT_CHANCE = 0.1
STEPS_BEFORE_FAULT_MAX = 60
OLDER_CHANCE = 0.1
# First versions that are not the second by another name, but take the same arguments.
FIRST_VERSIONS = ("cuStreamWaitValue32", "cuStreamWaitValue64", "cuStreamWriteValue32", "cuStreamWriteValue64",
                  "cuStreamBatchMemOp", "cuMemHostRegister")

# Functions that nulls() leaves out: they accept NULL and change the rest of the sequence, or NVIDIA's driver crashes,
# or scenarios.staged_launch() calls them with NULL.
NOT_WITH_NULLS = {
    "cuInit", "cuCtxSetCurrent", "cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2", "cuCtxDetach", "cuCtxAttach",
    "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRetain",
    "cuFuncSetBlockShape", "cuFuncSetSharedSize", "cuParamSetSize", "cuParamSeti", "cuParamSetf", "cuParamSetv",
    "cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync", "cuCtxResetPersistingL2Cache", "cuProfilerStart",
    "cuProfilerStop", "cuThreadExchangeStreamCaptureMode",
    "cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuGetExportTable", "cuCtxSynchronize",
}
# Handles for which NULL is valid.
NULL_IS_A_HANDLE = {"stream", "context", "device"}


def nulls(sequence, thread, api):
    """Calls functions of the description with NULL for one handle or pointer; the parameters' kinds give the other
    arguments."""
    able = [f for f in api.functions if has_nulls(f)]
    for function in sequence.random.sample(able, 6):
        places = [
            i for i, p in enumerate(function.params)
            if p.is_handle and p.direction in ("in", "destroy") and p.kind not in NULL_IS_A_HANDLE
        ]
        sequence.call(
            thread, function.name, *[
                0 if i in places or p.direction == "in" and p.is_handle else plain(sequence, p)
                for i, p in enumerate(function.params)
            ])
        yield


def has_nulls(function):
    if (
        function.unsupported
        or function.same_as
        or function.via
        or function.needs == "nothing"
        or function.name in NOT_WITH_NULLS
        or function.is_old_abi
    ):
        return False
    handles = [
        p for p in function.params
        if p.is_handle and p.direction in ("in", "destroy") and not p.opt and p.kind not in NULL_IS_A_HANDLE
    ]
    # One handle, so that there is one mistake; no argument that has to be built.
    return len(handles) == 1 and all(p.is_handle and p.direction in ("in", "destroy") or buildable(p)
                                     for p in function.params)


def buildable(p):
    if p.direction in ("new", "given", "out", "inout"):
        return p.kind not in ("struct", "bytes", "list", "by_attribute")
    return p.kind in model.SCALARS and p.kind not in ("f32", "f64", "deviceptr", "pointer") or p.kind in ("enum",
                                                                                                          "string")


def plain(sequence, p):
    if p.direction in ("new", "given", "out", "inout"):
        return "?hide"
    return '"name"' if p.kind == "string" else 0 if p.kind == "device" else 1


def begin(sequence, alone):
    """Initialises the driver, makes the contexts, and sets each thread's current one. `alone`: the primary context
    only."""
    sequence.call(0, "cuInit", 0)
    primary, out = sequence.new("context")
    sequence.call(0, "cuDevicePrimaryCtxRetain", out, 0)
    sequence.contexts = [primary]
    # Few contexts: NVIDIA's driver takes a second for each beside others.
    for _ in range(0 if alone else sequence.pick(0, 0, 0, 0, 1, CONTEXTS_MAX - 1)):
        context, out = sequence.new("context")
        sequence.call(0, "cuCtxCreate_v4", out, structure("CUctxCreateParams", {}), 0, 0)
        sequence.contexts.append(context)
    for thread in range(sequence.threads):
        sequence.call(thread, "cuCtxSetCurrent", sequence.context_of(thread))


def make_early(seed, families=None, devices=1, software=False):
    """Returns the lines of a seed's program that checks early (promises.py)."""
    sequence = Sequence(seed, 1, devices, LEFT_OUT_BY_SOFTWARE if software else ())
    sequence.software = software
    name = sequence.random.choice(families or list(promises.SCENARIOS))
    sequence.threads = sequence.pick(2, 4, THREADS_MAX) if name in promises.OF_THREADS else 1
    begin(sequence, alone=True)
    for _ in promises.SCENARIOS[name](sequence, 0):
        pass
    return sequence.lines


def make(seed, api, families=None, devices=1, software=False, scenarios_max=SCENARIOS_MAX, contexts_chance=1,
         fault_within=False):
    """Returns the lines of a seed's sequence. `software`: for the software device, without functions that it does not
    offer. `contexts_chance`: the probability that the sequence may make and end contexts and have kernels that fault,
    which requires new contexts and processes; other sequences have all other scenarios. `fault_within`: a kernel traps
    in the midst of the sequence."""
    sequence, older = Sequence(seed, 1, devices, LEFT_OUT_BY_SOFTWARE if software else ()), older_names(api)
    sequence.threads = sequence.pick(1, 1, 2, 4, THREADS_MAX)
    light = contexts_chance < 1 and not sequence.chance(contexts_chance)
    begin(sequence, light)
    names = families or [name for name in SCENARIOS
                         if name not in ONLY_NAMED and not (software and name in NOT_BY_SOFTWARE)]
    if not families:
        names = [name for name in names if not (light and name in OF_CONTEXTS)]
        alone = not light and sequence.chance(ALONE_CHANCE)
        names = [name for name in names if (name in ALONE) == alone]
        scenarios_max = 1 if alone else scenarios_max
    trap = faulted.trap(sequence, sequence.random.randrange(sequence.threads)) if fault_within else None
    steps = sequence.random.randrange(1, STEPS_BEFORE_FAULT_MAX) if fault_within else None
    running = []
    for _ in range(sequence.random.randrange(1, scenarios_max + 1)):
        thread, name = sequence.random.randrange(sequence.threads), sequence.random.choice(names)
        running.append(SCENARIOS[name](sequence, thread, *([api] if name in OF_DESCRIPTION else [])))
    while running:
        scenario = sequence.random.choice(running)
        if next(scenario, "over") == "over":
            running.remove(scenario)
        if trap and (steps == 0 or not running):
            trap()
            trap = None
        steps = steps and steps - 1
    if not families and not light and sequence.chance(FAULT_CHANCE):
        for _ in scenarios.fault(sequence, 0):
            pass
    return [older_name(line, older, sequence.random) for line in sequence.lines]


def older_names(api):
    """Returns a function's older names, by its name."""
    older = {f"{name}_v2": [name] for name in FIRST_VERSIONS}
    for function in api.functions:
        left_out = function.unsupported or function.is_old_abi or function.name in NEVER_CALLED
        if function.same_as and not left_out:
            older.setdefault(function.same_as, []).append(function.name)
    return older


def older_name(line, older, random):
    """Returns the line, at times with an older name of the function."""
    number, thread, name, *arguments = line.split(" ", 3)
    if name not in older or random.random() > OLDER_CHANCE:
        return line
    return " ".join([number, thread, random.choice(older[name]), *arguments])
