"""A seed's sequence: scenarios of all families on some threads and contexts, one call of one, then one of another."""

import sys
from pathlib import Path

import graphs
import scenarios
from grammar import Sequence, structure

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "protocol" / "codegen"))
import model  # noqa: E402

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
    "sharing": scenarios.sharing,
    "runtime": scenarios.runtime,
    "graphs": graphs.built,
    "graph_memory": graphs.with_memory,
    "capture": graphs.captured,
    "null": None,  # nulls() below: it wants the description
}
# The software device shares neither memory nor events with other processes.
NOT_BY_SOFTWARE = {"sharing"}
SCENARIOS_MAX = 6
THREADS_MAX = 8
CONTEXTS_MAX = 4
FAULT_CHANCE = 0.1

# Functions that nulls() leaves out: they are fine with what it gives them and change the rest of the sequence, or
# NVIDIA's driver crashes.
NOT_WITH_NULLS = {
    "cuInit", "cuCtxSetCurrent", "cuCtxPopCurrent_v2", "cuCtxPushCurrent_v2", "cuCtxDetach", "cuCtxAttach",
    "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRetain",
    "cuCtxResetPersistingL2Cache", "cuProfilerStart", "cuProfilerStop", "cuThreadExchangeStreamCaptureMode",
    "cuStreamBeginCapture", "cuStreamBeginCapture_v2", "cuGetExportTable", "cuCtxSynchronize",
}
# Handles of which NULL means something, so that a call with it is no mistake.
NULL_IS_A_HANDLE = {"stream", "context", "device"}


def nulls(sequence, thread, api):
    """Functions of the description with NULL for one handle or pointer: the kinds of all parameters say how a call
    looks."""
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
    # One handle, so that there is one mistake; nothing that has to be built.
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


def begin(sequence):
    """The driver, the contexts, and which of them is current on which thread."""
    sequence.call(0, "cuInit", 0)
    primary, out = sequence.new("context")
    sequence.call(0, "cuDevicePrimaryCtxRetain", out, 0)
    sequence.contexts = [primary]
    for _ in range(sequence.pick(0, 0, 0, 0, 1,
                                 CONTEXTS_MAX - 1)):  # few: NVIDIA's driver takes a second for each beside others
        context, out = sequence.new("context")
        sequence.call(0, "cuCtxCreate_v4", out, structure("CUctxCreateParams", {}), 0, 0)
        sequence.contexts.append(context)
    for thread in range(sequence.threads):
        sequence.call(thread, "cuCtxSetCurrent", sequence.context_of(thread))


def make(seed, api, families=None, devices=1, software=False, scenarios_max=SCENARIOS_MAX):
    """The lines of a seed's sequence. `software`: for the software device, without what it does not offer."""
    sequence = Sequence(seed, 1, devices)
    sequence.threads = sequence.pick(1, 1, 2, 4, THREADS_MAX)
    begin(sequence)
    names = families or [name for name in SCENARIOS if not (software and name in NOT_BY_SOFTWARE)]
    running = []
    for _ in range(sequence.random.randrange(1, scenarios_max + 1)):
        thread, name = sequence.random.randrange(sequence.threads), sequence.random.choice(names)
        running.append(nulls(sequence, thread, api) if name == "null" else SCENARIOS[name](sequence, thread))
    while running:
        scenario = sequence.random.choice(running)
        if next(scenario, "over") == "over":
            running.remove(scenario)
    if not families and sequence.chance(FAULT_CHANCE):
        for _ in scenarios.fault(sequence, 0):
            pass
    return sequence.lines
