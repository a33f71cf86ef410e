"""Tests only. For every generated call: a driver function that records its arguments and invents results, and a
function that makes the call with random arguments and returns the expected arguments of the driver and the expected
results."""

import re

import emit_session_tests
from emit_server import generated_functions, server_count
from emit_structures import condition, ordered
from model import SCALARS
from text import arguments, banner, block, since

PLAIN = ("struct", "byval")


def kind(p):
    return f"wire::HandleKind::{p.kind}"


def count_params(function):
    """The parameters that count the items of other parameters."""
    return {name for p in function.params if p.kind in ("list", "bytes") for name in p.count_names}


def attribute_params(function):
    return {p.count for p in function.params if p.kind == "by_attribute"}


# --- the driver's side
# --------------------------------------------------------------------------------------------------------------------


class Mock:
    def __init__(self, function):
        self.function = function
        self.counted = count_params(function)
        self.before, self.lines = [], []
        for p in function.params:
            if p.direction == "inout" and p.name in self.counted:
                self.before.append(f"const auto {p.local}_room = *{p.local};")
                self.before.append(f"const auto {p.local}_back = driver.at_most({p.local}_room);")
        for p in function.params:
            if p.kind != "host":
                if p.sends and p.direction in ("in", "inout", "destroy"):
                    self.see(p)
                if p.direction in ("out", "inout", "new", "given"):
                    self.give(p)

    def count(self, p, suffix):
        """The C expression of a count. An inout count has the available room and the returned number."""
        def name(match):
            q = self.function.param(match.group(0))
            return q.local + suffix if q.direction == "inout" else q.local
        return re.sub(r"[A-Za-z_]\w*", name, p.count)

    def see(self, p):
        x = p.local
        if p.kind == "list" and p.structure:
            self.lines.append(
                f"for (size_t i = 0; i < {self.count(p, '_room')}; ++i) canonical(driver.seen, {x}[i], nullptr);")
        elif p.kind == "list":
            body = f"driver.seen.items({x}, {self.count(p, '_room')});"
            self.lines.append(f"driver.seen.word({x} != nullptr); if ({x}) {body}" if p.opt else body)
        elif p.kind == "bytes":
            self.lines.append(f"driver.seen.put({x}, {self.count(p, '_room')});")
        elif p.kind == "by_attribute":
            self.lines.append(f"driver.seen.put({x}, attribute_bytes({self.function.param(p.count).local}));")
        elif p.kind == "string":
            self.lines.append(f"driver.seen.text({x});")
        elif p.structure:
            self.lines.append(f"canonical(driver.seen, {'' if p.kind == 'byval' else '*'}{x}, nullptr);")
        elif p.kind == "struct" and p.opt:
            self.lines.append(f"driver.seen.word({x} != nullptr); if ({x}) driver.seen.put({x}, sizeof *{x});")
        elif p.kind == "struct":
            self.lines.append(f"driver.seen.put({x}, sizeof *{x});")
        elif p.kind == "byval":
            self.lines.append(f"driver.seen.put(&{x}, sizeof {x});")
        else:
            self.lines.append(f"driver.seen.value({'*' if p.is_pointer else ''}{x});")

    def give(self, p):
        x = p.local
        if p.kind == "list" and p.item.is_handle:
            self.lines.append(
                f"if ({x}) driver.give_natives(wire::HandleKind::{p.item.kind}, {x}, {self.count(p, '_back')});")
        elif p.kind == "list":
            self.lines.append(f"if ({x}) driver.give_bytes({x}, {self.count(p, '_back')} * sizeof *{x});")
        elif p.kind == "bytes":
            self.lines.append(f"driver.give_bytes({x}, {self.count(p, '_back')});")
        elif p.kind == "by_attribute":
            self.lines.append(f"driver.give_bytes({x}, attribute_bytes({self.function.param(p.count).local}));")
        elif p.structure and p.direction == "inout":
            self.lines.append(f"canonical(driver.gave, *{x}, nullptr);")
        elif p.structure:
            self.lines.append(f"randomise(driver, *{x}); canonical(driver.gave, *{x}, nullptr);")
        elif p.kind == "struct":
            self.lines.append(f"driver.give_bytes({x}, sizeof *{x});")
        elif p.is_handle:
            how = "native" if p.direction == "new" else "maybe_known"
            self.lines.append(f"driver.give_value({x}, driver.{how}<{p.value_type}>({kind(p)}));")
        elif p.direction == "inout" and p.name in self.counted:
            self.lines.append(f"driver.give_value({x}, {x}_back);")
        else:
            self.lines.append(f"driver.give_value({x}, driver.any<{p.value_type}>());")

    def text(self):
        f = self.function
        lines = [f'MockDriver& driver = MockDriver::current("{f.name}");'
                 ] + self.before + self.lines + ["return driver.result;"]
        parameters = ", ".join(f"{p.c_type} {p.local}" if p.kind != "host" else p.c_type for p in f.params)
        return f"CUresult CUDAAPI mock_{f.name}({parameters}) {{\n{block(lines)}}}\n"


# --- the program's side
# -------------------------------------------------------------------------------------------------------------------


class Program:
    def __init__(self, function):
        self.function = function
        self.counted = count_params(function)
        self.attributes = attribute_params(function)
        self.make, self.expect, self.got = [], [], []
        for p in sorted(function.params, key=lambda p: bool(p.count)):
            if p.kind != "host":
                self.add(p)
        for p in function.params:
            if p.kind != "host" and p.sends and p.direction in ("in", "inout", "destroy"):
                self.expected(p)
            if p.kind != "host" and p.direction in ("out", "inout", "new", "given"):
                self.received(p)

    def add(self, p):
        x, t = p.local, p.value_type
        count = server_count(self.function, p)
        if p.kind == "list":
            maker = (
                f"program.handles<{t}>(wire::HandleKind::{p.item.kind}, {count})"
                if p.item.is_handle and p.direction == "in"
                else f"program.list<{t}>({count})"
            )
            self.make.append(f"auto {x} = {maker};")
            if p.structure:
                self.make.append(f"for (auto& item : {x}) randomise(program, item);")
            if p.opt:
                self.make.append(f"if (program.coin()) {x}.clear();")
        elif p.kind == "bytes":
            self.make.append(f"auto {x} = program.list<uint8_t>({count});")
        elif p.kind == "by_attribute":
            self.make.append(f"uint64_t {x}[kAttributeBytesMax / 8]; program.fill({x}, sizeof {x});")
        elif p.kind == "string":
            self.make.append(f"std::string {x} = program.text();")
        elif p.structure and p.direction in ("in", "inout"):
            self.make.append(f"{t} {x}{{}}; randomise(program, {x});")
        elif p.kind in PLAIN:
            self.make.append(f"{t} {x}{{}}; program.fill(&{x}, sizeof {x});")
            if p.opt and p.direction == "in":
                self.make.append(f"bool {x}_null = program.coin();")
        elif p.is_handle and p.direction in ("in", "destroy"):
            of = kind(p) if p.kind != "func" else "program.function_kind()"
            self.make.append(f"auto {x} = program.{'maybe_' if p.opt else ''}handle<{t}>({of});")
        elif p.name in self.counted and p.direction in ("in", "inout"):
            self.make.append(f"auto {x} = static_cast<{t}>(program.count());")
        elif p.name in self.attributes:
            self.make.append(f"auto {x} = program.attribute<{t}>();")
        elif p.kind == "enum" and p.direction == "in":
            self.make.append(f"auto {x} = static_cast<{t}>(program.coin());")
        elif p.kind == "device" and p.direction == "in":
            self.make.append(f"auto {x} = program.device();")
        else:
            self.make.append(f"auto {x} = program.any<{t}>();")
        if p.direction == "inout":
            self.make.append(f"const auto {x}_before = copy_of({x});")
        self.call_argument(p)

    def call_argument(self, p):
        p_local = p.local
        if p.kind == "list" or p.kind == "bytes":
            argument = f"{p_local}.empty() ? nullptr : {p_local}.data()" if p.opt else f"{p_local}.data()"
        elif p.kind == "string":
            argument = f"{p_local}.c_str()"
        elif p.kind == "by_attribute":
            argument = p_local
        elif p.kind == "struct" and p.opt and p.direction == "in":
            argument = f"{p_local}_null ? nullptr : &{p_local}"
        else:
            argument = f"&{p_local}" if p.is_pointer else p_local
        self.arguments = getattr(self, "arguments", {}) | {p.name: argument}

    def expected(self, p):
        x = p.local + ("_before" if p.direction == "inout" else "")
        count = re.sub(r"[A-Za-z_]\w*", lambda m: self.before(m.group(0)), p.count)
        if p.kind == "list":
            if p.structure:
                self.expect.append(f"for (auto& item : {x}) canonical(program.expected, item, &program);")
                return
            body = (
                f"program.expected.items(program.natives(wire::HandleKind::{p.item.kind}, {x}), {count});"
                if p.item.is_handle
                else f"program.expected.items({x}.data(), {count});"
            )
            self.expect.append(f"program.expected.word(!{x}.empty()); if (!{x}.empty()) {body}" if p.opt else body)
        elif p.kind == "bytes":
            self.expect.append(f"program.expected.put({x}.data(), {count});")
        elif p.kind == "by_attribute":
            self.expect.append(f"program.expected.put({x}, attribute_bytes({self.function.param(p.count).local}));")
        elif p.kind == "string":
            self.expect.append(f"program.expected.text({x}.c_str());")
        elif p.structure:
            self.expect.append(f"canonical(program.expected, {x}, &program);")
        elif p.kind == "struct" and p.opt:
            self.expect.append(
                f"program.expected.word(!{x}_null); if (!{x}_null) program.expected.put(&{x}, sizeof {x});")
        elif p.kind in PLAIN:
            self.expect.append(f"program.expected.put(&{x}, sizeof {x});")
        elif p.is_handle:
            handle_kind = f"wire::handle_kind(word({x}))" if p.kind == "func" else kind(p)
            if p.direction == "destroy":
                self.expect.append(f"program.expected.word(program.destroyed({handle_kind}, word({x})));")
            else:
                self.expect.append(f"program.expected.word(program.native({handle_kind}, word({x})));")
        elif p.kind == "device" and p.direction == "in":
            self.expect.append(f"program.expected.value(program.server_device({x}));")
        else:
            self.expect.append(f"program.expected.value({x});")

    def before(self, name):
        p = self.function.param(name)
        return p.local + ("_before" if p.direction == "inout" else "")

    def received(self, p):
        x = p.local
        count = server_count(self.function, p)
        if p.kind == "list" and p.item.is_handle:
            self.got.append(
                f"if (!{x}.empty()) program.got.items(program.natives(wire::HandleKind::{p.item.kind}, {x}), {count});")
        elif p.kind == "list":
            self.got.append(f"if (!{x}.empty()) program.got.put({x}.data(), {count} * sizeof({p.value_type}));")
        elif p.kind == "bytes":
            self.got.append(f"program.got.put({x}.data(), {count});")
        elif p.kind == "by_attribute":
            self.got.append(f"program.got.put({x}, attribute_bytes({self.function.param(p.count).local}));")
        elif p.structure:
            self.got.append(f"canonical(program.got, {x}, &program);")
        elif p.kind == "struct":
            self.got.append(f"program.got.put(&{x}, sizeof {x});")
        elif p.is_handle:
            self.got.append(f"program.got.word(program.native({kind(p)}, word({x})));")
        else:
            self.got.append(f"program.got.value({x});")

    def text(self):
        f = self.function
        passed = ["program.caller()"] + [self.arguments.get(p.name, "{}") for p in f.params]
        lines = self.make + [f"CUresult result = client::forward::{f.name}({', '.join(passed)});"]
        lines.append("if (!program.succeeded(result)) return;")
        lines += self.expect + self.got
        return f"void call_{f.name}(Program& program) {{\n{block(lines)}}}\n"


# --- structures
# ---------------------------------------------------------------------------------------------------------------------


def guarded(member, statement):
    if_met = f"if ({condition(member.condition, 'value')}) " if member.condition else ""
    return since(member.since, f"  {if_met}{{ {statement} }}\n")


def set_member(m):
    if m.kind == "device":
        return f"source.set_device(value.{m.path});"
    return f"source.set_handle(wire::HandleKind::{m.kind}, value.{m.path}, {'true' if m.opt else 'false'});"


def native_member(m):
    if m.kind == "device":
        return f"value.{m.path} = program->server_device(value.{m.path});"
    return (
        f"value.{m.path} = from_word<decltype(value.{m.path})>(program->native(wire::HandleKind::{m.kind},"
        f" word(value.{m.path})));"
    )


def structure_functions(structure, structures):
    name = structure.name
    choices = {}  # field -> the lines of its possible values
    for member in structure.handles + structure.lists + structure.parts:
        if member.condition:
            field, value = member.condition.split(" == ")
            lines = choices.setdefault(field, [])
            line = since(member.since, f"    int({value}),\n")
            if line not in lines:
                lines.append(line)
    for refusal in structure.refuse:
        choices.setdefault(refusal.condition.split(" == ")[0], [])
    choose = "".join(f"  source.choose(value.{field}, {{\n{''.join(lines)}    kOtherEnumerator,\n  }});\n"
                     for field, lines in choices.items())
    fill = "".join(guarded(m, set_member(m)) for m in structure.handles)
    fill += "".join(guarded(m, f"randomise(source, value.{m.path});") for m in structure.parts)
    for m in structure.lists:
        each = (
            f" for (size_t i = 0; i < value.{m.count}; ++i) randomise(source,"
            f" const_cast<{m.type}&>(value.{m.path}[i]));"
            if m.type in structures
            else ""
        )
        fill += guarded(m, f"value.{m.count} = source.set_list(value.{m.path});{each}")
    fill += "".join(f"  value.{path} = {{}};\n" for path in structure.clear)
    natives = "".join(guarded(m, native_member(m)) for m in structure.handles)
    natives += "".join(guarded(m, f"to_natives(value.{m.path}, program);") for m in structure.parts)
    lists = ""
    for m in structure.lists:
        item = (
            f"canonical(trace, value.{m.path}[i], program);"
            if m.type in structures
            else f"trace.put(&value.{m.path}[i], sizeof value.{m.path}[i]);"
        )
        lists += guarded(m, f"for (size_t i = 0; i < value.{m.count}; ++i) {{ {item} }} value.{m.path} = nullptr;")
    return (
        f"template <class Source>\nvoid randomise(Source& source, {name}& value) {{\n  source.fill(&value, sizeof"
        f" value);\n{choose}{fill}}}\ninline void to_natives([[maybe_unused]] {name}& value, Program* program) {{\n  if"
        f" (!program) return;\n{natives}}}\ninline void canonical(Trace& trace, const {name}& original, Program*"
        f" program) {{\n  {name} value;\n  std::memcpy(&value, &original, sizeof value);\n  to_natives(value,"
        f" program);\n{lists}  trace.put(&value, sizeof value);\n}}\n"
    )


def structures_header(api):
    functions = "\n".join(since(s.since, structure_functions(s, api.structures)) for s in ordered(api.structures))
    return f"""{banner("structures.toml")}#pragma once

#include "cuda_names.hpp"
#include "test/protocol/api/round_trip.hpp"

namespace gpuwire::test {{

// An enumerator that no condition of the description asks for.
inline constexpr int kOtherEnumerator = 1000;

{functions}
}}  // namespace gpuwire::test
"""


def source(family):
    functions = generated_functions(family)
    mocks = "\n".join(since(f.since, Mock(f).text()) for f in functions)
    programs = "\n".join(since(f.since, Program(f).text()) for f in functions)
    rows = "".join(
        since(
            f.since,
            (
                f'      {{"{f.name}", {f.ordinal}, {"true" if f.cls == "posted" else "false"},'
                f" server::generated::replay_{f.name}, call_{f.name}}},\n"
            ),
        )
        for f in functions
    )
    sets = "".join(since(f.since, f"  table.{f.name} = mock_{f.name};\n") for f in functions)
    return f"""{banner(family.name + ".toml")}
#include "client/forward.hpp"
#include "server/driver_table.hpp"
#include "server/replay_functions.hpp"
#include "test/structures.hpp"

namespace gpuwire::test {{

namespace {{

{mocks}
{programs}
}}  // namespace

std::vector<GeneratedCall> calls_of_{family.name}() {{
  return {{
{rows}  }};
}}

void mock_{family.name}(server::DriverTable& table) {{
{sets}}}

}}  // namespace gpuwire::test
"""


def table(api):
    families = [f for f in api.families if generated_functions(f)]
    declarations = "".join(
        f"std::vector<GeneratedCall> calls_of_{f.name}();\nvoid mock_{f.name}(server::DriverTable& table);\n"
        for f in families)
    calls = "".join(f"  for (const GeneratedCall& call : calls_of_{f.name}()) calls.push_back(call);\n"
                    for f in families)
    mocks = "".join(f"  mock_{f.name}(table);\n" for f in families)
    return f"""{banner()}#include "server/driver_table.hpp"
#include "test/protocol/api/round_trip.hpp"

namespace gpuwire::test {{

{declarations}
std::vector<GeneratedCall> generated_calls() {{
  std::vector<GeneratedCall> calls;
{calls}  return calls;
}}

const server::DriverTable& mock_driver_table() {{
  static const server::DriverTable kTable = [] {{
    server::DriverTable table;
{mocks.replace("  mock_", "    mock_")}    return table;
  }}();
  return kTable;
}}

}}  // namespace gpuwire::test
"""


def emit(api):
    files = {"test/structures.hpp": structures_header(api), "test/calls.cpp": table(api)}
    for family in api.families:
        if generated_functions(family):
            files[f"test/calls_{family.name}.cpp"] = source(family)
    return files | emit_session_tests.emit(api.session)
