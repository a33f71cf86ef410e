"""Graphs of programs that check early (promises.py): built, captured and nested, launched, given other parameters and
updated while a launch is in flight."""

from grammar import structure
from graphs import node_list
from order import joined
from programs import NON_BLOCKING, Operation, Program

TRIES_MAX = 6
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED


class Graph:

    def __init__(self, graph, exec_, operations):
        self.graph, self.exec_, self.operations = graph, exec_, operations
        self.clock = {}  # of its last launch: launches of one graph run one after the other


class Launches(Program):

    def __init__(self, sequence, wide):
        super().__init__(sequence, wide)
        self.graphs = []

    def operations(self):
        made = [self.operation(inside=True) for _ in range(self.random.randrange(1, 7))]
        return [operation for operation in made if operation]

    def chain(self, operations):
        """Builds a graph of nodes in one chain."""
        graph, out = self.sequence.new("graph")
        self.call("cuGraphCreate", out, 0)
        nodes = []
        for operation in operations:
            node, made = self.sequence.new("node")
            self.call(operation.node[0], made, graph, node_list(nodes[-1:]), len(nodes[-1:]), *operation.node[1:])
            nodes.append(node)
        return graph

    def add_nodes(self, graph, operations):
        """Adds nodes in one chain. A part of it may be a child graph."""
        nodes, at = [], 0
        while at < len(operations):
            node, out = self.sequence.new("node")
            head = (out, graph, node_list(nodes[-1:]), len(nodes[-1:]))
            nested = self.chance(0.15) and operations[at:at + self.random.randrange(1, 4)]
            if nested:
                child = self.chain(nested)
                self.call("cuGraphAddChildGraphNode", *head, child)
                self.call("cuGraphDestroy", child)
                at += len(nested)
            else:
                self.call(operations[at].node[0], *head, *operations[at].node[1:])
                operations[at].added = node
                at += 1
            nodes.append(node)

    def build(self, operations):
        graph, out = self.sequence.new("graph")
        if self.chance(0.5):
            self.call("cuGraphCreate", out, 0)
            self.add_nodes(graph, operations)
        else:
            stream, made = self.sequence.new("stream")
            thread = self.thread()
            self.sequence.call(thread, "cuStreamCreate", made, NON_BLOCKING)
            self.sequence.call(thread, "cuStreamBeginCapture_v2", stream, RELAXED)
            for operation in operations:
                self.sequence.call(thread, operation.call[0],
                                   *[stream if word == "STREAM" else word for word in operation.call[1:]])
            self.sequence.call(thread, "cuStreamEndCapture", stream, out)
            self.sequence.call(thread, "cuStreamDestroy_v2", stream)
        return graph

    def add_graph(self):
        operations = self.operations()
        if not operations:
            return
        graph = self.build(operations)
        exec_, out = self.sequence.new("exec")
        self.call("cuGraphInstantiateWithFlags", out, graph, 0)
        self.graphs.append(Graph(graph, exec_, operations))
        if self.chance(0.5):
            self.call("cuGraphDestroy", graph)
            self.graphs[-1].graph = None

    def launch_graph(self, graph, stream):
        """Launches the graph if all conflicting accesses are ordered before. Returns whether it did."""
        if any(operation.event and operation.event.waited for operation in graph.operations):
            return False
        clock = joined(self.order.clock_for(stream), graph.clock)
        touched = {id(each): each for operation in graph.operations
                   for each in [*operation.reads, *operation.writes, *([operation.task] if operation.task else [])]}
        before = {key: each.access.copy() for key, each in touched.items()}
        state = (stream.count, stream.clock)
        possible = True
        for operation in graph.operations:
            if self.may_read_sooner(operation) or not self.fits(operation, clock):
                possible = False
                break
            number = self.order.give(stream, clock)
            clock = dict(stream.clock)
            for memory in operation.reads:
                memory.access.read(stream.number, number)
            for memory in operation.writes:
                memory.access.write(stream.number, number)
            if operation.task:
                operation.task.access.write(stream.number, number)
        for key, each in touched.items():
            each.access = before[key]
        stream.count, stream.clock = state
        if not possible:
            return False
        self.call("cuGraphLaunch", graph.exec_, stream)
        clock = joined(self.order.clock_for(stream), graph.clock)
        for operation in graph.operations:
            self.do(operation, stream, clock)
            clock = dict(stream.clock)
        graph.clock = dict(stream.clock)
        return True

    def may_read_sooner(self, operation):
        """NVIDIA's driver may read pageable memory before its turn in the graph's order (docs/differences.md)."""
        return not self.sequence.software and operation.kind in ("copy", "pitched") and any(
            memory.kind == "pageable" and not memory.access.written_before(self.order.host)
            for memory in operation.reads)

    def update_graph(self, graph):
        """Changes the graph while a launch of it, which is not affected, may be in flight."""
        if self.chance(0.5) and self.update_node(graph):
            return
        again = [self.alike(operation) for operation in graph.operations]
        other = self.chain(again)
        replaced, out = self.sequence.new("exec")
        self.call("cuGraphInstantiateWithFlags", out, other, 0)
        self.call("cuGraphExecDestroy", graph.exec_)
        graph.exec_, graph.operations, graph.clock = replaced, again, {}
        if graph.graph:
            self.call("cuGraphDestroy", graph.graph)
        graph.graph = None
        changed = [self.alike(operation) for operation in again]
        newer = self.chain(changed)
        stream = self.stream()
        self.launch_graph(graph, stream)
        self.call("cuGraphExecUpdate_v2", graph.exec_, newer, structure("CUgraphExecUpdateResultInfo", {}, "result"))
        graph.operations = changed
        for each in (other, newer):
            self.call("cuGraphDestroy", each)

    def update_node(self, graph):
        """Sets other parameters of one node of the executable graph. Returns whether it has such a node."""
        able = [operation for operation in graph.operations if operation.added and operation.kind in
                ("fill", "kernel", "copy", "function", "record")]
        if not graph.graph or not able:
            return False
        old = self.random.choice(able)
        new = self.alike(old)
        name = {"fill": "cuGraphExecMemsetNodeSetParams", "kernel": "cuGraphExecKernelNodeSetParams_v2",
                "copy": "cuGraphExecMemcpyNodeSetParams", "function": "cuGraphExecHostNodeSetParams",
                "record": "cuGraphExecEventRecordNodeSetEvent"}[old.kind]
        self.call(name, graph.exec_, old.added, *new.node[1:])
        new.added = old.added
        graph.operations = [new if operation is old else operation for operation in graph.operations]
        return True

    def alike(self, operation):
        """Returns an operation of the same kind, between memory of the same kinds, that an executable graph accepts in
        its place."""
        makers = {"fill": self.filled, "kernel": self.kernel, "copy": lambda: self.copy(inside=True),
                  "function": self.own_function,
                  "record": lambda: self.record(inside=True)}
        for _ in range(TRIES_MAX):
            other = makers[operation.kind]() if operation.kind in makers else None
            if other and self.shape(other) == self.shape(operation):
                return other
        return Operation(operation.kind, operation.call, operation.node, operation.reads, operation.writes,
                         operation.event, operation.task)

    @staticmethod
    def shape(operation):
        function = operation.call[1] if operation.kind == "kernel" else None
        types = [word for word in str(operation.node[1]).split() if "MemoryType" in word]
        return (operation.kind, str(function), sorted(types), [memory.kind for memory in operation.reads],
                [memory.kind for memory in operation.writes])
