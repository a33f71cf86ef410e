"""The parts of sequences: named objects of a program, and choices between right, extreme and wrong arguments. See
README.md."""

import random

WAIT_NOR = 3  # CU_STREAM_WAIT_VALUE_NOR; with 0: any word but all ones
PAGE = 2 << 20  # the unit in which physical memory is created and mapped
KIND_PREFIX = {"memory": "m", "host": "h"}

# Every sequence leaves these out, because NVIDIA's driver crashes, hangs or gives varying answers, so that no
# comparison is possible:
# - handles of graphs, nodes, streams, events, modules, arrays and texture objects after their end: the driver follows
#   the pointer. Sequences do use addresses and physical memory after their end, which the driver looks up. Contexts
#   that have ended crash later calls.
# - NULL where the driver reads or writes without a check: cuGetErrorName, cuMemPoolSetAttribute, the structures of
#   cuMemcpy3DPeer, the values of streams' attributes, the operations of cuStreamBatchMemOp, maps of tensors, modes.
# - references to user objects that are not the caller's.
# - invented handles other than NULL, for the same reason, and CUmemLocation types that no version knows.
# - host addresses outside the program's memory: the driver reads them.
# - lengths of 0 for the name of a device, at which the driver crashes.
# - offsets of cuParamSetv, cuParamSeti and cuParamSetf that are negative: the driver writes there.
# - waits for a value that is never written, and kernels that do not end.
# - device attributes about memory of the host that a server's device cannot reach.
# - unwritten memory, memory that two streams write without an order, times, identities (cuCtxGetId, buffer ids), free
#   memory: they differ from run to run.
# - the order across a disabled node of a graph, on the same memory, which driver 580 does not always keep, natively
#   either: a memset behind one ran before the copy ahead of it (seed 61950 of an earlier grammar), or before the
#   kernel (62984).
# - cuMemGetInfo and the marks of pools while other scenarios allocate: the driver's granularity is its own.


class Thing:
    """A handle, or memory, that a line of the sequence defines."""

    def __init__(self, name, kind, size=0, context=None):
        self.name, self.kind, self.size, self.context = name, kind, size, context
        self.needs = []  # lines that must have succeeded for its content to be defined

    def __str__(self):
        return "$" + self.name

    def at(self, offset):
        return f"${self.name}+{offset}" if offset else str(self)


class Sequence:
    """The lines so far. One generator of random numbers makes all choices, so a seed determines the sequence."""

    def __init__(self, seed, threads, devices=1, left_out=()):
        self.seed, self.random = seed, random.Random(seed)
        self.lines, self.threads, self.devices = [], threads, devices
        self.counter = 0
        # Functions that are not called, such as those that the device does not offer.
        self.left_out = set(left_out)
        self.contexts = []                     # live ones; the first is device 0's primary one
        self.shared = {}                       # by kind: objects that scenarios leave for others

    def context_of(self, thread):
        return self.contexts[thread % len(self.contexts)]

    def call(self, thread, name, *arguments):
        """Adds a line and returns its number; None for a function that is left out."""
        if name.lstrip("~") in self.left_out:
            return None
        self.lines.append(" ".join([str(len(self.lines)), f"t{thread}", name, *map(str, arguments)]))
        return len(self.lines) - 1

    def digest(self, thread, host, offset, size, needs):
        """Shows the contents of host memory, if the lines that it depends on succeeded."""
        self.call(thread, "digest", host.name, offset, size, *needs)

    def fresh(self, kind, size=0, context=None):
        self.counter += 1
        return Thing(f"{KIND_PREFIX.get(kind, kind)}{self.counter}", kind, size, context)

    def new(self, kind, size=0):
        """Returns an object and the argument that defines it."""
        thing = self.fresh(kind, size)
        return thing, f">{thing.name}" + (f"@{size}" if size else "")

    def host(self, thread, size):
        thing = self.fresh("host", size)
        self.call(thread, "host", thing.name, size)
        return thing

    def chance(self, probability):
        return self.random.random() < probability

    def pick(self, *choices):
        return self.random.choice(choices)

    def edge(self, right, *wrong, probability=0.15):
        """Returns the right argument; at times a wrong one."""
        return self.random.choice(wrong) if wrong and self.chance(probability) else right

    def one_wrong(self, arguments, probability=0.25):
        """Returns one choice of each (right, wrong...) tuple, with at most one wrong: CUDA does not define which of two
        errors comes first."""
        chosen = [row[0] if isinstance(row, tuple) else row for row in arguments]
        able = [i for i, row in enumerate(arguments) if isinstance(row, tuple) and len(row) > 1]
        if able and self.chance(probability):
            i = self.random.choice(able)
            chosen[i] = self.random.choice(arguments[i][1:])
        return chosen

    def risky(self, thread, name, *arguments, probability=0.25):
        """Makes the call, at times with one wrong argument. Returns whether all arguments were right."""
        chosen = self.one_wrong(arguments, probability)
        self.call(thread, name, *chosen)
        return chosen == [row[0] if isinstance(row, tuple) else row for row in arguments]


def structure(kind, fields, after=""):
    """Returns a structure as an argument; `after`: the fields that the log shows after the call."""
    inner = " ".join(f"{name}={value}" for name, value in fields.items())
    return "{" + kind + (f" {inner}" if inner else "") + (f" | {after}" if after else "") + "}"


def on_device(device):
    return {"location.type": 1, "location.id": device}
