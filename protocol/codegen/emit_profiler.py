"""generated/server/timed_driver.cpp: a driver table in which what gives the GPU work is timed."""

from emit_gate import put_before, stream_of
from text import arguments, banner, block, names

FAMILIES = {"memset": "memset", "memcpy": "copy", "memory": "copy"}  # to kinds


def kind_of(function):
    """Nothing: it is over too soon for its time to say something (words that streams write)."""
    kinds = [p.kind for p in function.params]
    if "func" in kinds:
        return "kernel"
    return "graph" if "graph_exec" in kinds else FAMILIES.get(function.family)


def timed(api):
    return [f for f in api.functions
            if f.gives_work and kind_of(f) and not f.is_old_abi and not f.same_as]


def wrapper(function):
    call = f"timer->driver().{function.name}({names(function)})"
    kind = kind_of(function)
    kernel = next((p.local for p in function.params if p.kind == "func"), "nullptr")
    if kind == "copy":
        size = function.work_bytes or f"moved_bytes({names(function)})"
    else:
        size = f"filled_bytes({names(function)})" if kind == "memset" else "0"
    work = f'{{SpanKind::{kind}, "{function.name}", {kernel}, {stream_of(function)}, {size}}}'
    lines = [f"return timer->time({work}, [&] {{ return {call}; }});"]
    return f"CUresult CUDAAPI timed_{function.name}({arguments(function)}) {{\n{block(lines)}}}\n"


def source(api):
    functions = timed(api)
    wrappers, rows = put_before(functions, wrapper, "timed")
    return f"""{banner()}#include "server/driver_table.hpp"
#include "server/profiler/timed_driver.hpp"

namespace gpuwire::server {{

namespace {{

// A driver function has no argument to pass it in. Written before the table is changed.
WorkTimer* timer = nullptr;

{wrappers}
}}  // namespace

void put_profiler_before(DriverTable& table, WorkTimer& before) {{
  timer = &before;
{rows}}}

}}  // namespace gpuwire::server
"""
