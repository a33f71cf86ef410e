"""generated/server/gated_driver.cpp: a driver table in which what gives the GPU work passes the gate first."""

from model import GATE_EFFECTS
from text import arguments, banner, block, names, since


def gated(api):
    return [f for f in api.functions if (f.gives_work or f.gate_effect) and not f.is_old_abi and not f.same_as]


def stream_of(function):
    if function.work_stream:
        return function.work_stream
    return function.stream_param.local if function.stream_param else "nullptr"


def key_of(function):
    """Equal for calls of which one takes about as long as another."""
    parts = [f"word({part})" for part in function.work_key] or [f"offsetof(DriverTable, {function.name})"]
    return f"key_of({{{', '.join(parts)}}})"


def wrapper(function):
    call = f"gate->driver().{function.name}({names(function)})"
    if function.gives_work:
        work = (
            f"{{WorkKind::{function.gives_work}, {stream_of(function)}, {key_of(function)},"
            f" {function.work_bytes or '0'}}}"
        )
        lines = [
            f"if (gate->unhindered()) [[likely]] return {call};",
            f"return gate->submit({work}, [&] {{ return {call}; }});"
        ]
    else:
        subject = next(p.local for p in function.params
                       if p.kind == GATE_EFFECTS[function.gate_effect] and p.direction != "out")
        lines = [f"return gate->{function.gate_effect}({subject}, [&] {{ return {call}; }});"]
    return f"CUresult CUDAAPI gated_{function.name}({arguments(function)}) {{\n{block(lines)}}}\n"


def put_before(functions, wrapper, prefix):
    """For a table of driver functions in which some are replaced by `prefix`_NAME: these, and the lines that put them
    there."""
    wrappers = "\n".join(since(f.since, wrapper(f)) for f in functions)
    rows = "".join(since(f.since, f"  if (table.{f.name}) table.{f.name} = &{prefix}_{f.name};\n") for f in functions)
    return wrappers, rows


def source(api):
    functions = gated(api)
    wrappers, rows = put_before(functions, wrapper, "gated")
    return f"""{banner()}#include <cstddef>

#include "server/driver_table.hpp"
#include "server/gate/gate.hpp"
#include "server/gate/gated_driver.hpp"

namespace gpuwire::server {{

namespace {{

// A driver function has no argument to pass it in. Written before the table is used.
Gate* gate = nullptr;

{wrappers}
}}  // namespace

void put_gate_before(DriverTable& table, Gate& before) {{
  gate = &before;
{rows}}}

}}  // namespace gpuwire::server
"""
