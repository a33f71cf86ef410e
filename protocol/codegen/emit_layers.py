"""generated/server/{gated,timed,ordered}_driver.cpp: the layers of the driver table. A layer replaces the functions
that it selects by its own, which call the driver's."""

import dataclasses
from typing import Callable, List, Tuple

from model import GATE_EFFECTS
from text import arguments, banner, block, names, since

TIMED_FAMILIES = {"memset": "memset", "memcpy": "copy", "memory": "copy"}  # to kinds of work


@dataclasses.dataclass(frozen=True)
class Layer:
    prefix: str                     # of the layer's functions and of its file
    type: str                       # of the object that the functions call
    pointer: str                    # name of the pointer to that object
    put_before: str                 # the function that puts the layer into a table
    written: str                    # when the pointer is written, for a generated comment
    includes: Tuple[str, ...]
    # Selects the functions to replace, among those that submit work or have an effect on the gate.
    minds: Callable[..., bool]
    # Returns the lines of the replacing function, given the function and the driver's call.
    body: Callable[..., List[str]]


def stream_of(function):
    if function.work_stream:
        return function.work_stream
    return function.stream_param.local if function.stream_param else "nullptr"


def key_of(function):
    """The key that is equal for calls of about the same duration."""
    parts = [f"word({part})" for part in function.work_key] or [f"offsetof(DriverTable, {function.name})"]
    return f"key_of({{{', '.join(parts)}}})"


def gated(function, call):
    if function.gives_work:
        work = (
            f"{{WorkKind::{function.gives_work}, {stream_of(function)}, {key_of(function)},"
            f" {function.work_bytes or '0'}}}"
        )
        return [
            f"if (gate->unhindered()) [[likely]] return {call};",
            f"return gate->submit({work}, [&] {{ return {call}; }});"
        ]
    return [f"return gate->{function.gate_effect}({subject(function)}, [&] {{ return {call}; }});"]


def subject(function):
    """The object that the function's `gate_effect` is about."""
    return next(p.local for p in function.params
                if p.kind == GATE_EFFECTS[function.gate_effect] and p.direction != "out")


def timed_kind(function):
    """The kind of work, or nothing for work that is too short to be timed (words that streams write)."""
    kinds = [p.kind for p in function.params]
    if "func" in kinds:
        return "kernel"
    return "graph" if "graph_exec" in kinds else TIMED_FAMILIES.get(function.family)


def timed(function, call):
    kind = timed_kind(function)
    kernel = next((p.local for p in function.params if p.kind == "func"), "nullptr")
    if kind == "copy":
        size = function.work_bytes or f"moved_bytes({names(function)})"
    else:
        size = f"filled_bytes({names(function)})" if kind == "memset" else "0"
    work = f'{{SpanKind::{kind}, "{function.name}", {kernel}, {stream_of(function)}, {size}}}'
    return [f"return timer->time({work}, [&] {{ return {call}; }});"]


def ordered(function, call):
    if function.gate_effect:
        return [f"order->{function.gate_effect}({subject(function)});", f"return {call};"]
    return [f"if (order->pending()) [[unlikely]] order->before_work({stream_of(function)});", f"return {call};"]


LAYERS = (
    # Calls that submit GPU work pass the gate first.
    Layer("gated", "Gate", "gate", "put_gate_before", "before the table is used",
          ("server/driver_table.hpp", "server/gate/gate.hpp", "server/gate/gated_driver.hpp"), lambda function: True,
          gated),
    # Calls that submit GPU work are timed.
    Layer("timed", "WorkTimer", "timer", "put_profiler_before", "before the table is changed",
          ("server/driver_table.hpp", "server/profiler/timed_driver.hpp"),
          lambda function: function.gives_work and timed_kind(function), timed),
    # A stream waits for copies before it receives work. Functions without a stream use the NULL stream, in which the
    # copies are. The handle of a destroyed stream may become that of another stream, which has not waited.
    Layer("ordered", "UploadOrder", "order", "put_upload_order_before", "before the table is changed",
          ("server/driver_table.hpp", "server/replay/copy/ordered_driver.hpp", "server/replay/copy/upload_order.hpp"),
          lambda function: function.gate_effect == "ends_stream"
          or function.gives_work and stream_of(function) != "nullptr", ordered),
)


def source(layer, api):
    functions = [f for f in api.functions
                 if (f.gives_work or f.gate_effect) and not f.is_old_abi and not f.same_as and layer.minds(f)]

    def replacement(function):
        lines = layer.body(function, f"{layer.pointer}->driver().{function.name}({names(function)})")
        return f"CUresult CUDAAPI {layer.prefix}_{function.name}({arguments(function)}) {{\n{block(lines)}}}\n"

    replacements = "\n".join(since(f.since, replacement(f)) for f in functions)
    rows = "".join(
        since(f.since, f"  if (table.{f.name}) table.{f.name} = &{layer.prefix}_{f.name};\n") for f in functions)
    includes = "".join(f'#include "{path}"\n' for path in layer.includes)
    return f"""{banner()}#include <cstddef>

{includes}
namespace gpuwire::server {{

namespace {{

// A driver function has no argument to pass it in. Written {layer.written}.
{layer.type}* {layer.pointer} = nullptr;

{replacements}
}}  // namespace

void {layer.put_before}(DriverTable& table, {layer.type}& before) {{
  {layer.pointer} = &before;
{rows}}}

}}  // namespace gpuwire::server
"""


def outputs(api):
    return {f"server/{layer.prefix}_driver.cpp": source(layer, api) for layer in LAYERS}
