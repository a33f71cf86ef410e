"""The parts of programs that check early (promises.py): memory of each kind, streams, events and functions of the
program, with each access ordered after conflicting ones (order.py)."""

from grammar import structure
from order import HOST, Access, Order
from scenarios import function_of, load

SIZES = (256, 256, 4096, 4096, 4096, 16384, 69888, 300032, 1 << 20)
PAUSES_US = (0, 0, 50, 300, 1000)  # of functions of the program
SPINS_NS = (1, 20000, 200000, 1000000)  # of kernels
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
EXTERNAL = 1      # CU_EVENT_RECORD_EXTERNAL
HOST_TYPE, DEVICE_TYPE = 1, 2


class Memory:
    """`kind`: device, pinned, registered, pageable, managed."""

    def __init__(self, thing, kind, size):
        self.thing, self.kind, self.size = thing, kind, size
        self.access = Access()
        self.shown = True  # not written since it was last shown
        self.pooled = False  # memory of a pool

    @property
    def on_host(self):
        return self.kind != "device"

    @property
    def on_device(self):
        return self.kind != "pageable"

    @property
    def host_alone(self):
        return self.kind in ("pageable", "pinned", "registered")

    @property
    def locked(self):
        """Page-locked memory of the host."""
        return self.kind in ("pinned", "registered")

    def at(self, offset):
        return self.thing.at(offset)


class Operation:
    """Work for a stream or a graph. `call`: the name and the arguments of the call for a stream, with "STREAM" in its
    place; `node`: the arguments after the dependencies of the call that adds it to a graph, None if it can only be
    captured."""

    def __init__(self, kind, call, node, reads=(), writes=(), event=None, task=None):
        self.kind, self.call, self.node = kind, call, node
        self.reads, self.writes, self.event, self.task = list(reads), list(writes), event, task
        self.added = None  # the node, if its parameters can be changed


class Event:

    """`clock`: the work that is done when the event is; None: it was never recorded. `inside`: only graphs record it.
    `waited`: a thread waits for it; it is not recorded again meanwhile."""

    def __init__(self, thing, inside=False):
        self.thing, self.inside = thing, inside
        self.clock, self.waited = None, False


class Task:
    """A function of the program; `wanted`: its last read value was not shown yet."""

    def __init__(self, thing):
        self.thing, self.access, self.wanted = thing, Access(), False


class Program:
    """`wide`: calls come from several threads, some of which wait beside the others."""

    def __init__(self, sequence, wide):
        self.sequence, self.random, self.wide = sequence, sequence.random, wide
        self.order = Order()
        self.memories, self.events, self.tasks = [], [], []
        self.waiting = {}  # waiting threads, with the clock that they get by the wait
        self.value = 0
        module = load(sequence, 0)
        self.fill, self.move, self.spin = (function_of(sequence, 0, module, name) for name in ("fill", "move", "spin"))
        self.null = self.order.add(0, legacy=True)

    # --- calls

    def thread(self):
        if not self.wide:
            return 0
        free = [thread for thread in range(self.sequence.threads) if thread not in self.waiting]
        return self.random.choice(free)

    def call(self, name, *arguments):
        return self.sequence.call(self.thread(), name, *arguments)

    def pick(self, *choices):
        return self.random.choice(choices)

    def chance(self, probability):
        return self.random.random() < probability

    def fresh_value(self):
        self.value += 1
        return self.value

    # --- things

    def add_stream(self):
        stream, out = self.sequence.new("stream")
        flags = self.pick(0, NON_BLOCKING)
        self.call("cuStreamCreate", out, flags)
        return self.order.add(stream, blocking=flags == 0)

    def add_event(self, inside=False):
        event, out = self.sequence.new("event")
        self.call("cuEventCreate", out, self.pick(0, 2))
        self.events.append(Event(event, inside))
        return self.events[-1]

    def add_memory(self, kind=None):
        kind = kind or self.pick("device", "device", "pinned", "pinned", "registered", "pageable", "managed")
        size = self.pick(*SIZES)
        thing, out = self.sequence.new("memory" if kind in ("device", "managed") else "host", size)
        memory = Memory(thing, kind, size)
        if kind == "device":
            stream = self.stream()
            if self.chance(0.3):
                self.call("cuMemAllocAsync", out, size, stream)
                memory.pooled = True
                memory.access.write(stream.number, self.order.give(stream))
            else:
                self.call("cuMemAlloc_v2", out, size)
            self.run(stream, self.fill_bytes(memory, whole=True))
        elif kind == "managed":
            self.call("cuMemAllocManaged", out, size, 1)
            self.run(self.stream(), self.fill_bytes(memory, whole=True))
        elif kind == "pinned":
            self.call("cuMemHostAlloc", out, size, self.pick(0, 1, 2, 3))
            self.write(memory)
        else:
            self.call("host", thing.name, size)
            if kind == "registered":
                self.call("cuMemHostRegister_v2", thing, size, self.pick(0, 1, 2, 3))
        self.memories.append(memory)
        return memory

    def stream(self):
        return self.random.choice(self.order.streams)

    def memory(self, wanted=lambda memory: True):
        able = [memory for memory in self.memories if wanted(memory)]
        return self.random.choice(able) if able else None

    # --- the host's own accesses

    def may_touch(self, memory, clock=None):
        """Whether the host may write it now; managed memory only while nothing runs."""
        idle = memory.kind != "managed" or self.order.idle()
        return memory.on_host and idle and memory.access.unused_before(clock or self.order.host)

    def write(self, memory):
        self.call("write", memory.thing.name, 0, memory.size, self.fresh_value())
        memory.access.write(HOST, 0)
        memory.shown = False

    def look(self):
        """Shows all memory that the host may read by now and that was not shown."""
        for memory in self.memories:
            idle = memory.kind != "managed" or self.order.idle()
            if not memory.shown and memory.on_host and idle and memory.access.written_before(self.order.host):
                self.call("digest", memory.thing.name, 0, memory.size)
                memory.shown = True
        for task in self.tasks:
            if task.wanted and task.access.written_before(self.order.host):
                self.call("ran", task.thing.name)
                task.wanted = False

    def after(self):
        """Called after a call that promised something: shows the promised memory, and reuses free memory at once."""
        self.look()
        for _ in range(2):
            memory = self.memory(self.may_touch)
            if memory and self.chance(0.4):
                self.write(memory)

    def learn(self, clock):
        self.order.learn(clock)
        self.after()

    # --- operations of streams and graphs

    def part(self, *sizes):
        """Returns an offset and a number of bytes, in whole words, that fit into all of the sizes."""
        least = min(sizes)
        if self.chance(0.6):
            return 0, least
        bytes_ = max(4, self.random.randrange(least) & ~3)
        return self.random.randrange(least - bytes_ + 1) & ~3, bytes_

    def fill_bytes(self, memory, whole=False):
        offset, bytes_ = (0, memory.size) if whole else self.part(memory.size)
        value = self.fresh_value() & 0xff
        node = ("cuGraphAddMemsetNode", structure("CUDA_MEMSET_NODE_PARAMS", {
            "dst": memory.at(offset), "pitch": 0, "value": value, "elementSize": 1, "width": bytes_, "height": 1}),
                self.sequence.contexts[0])
        return Operation("fill", ("cuMemsetD8Async", memory.at(offset), value, bytes_, "STREAM"), node,
                         writes=[memory])

    def launch(self, function, blocks, parameters, reads, writes):
        node = ("cuGraphAddKernelNode_v2", structure("CUDA_KERNEL_NODE_PARAMS", {
            "func": function, "gridDimX": blocks, "gridDimY": 1, "gridDimZ": 1, "blockDimX": 256, "blockDimY": 1,
            "blockDimZ": 1, "kernelParams": parameters}))
        return Operation("kernel", ("cuLaunchKernel", function, blocks, 1, 1, 256, 1, 1, 0, "STREAM", parameters, 0),
                         node, reads=reads, writes=writes)

    def kernel(self):
        target, source = self.memory(lambda m: m.on_device), self.memory(lambda m: m.on_device)
        if not target:
            return None
        words = min(target.size, source.size) // 4
        blocks = (words + 255) // 256
        if self.chance(0.4):
            return self.launch(self.fill, blocks, f"(8:{target.thing} 4:{self.fresh_value()} 4:{words})", [], [target])
        if target is source:
            return None
        return self.launch(self.move, blocks, f"(8:{target.thing} 8:{source.thing} 4:{words})", [source], [target])

    def spinning(self):
        nanoseconds = self.pick(*SPINS_NS)
        return self.launch(self.spin, 1, f"(8:{nanoseconds})", [], [])

    def copy(self, inside=False):
        target, source = self.memory(), self.memory()
        if not target or target is source or not (target.on_device or source.on_device):
            return None
        offset, bytes_ = self.part(target.size, source.size)
        of_host = {memory.size for memory in (target, source) if memory.host_alone}
        if inside and of_host:
            # Two copies of graphs whose ranges of host memory overlap in part are refused (docs/compatibility.md): each
            # memory is copied as a whole.
            offset, bytes_ = 0, max(of_host)
            if bytes_ > min(target.size, source.size) or len(of_host) > 1:
                return None
        to, from_ = target.at(offset), source.at(offset)
        fields = {"WidthInBytes": bytes_, "Height": 1, "Depth": 1}
        for end, memory, place in (("src", source, from_), ("dst", target, to)):
            host = memory.kind == "pageable" or memory.locked and self.chance(0.7)
            fields |= {f"{end}MemoryType": HOST_TYPE if host else DEVICE_TYPE,
                       f"{end}{'Host' if host else 'Device'}": place}
        node = ("cuGraphAddMemcpyNode", structure("CUDA_MEMCPY3D", fields), self.sequence.contexts[0])
        if source.on_host and target.kind == "device":
            call = ("cuMemcpyHtoDAsync_v2", to, from_, bytes_, "STREAM")
        elif source.kind == "device" and target.on_host:
            call = ("cuMemcpyDtoHAsync_v2", to, from_, bytes_, "STREAM")
        elif source.kind == "device" and target.kind == "device":
            call = ("cuMemcpyDtoDAsync_v2", to, from_, bytes_, "STREAM")
        else:
            call = ("cuMemcpyAsync", to, from_, bytes_, "STREAM")
        if self.chance(0.2):
            call = ("cuMemcpyAsync", to, from_, bytes_, "STREAM")
        return Operation("copy", call, node, reads=[source], writes=[target])

    def pitched(self, inside=False):
        """Returns a copy of rows with gaps between them."""
        target, source = self.memory(), self.memory()
        if not target or target is source or "device" not in (target.kind, source.kind):
            return None
        if inside and (target.host_alone or source.host_alone):
            return None
        rows = self.random.randrange(1, 9)
        pitch = min(target.size, source.size) // rows & ~3
        width = max(4, self.random.randrange(pitch) & ~3)
        fields = {"WidthInBytes": width, "Height": rows}
        deep = {"WidthInBytes": width, "Height": rows, "Depth": 1}
        for end, memory in (("src", source), ("dst", target)):
            host = memory.on_host and memory.kind != "managed"
            of_end = {f"{end}MemoryType": HOST_TYPE if host else DEVICE_TYPE,
                      f"{end}{'Host' if host else 'Device'}": memory.thing, f"{end}Pitch": pitch}
            fields |= of_end
            deep |= {**of_end, f"{end}Height": rows}
        node = ("cuGraphAddMemcpyNode", structure("CUDA_MEMCPY3D", deep), self.sequence.contexts[0])
        return Operation("pitched", ("cuMemcpy2DAsync_v2", structure("CUDA_MEMCPY2D", fields), "STREAM"), node,
                         reads=[source], writes=[target])

    def own_function(self):
        """Returns a function of the program that reads or writes memory in stream order."""
        memory = self.memory(lambda m: m.on_host and m.kind != "managed")
        if not memory:
            return None
        task = Task(self.sequence.fresh("task"))
        offset, bytes_ = self.part(memory.size)
        self.call("task", task.thing.name, memory.thing.name, offset, bytes_, self.fresh_value(),
                  self.pick(*PAUSES_US))
        writing = self.chance(0.5)
        self.tasks.append(task)
        name = "%write" if writing else "%read"
        node = ("cuGraphAddHostNode", structure("CUDA_HOST_NODE_PARAMS", {"fn": name, "userData": task.thing}))
        return Operation("function", ("cuLaunchHostFunc", "STREAM", name, task.thing), node,
                         reads=[] if writing else [memory], writes=[memory] if writing else [], task=task)

    def word(self):
        """Returns a write of a word by the stream itself."""
        # Memory of a pool holds no such words: NVIDIA's driver refuses them, or runs a part of the graph that has them
        # and refuses the launch (as measured on driver 580).
        memory = self.memory(lambda m: m.kind in ("device", "pinned") and not m.pooled)
        if not memory:
            return None
        at = memory.at(8 * self.random.randrange(memory.size // 8))
        wide = self.chance(0.3)
        value = self.fresh_value()
        fields = {"operation": 5 if wide else 2, "writeValue.address": at, "writeValue.value64": value}
        node = ("cuGraphAddBatchMemOpNode", structure("CUDA_BATCH_MEM_OP_NODE_PARAMS", {
            "ctx": self.sequence.contexts[0], "count": 1,
            "paramArray": structure("CUstreamBatchMemOpParams", fields)}))
        name = "cuStreamWriteValue64_v2" if wide else "cuStreamWriteValue32_v2"
        return Operation("word", (name, "STREAM", at, value, 0), node, writes=[memory])

    def record(self, inside=False):
        if inside:
            event = self.add_event(inside=True)
        else:
            able = [event for event in self.events if not event.inside and not event.waited]
            if not able:
                return None
            event = self.random.choice(able)
        call = ("cuEventRecordWithFlags", event.thing, "STREAM", EXTERNAL) if inside else \
            ("cuEventRecord", event.thing, "STREAM")
        return Operation("record", call, ("cuGraphAddEventRecordNode", event.thing), event=event)

    def operation(self, inside=False):
        """Returns some operation; None: the chosen kind is not possible."""
        copy = (lambda: self.copy(inside))
        return self.pick(copy, copy, copy, self.kernel, self.kernel, self.own_function, lambda: self.pitched(inside),
                         self.word, lambda: self.record(inside), self.spinning, self.filled)()

    def filled(self):
        memory = self.memory(lambda m: m.kind in ("device", "managed"))
        return self.fill_bytes(memory) if memory else None

    def fits(self, operation, clock):
        return all(memory.access.written_before(clock) for memory in operation.reads) and all(
            memory.access.unused_before(clock) for memory in operation.writes) and (
                operation.task is None or operation.task.access.unused_before(clock))

    def do(self, operation, stream, clock):
        """Notes the operation's accesses in the stream."""
        number = self.order.give(stream, clock)
        for memory in operation.reads:
            memory.access.read(stream.number, number)
        for memory in operation.writes:
            memory.access.write(stream.number, number)
            memory.shown = False
        if operation.event:
            operation.event.clock = dict(stream.clock)
        if operation.task:
            operation.task.access.write(stream.number, number)
            operation.task.wanted = True

    def is_read_early(self, stream, operation):
        """NVIDIA's driver reads up to 16 KiB of pinned memory in the very call, if the stream has no earlier work of
        its own: work of the NULL stream that comes before may not have written it yet (as measured on driver 580)."""
        if operation.kind not in ("copy", "pitched"):
            return False
        clock = self.order.clock_for(stream, implicitly=False)
        return any(memory.locked and not memory.access.written_before(clock) for memory in operation.reads)

    def run(self, stream, operation):
        """Gives the operation to the stream, if all conflicting accesses are ordered before. Returns whether it did."""
        clock = self.order.clock_for(stream, operation.kind != "record")
        pageable_source = [memory for memory in operation.reads
                           if memory.kind == "pageable" and operation.kind in ("copy", "pitched")]
        at_once = pageable_source and not all(memory.access.written_before(self.order.host)
                                              for memory in pageable_source)
        if at_once or self.is_read_early(stream, operation) or not self.fits(operation, clock):
            return False
        before = {memory: dict(memory.access.readers) for memory in pageable_source}
        self.call(operation.call[0], *[stream if word == "STREAM" else word for word in operation.call[1:]])
        self.do(operation, stream, clock)
        if operation.kind not in ("copy", "pitched"):
            return True
        for memory, readers in before.items():  # the memory was read when the call returned
            memory.access.readers = readers
            if self.may_touch(memory) and self.chance(0.7):
                self.write(memory)
        # A copy into pageable memory is done when the call returns. CUDA says the same of copies within host memory
        # (CUDA Driver API, "API synchronization behavior"), where the software device returns earlier.
        if operation.writes[0].kind == "pageable":
            self.learn(stream.clock)
        return True
