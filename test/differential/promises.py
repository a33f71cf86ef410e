"""Programs that check early: right after each call whose return promises something (a finished copy, a synchronise, a
query that returns success, a free, an end) they show all promised memory, while other work is still in flight.

Each access is ordered after conflicting ones, so each shown value is the same on any device. A slow device (`--slow`)
reveals a promise that is too early.
"""

from grammar import on_device, structure
from graphs import node_list
from launches import TRIES_MAX, Launches
from order import joined
from programs import DEVICE_TYPE, HOST_TYPE, NON_BLOCKING

STREAMS_MAX, EVENTS_MAX, MEMORIES_MAX, GRAPHS_MAX = 4, 5, 9, 2
STEPS_MIN, STEPS_MAX = 15, 60
WAIT_GEQ = 0  # CU_STREAM_WAIT_VALUE_GEQ


class Steps(Launches):
    """The steps of a program. Each returns whether it did something."""

    def step_work(self):
        operation = self.operation()
        return bool(operation) and self.run(self.stream(), operation)

    def step_blocking_copy(self):
        """In the NULL stream."""
        operation = self.copy()
        if not operation or not self.fits(operation, self.order.clock_for(self.null)):
            return False
        (source,), (target,) = operation.reads, operation.writes
        if source.kind == "pageable" and not source.access.written_before(self.order.host):
            return False
        if target.kind == "pageable" and not target.access.unused_before(self.order.clock_for(self.null)):
            return False
        name, to, from_, bytes_ = operation.call[:4]
        readers = dict(source.access.readers)
        self.call(name.replace("Async", ""), to, from_, bytes_)
        self.do(operation, self.null, self.order.clock_for(self.null))
        if not source.host_alone and not target.host_alone:
            return True  # within the device: asynchronous to the host
        if target.host_alone:
            self.learn(self.null.clock)
            return True
        # Copies to the device may return once the source is read (docs/differences.md), and later work runs after them.
        # With NVIDIA's driver, work in non-blocking streams runs after the copy only once the copy is done.
        source.access.readers = readers
        if self.sequence.software:
            self.order.put_behind(self.null.clock)
        self.after()
        return True

    def step_wait_event(self):
        event = self.random.choice(self.events) if self.events else None
        if not event or event.clock is None:
            return False
        stream = self.stream()
        self.call("cuStreamWaitEvent", stream, event.thing, 0)
        self.order.give(stream, joined(self.order.clock_for(stream, implicitly=False), event.clock))
        return True

    def beside(self, name, thing, clock, event=None):
        """A thread waits while others go on."""
        thread = self.thread()
        self.sequence.call(f"{thread}&", name, thing)
        self.waiting[thread] = (clock, event)

    def step_join(self):
        if not self.waiting:
            return False
        thread = self.random.choice(list(self.waiting))
        clock, event = self.waiting.pop(thread)
        if event:
            event.waited = False
        self.sequence.call(thread, "join")
        self.learn(clock)
        return True

    def room_to_wait(self):
        return self.wide and len(self.waiting) + 1 < self.sequence.threads and self.chance(0.5)

    def step_synchronize(self):
        stream = self.stream()
        if self.room_to_wait():
            self.beside("cuStreamSynchronize", stream, stream.clock)
            return True
        name = self.pick("cuStreamSynchronize", "@cuStreamQuery")
        waits_for_others = stream.legacy and name == "cuStreamSynchronize"
        self.call(name, stream)
        self.learn(self.order.clock_for(stream) if waits_for_others else stream.clock)
        return True

    def step_event(self):
        event = self.random.choice(self.events) if self.events else None
        if not event or event.clock is None:
            return False
        if self.room_to_wait() and not event.waited:
            event.waited = True
            self.beside("cuEventSynchronize", event.thing, event.clock, event)
            return True
        self.call(self.pick("cuEventSynchronize", "@cuEventQuery"), event.thing)
        self.learn(event.clock)
        return True

    def step_everything(self):
        if not self.chance(0.2):
            return False
        self.call("cuCtxSynchronize")
        self.learn(self.order.everything())
        return True

    def step_launch(self):
        if len(self.graphs) < GRAPHS_MAX and self.chance(0.4):
            self.add_graph()
        if not self.graphs:
            return False
        graph = self.random.choice(self.graphs)
        stream = self.stream()
        launched = self.launch_graph(graph, stream)
        if self.chance(0.25):
            self.update_graph(graph)
        elif self.chance(0.2):
            self.graphs.remove(graph)
            self.call("cuGraphExecDestroy", graph.exec_)
            if graph.graph:
                self.call("cuGraphDestroy", graph.graph)
            launched = True
        if launched and self.chance(0.4):
            self.call("cuStreamSynchronize", stream)
            self.learn(self.order.clock_for(stream) if stream.legacy else stream.clock)
        return launched

    def used_by_graphs(self, memory):
        return any(memory in operation.reads or memory in operation.writes
                   for graph in self.graphs for operation in graph.operations)

    def step_free(self):
        """Frees or unregisters memory while work on it may be in flight: each of these calls waits for it."""
        memory = self.memory(lambda m: not self.used_by_graphs(m)) if self.chance(0.5) else None
        if not memory or memory.kind == "pageable":
            return False
        # cuMemFree takes memory of a pool to be out of use, and waits for nothing (CUDA C++ Programming Guide, "Stream
        # Ordered Memory Allocator").
        out_of_use = memory.access.unused_before(self.order.host)
        stream = self.stream()
        clock = self.order.clock_for(stream)
        if memory.pooled and not out_of_use and not memory.access.unused_before(clock):
            return False
        self.memories.remove(memory)
        if memory.pooled:
            if out_of_use and self.chance(0.5):
                self.call("cuMemFree_v2", memory.thing)
            else:
                self.call("cuMemFreeAsync", memory.thing, stream)
                self.order.give(stream, clock)
        elif memory.kind in ("device", "managed"):
            if memory.kind == "device" and memory.access.unused_before(clock) and self.chance(0.4):
                self.call("cuMemFreeAsync", memory.thing, stream)
                self.order.give(stream, clock)
            else:
                self.call("cuMemFree_v2", memory.thing)
                self.learn(self.order.everything())
        elif memory.kind == "pinned":
            self.call("cuMemFreeHost", memory.thing)
            self.learn(self.order.everything())
        else:
            self.call("cuMemHostUnregister", memory.thing)
            memory.kind = "pageable"
            self.memories.append(memory)
            self.learn(self.order.everything())
        return True

    def step_end(self):
        """Ends an event or a stream in flight, if no thread may be waiting for it."""
        if self.waiting:
            return False
        if self.chance(0.5) and len(self.events) > 1:
            event = self.random.choice(self.events)
            if any(operation.event is event for graph in self.graphs for operation in graph.operations):
                return False
            self.events.remove(event)
            self.call("cuEventDestroy_v2", event.thing)
            return True
        stream = self.stream()
        if stream.legacy or len(self.order.streams) < 3:
            return False
        self.order.end(stream)
        self.call("cuStreamDestroy_v2", stream)
        return True

    def step_more(self):
        if self.chance(0.3) and len(self.order.streams) <= STREAMS_MAX:
            self.add_stream()
        elif self.chance(0.3) and len(self.events) < EVENTS_MAX:
            self.add_event()
        elif len(self.memories) < MEMORIES_MAX:
            self.add_memory()
        return True

    def step_held(self):
        """A stream waits for a word that another one writes later: meanwhile it gets work, and allowed accesses go
        on."""
        holding, made = self.sequence.new("stream")
        releasing, also_made = self.sequence.new("stream")
        word, out = self.sequence.new("memory", 4)
        self.call("cuStreamCreate", made, NON_BLOCKING)
        self.call("cuStreamCreate", also_made, NON_BLOCKING)
        self.call("cuMemAlloc_v2", out, 4)
        # The first launch with pinned memory waits for copies in flight into it (docs/differences.md), so the device
        # gets all of it before.
        for memory in self.memories:
            if memory.locked:
                self.call("cuMemHostGetDevicePointer_v2", ">known", memory.thing, 0)
        release = self.order.add(releasing, blocking=False)
        self.call("cuMemsetD32Async", word, 0, 1, releasing)
        self.call("cuStreamSynchronize", releasing)
        held = self.order.add(holding, blocking=False)
        self.call("cuStreamWaitValue32_v2", holding, word, 1, WAIT_GEQ)
        for _ in range(self.random.randrange(1, 5)):
            operation = self.operation()
            if not operation or any(memory.kind == "pageable" for memory in operation.reads + operation.writes):
                continue
            # Host functions of a held stream would block those of others, and a host copy blocks its caller.
            on_host = operation.reads + operation.writes and all(
                memory.host_alone for memory in operation.reads + operation.writes)
            if operation.kind in ("copy", "kernel", "fill", "pitched") and not on_host:
                self.run(held, operation)
        memory = self.memory(self.may_touch)
        if memory:
            self.write(memory)
        self.call("cuStreamWriteValue32_v2", releasing, word, 1, 0)
        for stream in (held, release):
            self.call("cuStreamSynchronize", stream)
            self.learn(stream.clock)
            self.order.end(stream)
            self.call("cuStreamDestroy_v2", stream)
        self.call("cuMemFree_v2", word)
        self.learn(self.order.everything())
        return True

    def finish(self):
        while self.waiting:
            self.step_join()
        self.call("cuCtxSynchronize")
        self.learn(self.order.everything())
        for memory in self.memories:
            if memory.kind in ("device", "managed"):
                host = self.sequence.host(self.thread(), memory.size)
                copied = self.call("cuMemcpyDtoH_v2", host, memory.thing, memory.size)
                self.sequence.digest(self.thread(), host, 0, memory.size, [copied])
        for graph in self.graphs:
            self.call("cuGraphExecDestroy", graph.exec_)
            if graph.graph:
                self.call("cuGraphDestroy", graph.graph)


def program(sequence, thread, steps, **options):
    """Yields a whole program; `steps`: names of steps with their weights."""
    made = Steps(sequence, **options)
    for _ in range(2):
        made.add_stream()
        made.add_event()
    for kind in ("device", "device", "pinned", "pageable", "registered"):
        made.add_memory(kind)
    yield
    names, weights = zip(*steps.items())
    for _ in range(sequence.random.randrange(STEPS_MIN, STEPS_MAX)):
        for _ in range(TRIES_MAX):
            if getattr(made, "step_" + sequence.random.choices(names, weights)[0])():
                break
        yield
    made.finish()


USUAL = {"work": 8, "blocking_copy": 2, "wait_event": 2, "synchronize": 2, "event": 2, "everything": 1, "more": 1,
         "free": 1, "end": 1}


def straight(sequence, thread):
    """Streams, events, copies, kernels, functions of the program, words."""
    yield from program(sequence, thread, USUAL, wide=False)


def launched(sequence, thread):
    """Graphs made in every way, launched, changed and ended in flight."""
    yield from program(sequence, thread, {**USUAL, "launch": 8}, wide=False)


def held(sequence, thread):
    """Streams that wait for words which others write."""
    yield from program(sequence, thread, {**USUAL, "held": 2}, wide=False)


def freed(sequence, thread):
    """Memory of every kind, freed, registered and unregistered while work on it is in flight."""
    yield from program(sequence, thread, {**USUAL, "free": 5, "more": 5}, wide=False)


def threads(sequence, thread):
    """Calls from several threads, some of which wait while others go on."""
    yield from program(sequence, thread, {**USUAL, "synchronize": 4, "event": 4, "join": 4, "launch": 3}, wide=True)


def retained(sequence, thread):
    """The primary context, released by one thread while another retains it, and used by its holders."""
    count = sequence.threads
    for _ in range(sequence.random.randrange(2, 8)):
        taking, giving = (sequence.random.sample(range(count), 2) if count > 1 else (0, 0))
        context, out = sequence.new("context")
        pair = [lambda: sequence.call(f"{taking}&", "cuDevicePrimaryCtxRetain", out, 0),
                lambda: sequence.call(f"{giving}&", "cuDevicePrimaryCtxRelease_v2", 0)]
        if count == 1:
            pair = [lambda: sequence.call(taking, "cuDevicePrimaryCtxRetain", out, 0),
                    lambda: sequence.call(giving, "cuDevicePrimaryCtxRelease_v2", 0)]
        sequence.random.shuffle(pair)
        for one in pair:
            one()
        for number in {taking, giving}:
            sequence.call(number, "join")
        for number in range(count):
            sequence.call(number, "cuCtxSetCurrent", context)
        block, out = sequence.new("memory", 4096)
        sequence.call(taking, "cuMemAlloc_v2", out, 4096)
        sequence.call(taking, "cuMemsetD8_v2", block, sequence.random.randrange(256), 4096)
        host = sequence.host(taking, 4096)
        copied = sequence.call(taking, "cuMemcpyDtoH_v2", host, block, 4096)
        sequence.digest(taking, host, 0, 4096, [copied])
        sequence.call(taking, "cuDevicePrimaryCtxGetState", 0, "?u32", "?i32")
        sequence.call(taking, "cuMemFree_v2", block)
        yield


def graph_memory(sequence, thread):
    """Memory that a graph allocates, fills, copies out and frees, launch after launch, shown after each."""
    stream, out = sequence.new("stream")
    sequence.call(thread, "cuStreamCreate", out, sequence.pick(0, NON_BLOCKING))
    graph, out = sequence.new("graph")
    sequence.call(thread, "cuGraphCreate", out, 0)
    size = sequence.pick(4096, 70144, 300032)
    pinned, out = sequence.new("host", size)
    sequence.call(thread, "cuMemHostAlloc", out, size, 0)
    memory = sequence.fresh("memory", size)
    nodes = []

    def add(name, *arguments):
        node, out_node = sequence.new("node")
        sequence.call(thread, name, out_node, graph, node_list(nodes[-1:]), len(nodes[-1:]), *arguments)
        nodes.append(node)

    pool = {f"poolProps.{name}": value for name, value in on_device(0).items()}
    add("cuGraphAddMemAllocNode", structure("CUDA_MEM_ALLOC_NODE_PARAMS",
                                            {"poolProps.allocType": 1, **pool, "bytesize": size},
                                            f"dptr>{memory.name}@{size}"))
    copy = {"WidthInBytes": size, "Height": 1, "Depth": 1}
    add("cuGraphAddMemcpyNode", structure("CUDA_MEMCPY3D", {**copy, "srcMemoryType": HOST_TYPE, "srcHost": pinned,
                                                            "dstMemoryType": DEVICE_TYPE, "dstDevice": memory}),
        sequence.contexts[0])
    add("cuGraphAddMemsetNode", structure("CUDA_MEMSET_NODE_PARAMS", {
        "dst": memory, "pitch": 0, "value": sequence.random.randrange(256), "elementSize": 1, "width": size // 2,
        "height": 1}), sequence.contexts[0])
    add("cuGraphAddMemcpyNode", structure("CUDA_MEMCPY3D", {**copy, "srcMemoryType": DEVICE_TYPE, "srcDevice": memory,
                                                            "dstMemoryType": HOST_TYPE, "dstHost": pinned}),
        sequence.contexts[0])
    add("cuGraphAddMemFreeNode", memory)
    exec_, out = sequence.new("exec")
    sequence.call(thread, "cuGraphInstantiateWithFlags", out, graph, 0)
    yield
    for turn in range(sequence.random.randrange(1, 6)):
        sequence.call(thread, "write", pinned.name, 0, size, turn)
        sequence.call(thread, "cuGraphLaunch", exec_, stream)
        sequence.call(thread, sequence.pick("cuStreamSynchronize", "@cuStreamQuery"), stream)
        sequence.call(thread, "digest", pinned.name, 0, size)
        yield
    sequence.call(thread, "cuGraphLaunch", exec_, stream)
    sequence.call(thread, "cuGraphExecDestroy", exec_)
    sequence.call(thread, "cuGraphDestroy", graph)
    sequence.call(thread, "cuStreamSynchronize", stream)
    sequence.call(thread, "digest", pinned.name, 0, size)
    sequence.call(thread, "cuMemFreeHost", pinned)
    sequence.call(thread, "cuStreamDestroy_v2", stream)


SCENARIOS = {"straight": straight, "launched": launched, "held": held, "freed": freed, "threads": threads,
             "retained": retained, "launched_memory": graph_memory}
# The families with several threads.
OF_THREADS = {"threads", "retained"}
