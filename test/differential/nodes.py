"""Scenarios about single nodes of graphs: queries and settings of each type, before and after the graph is
instantiated."""

from grammar import structure
from graphs import copy_params, kernel_params, node_list
from scenarios import allocate, check, function_of, load, stream_of

EVENT_RECORD_NODE = 7


def host_params():
    return structure("CUDA_HOST_NODE_PARAMS", {"fn": "%host"})


def nodes(sequence, thread):
    module = load(sequence, thread)
    fill = function_of(sequence, thread, module, "fill")
    block, other = allocate(sequence, thread, 4096), allocate(sequence, thread, 4096)
    stream, context = stream_of(sequence, thread), sequence.contexts[0]
    events = []
    for _ in range(2):
        event, out = sequence.new("event")
        sequence.call(thread, "cuEventCreate", out, 2)
        events.append(event)
    graph, out = sequence.new("graph")
    sequence.call(thread, "cuGraphCreate", out, 0)
    child, out = sequence.new("graph")
    sequence.call(thread, "cuGraphCreate", out, 0)
    sequence.call(thread, "cuGraphAddEmptyNode", ">inside", child, 0, 0)
    yield

    def operations(number):
        return structure(
            "CUDA_BATCH_MEM_OP_NODE_PARAMS", {
                "ctx": context, "count": 1, "paramArray": structure(
                    "CUstreamBatchMemOpParams",
                    {"operation": 2, "writeValue.address": other.at(2048), "writeValue.value64": number})
            })

    added = []

    def add(name, *arguments):
        """Adds a node to one chain, so that the nodes' effects have one order."""
        node, out = sequence.new("node")
        sequence.call(thread, name, out, graph, node_list(added[-1:]), len(added[-1:]), *arguments)
        added.append(node)
        return node

    kernel = add(sequence.pick("cuGraphAddKernelNode", "cuGraphAddKernelNode_v2"), kernel_params(fill, block))
    again = add("cuGraphAddKernelNode_v2", kernel_params(fill, block))
    copy = add("cuGraphAddMemcpyNode", copy_params(block, other), context)
    host = add("cuGraphAddHostNode", host_params())
    record = add("cuGraphAddEventRecordNode", events[0])
    wait = add("cuGraphAddEventWaitNode", events[0])
    nested = add("cuGraphAddChildGraphNode", child)
    words = add("cuGraphAddBatchMemOpNode", operations(5))
    yield
    generic, out = sequence.new("node")
    plain = structure("CUgraphNodeParams", {"type": EVENT_RECORD_NODE, "eventRecord.event": events[1]})
    if sequence.chance(0.5):
        sequence.call(thread, "cuGraphAddNode", out, graph, node_list(added[-1:]), 1, plain)
    else:
        sequence.call(thread, "cuGraphAddNode_v2", out, graph, node_list(added[-1:]), 0, 1, plain)
    yield

    def shown(kind, fields):
        return structure(kind, {}, fields)

    def value(**fields):
        return structure("CUlaunchAttributeValue", fields)

    def ask(name, *arguments):
        return lambda: sequence.risky(thread, name, *arguments)

    asked = [
        ask("cuGraphKernelNodeGetParams", (kernel, copy), shown("CUDA_KERNEL_NODE_PARAMS", "gridDimX blockDimX")),
        ask("cuGraphKernelNodeSetParams", (kernel, copy), kernel_params(fill, block)),
        ask("cuGraphKernelNodeSetParams_v2", (kernel, host), kernel_params(fill, block)),
        ask("cuGraphKernelNodeSetAttribute", (kernel, copy), (8,), (value(priority=0),)),
        ask("cuGraphKernelNodeGetAttribute", (kernel, copy), (8,), (shown("CUlaunchAttributeValue", "priority"),)),
        ask("cuGraphKernelNodeCopyAttributes", (again, copy), (kernel, copy)),
        ask("cuGraphMemcpyNodeGetParams", (copy, kernel), shown("CUDA_MEMCPY3D", "WidthInBytes Height")),
        ask("cuGraphMemcpyNodeSetParams", (copy, kernel), copy_params(block, other, 512)),
        ask("cuGraphHostNodeSetParams", (host, kernel), host_params()),
        ask("cuGraphEventRecordNodeSetEvent", (record, kernel), (events[1],)),
        ask("cuGraphEventWaitNodeSetEvent", (wait, kernel), (events[1],)),
        ask("cuGraphEventWaitNodeGetEvent", (wait, record), ">its"),
        ask("cuGraphChildGraphNodeGetGraph", (nested, kernel), ">its"),
        ask("cuGraphBatchMemOpNodeSetParams", (words, kernel), operations(6)),
        ask("cuGraphNodeSetParams", (generic, kernel), plain),
        ask("cuGraphNodeGetDependencies_v2", kernel, 0, 0, "?u64"),
        ask("cuGraphNodeGetDependentNodes_v2", kernel, 0, 0, "?u64"),
        ask("cuGraphGetEdges", (graph, 0), 0, 0, "?u64"),
        ask("cuGraphGetEdges_v2", (graph, 0), 0, 0, 0, "?u64"),
    ]
    for call in sequence.random.sample(asked, 8):
        call()
    yield
    ends = node_list([kernel]), node_list([wait])
    if sequence.chance(0.5):
        sequence.call(thread, "cuGraphAddDependencies_v2", graph, *ends, 0, 1)
        sequence.call(thread, "cuGraphRemoveDependencies_v2", graph, *ends, 0, 1)
    else:
        sequence.call(thread, "cuGraphAddDependencies", graph, *ends, 1)
        sequence.call(thread, "cuGraphRemoveDependencies", graph, *ends, 1)
    sequence.call(thread, "cuGraphRemoveDependencies", graph, *ends, 1)
    clone, out = sequence.new("graph")
    sequence.call(thread, "cuGraphClone", out, graph)
    sequence.risky(thread, "cuGraphNodeFindInClone", (">twin", 0), (kernel,), (clone, graph))
    things, out = sequence.new("things")
    sequence.call(thread, "cuUserObjectCreate", out, 0, "%destroy", 1, 1)
    # With flag 1 the reference moves to the graph, and only the graph may release it.
    given_away = sequence.chance(0.5)
    sequence.call(thread, "cuGraphRetainUserObject", graph, things, 1, int(given_away))
    sequence.call(thread, "cuGraphReleaseUserObject", graph, things, 1)
    yield
    exec_, out = sequence.new("exec")
    sequence.pick(
        lambda: sequence.call(thread, "cuGraphInstantiateWithParams", out, graph, structure(
            "CUDA_GRAPH_INSTANTIATE_PARAMS", {}, "result_out")),
        lambda: sequence.call(thread, "cuGraphInstantiate_v2", out, graph, 0, 0, 0),
    )()
    changed = [
        ask("cuGraphExecKernelNodeSetParams", exec_, (kernel, copy), kernel_params(fill, block)),
        ask("cuGraphExecKernelNodeSetParams_v2", exec_, (kernel, copy), kernel_params(fill, block)),
        ask("cuGraphExecMemcpyNodeSetParams", exec_, (copy, kernel), copy_params(block, other), context),
        ask("cuGraphExecHostNodeSetParams", exec_, (host, kernel), host_params()),
        ask("cuGraphExecEventRecordNodeSetEvent", exec_, (record, kernel), events[0]),
        ask("cuGraphExecEventWaitNodeSetEvent", exec_, (wait, kernel), events[0]),
        ask("cuGraphExecChildGraphNodeSetParams", exec_, (nested, kernel), child),
        ask("cuGraphExecBatchMemOpNodeSetParams", exec_, (words, kernel), operations(7)),
        ask("cuGraphExecNodeSetParams", exec_, (generic, kernel), plain),
    ]
    for call in sequence.random.sample(changed, 4):
        call()
    sequence.call(thread, "cuGraphLaunch", exec_, stream)
    done = sequence.call(thread, "cuStreamSynchronize", stream)
    block.needs.append(done)
    other.needs.append(done)
    yield
    if sequence.chance(0.5):
        sequence.call(thread, "cuGraphExecUpdate", exec_, sequence.pick(graph, clone, child), "?hide", "?i32")
    else:
        sequence.call(thread, "cuGraphExecUpdate_v2", exec_, sequence.pick(graph, clone, child),
                      structure("CUgraphExecUpdateResultInfo", {}, "result"))
    check(sequence, thread, block)
    check(sequence, thread, other)
    sequence.call(thread, "counts")
    for name, thing in (("cuGraphExecDestroy", exec_), ("cuGraphDestroy", clone), ("cuGraphDestroy", graph),
                        ("cuGraphDestroy", child)):
        sequence.call(thread, name, thing)
    if not given_away:
        sequence.call(thread, "cuUserObjectRelease", things, 1)
    for name, thing in (("cuEventDestroy_v2", events[0]), ("cuEventDestroy_v2", events[1]),
                        ("cuStreamDestroy_v2", stream), ("cuMemFree_v2", block), ("cuMemFree_v2", other),
                        ("cuModuleUnload", module)):
        sequence.call(thread, name, thing)
