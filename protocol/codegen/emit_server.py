"""generated/server/: driver_table.{hpp,cpp}, driver_table_entries.hpp, custom.hpp, replay_<family>.{cpp},
replay_table.cpp."""

import re

from model import FIRST_ORDINAL, accessor
from text import arguments, banner, block, since


# --- driver table
# ---------------------------------------------------------------------------------------------------------------------


def in_table(function):
    return not function.is_old_abi and not function.same_as


def driver_table_header(api):
    members = "".join(
        since(f.since, f"  CUresult (CUDAAPI* {f.name})({', '.join(p.c_type for p in f.params)}) = nullptr;\n")
        for f in api.functions if in_table(f))
    return f"""{banner()}// The driver library's functions by their exported names. A member is null when the library lacks it.
#pragma once

#include <cstddef>

#include "cuda_names.hpp"

namespace gpuwire::server {{

struct DriverTable {{
{members}}};

// Fills the table from a library opened with dlopen. Returns how many functions were found.
size_t load_driver_table(void* library, DriverTable& table);

}}  // namespace gpuwire::server
"""


def driver_table_source(api):
    rows = "".join(
        since(f.since, f'    {{"{f.name}", offsetof(DriverTable, {f.name})}},\n') for f in api.functions if in_table(f))
    return f"""{banner()}#include "server/driver_table.hpp"

#include <dlfcn.h>

#include <cstring>

namespace gpuwire::server {{

namespace {{

struct Member {{
  const char* name;
  size_t offset;
}};

constexpr Member kMembers[] = {{
{rows}}};

}}  // namespace

size_t load_driver_table(void* library, DriverTable& table) {{
  size_t found = 0;
  for (const Member& member : kMembers) {{
    void* address = dlsym(library, member.name);
    std::memcpy(reinterpret_cast<char*>(&table) + member.offset, &address, sizeof address);
    found += address != nullptr;
  }}
  return found;
}}

}}  // namespace gpuwire::server
"""


def driver_table_entries_header(api):
    rows = "".join(
        since(f.since, f'  visit.template operator()<&DriverTable::{f.name}>("{f.name}");\n') for f in api.functions
        if in_table(f))
    return f"""{banner()}// The entries of the driver's table, for code that treats all of them alike.
#pragma once

#include "server/driver_table.hpp"

namespace gpuwire::server {{

// Calls visit<&DriverTable::NAME>("NAME") for each member of the table.
template <class Visitor>
void for_each_entry(Visitor&& visit) {{
{rows}}}

}}  // namespace gpuwire::server
"""


# --- replay ----------------------------------------------------------------------------------------------------------


def server_count(function, p):
    return re.sub(r"[A-Za-z_]\w*", lambda m: function.param(m.group(0)).local, p.count)


class Server:
    """Collects the parts of one replay function."""

    def __init__(self, function):
        self.function = function
        self.decode, self.args, self.before, self.after, self.bytes, self.sets, self.always = [], [], [], [], [], [], []
        self.lists = 0
        # Counts are read before the lists whose items they count.
        for p in sorted(function.params, key=lambda p: bool(p.count)):
            if p.kind != "host":
                self.add(p)
        self.args = [self.argument(p) for p in function.params]

    def argument(self, p):
        if p.kind == "host":
            return "{}"
        if p.kind == "list" and p.opt and p.direction == "in":
            return f"params.has{accessor(p.name)}() ? {p.local}.data() : nullptr"
        if p.kind == "list":
            return f"{p.local}.data()"
        if p.kind == "bytes":
            return f"{p.local}.data()"
        if p.kind == "by_attribute":
            return p.local
        if p.kind == "string":
            return f"{p.local}.cStr()"
        if p.kind == "struct" and p.direction == "in" and p.opt:
            return f"params.has{accessor(p.name)}() ? &{p.local} : nullptr"
        return f"&{p.local}" if p.is_pointer else p.local

    def add(self, p):
        self.get = f"params.get{accessor(p.name)}()"
        self.field = accessor(p.name)
        if p.kind == "list":
            self.add_list(p)
        elif p.kind == "bytes":
            self.add_bytes(p)
        elif p.kind == "by_attribute":
            self.add_by_attribute(p)
        elif p.kind in ("struct", "byval"):
            self.add_struct(p)
        elif p.kind == "string":
            self.decode.append(f"capnp::Text::Reader {p.local} = incoming.text({self.get});")
        elif p.is_handle:
            self.add_handle(p)
        else:
            self.add_scalar(p)

    def add_scalar(self, p):
        if p.direction in ("in", "inout"):
            self.decode.append(f"auto {p.local} = from_word<{p.value_type}>({self.get});")
        else:
            self.decode.append(f"{p.value_type} {p.local}{{}};")
        if p.returns:
            wire = {"enum": "int32_t", "pointer": "word"}.get(p.kind, "")
            self.sets.append(f"results.set{self.field}({wire}({p.local}));")

    def add_handle(self, p):
        kind = f"wire::HandleKind::{p.kind}"
        if p.direction in ("new", "given"):
            self.decode.append(f"{p.value_type} {p.local}{{}};")
            if p.direction == "new":
                self.after.append(f"incoming.insert({kind}, {self.get}, word({p.local}));")
            else:
                self.decode.append(f"uint64_t {p.local}_given = 0;")
                give = self.always if self.function.results_always else self.after
                give.append(f"{p.local}_given = incoming.give({kind}, {self.get}, word({p.local}));")
                self.sets.append(f"results.set{self.field}({p.local}_given);")
            return
        lookup = {"stream": f"stream({self.get})",
                  "func": f"function({self.get})"}.get(p.kind,
                                                       f"handle({kind}, {self.get}, {'true' if p.opt else 'false'})")
        if p.direction == "destroy":
            lookup = f"handle({kind}, {self.get}, false)"
            self.after.append(f"incoming.erase({kind}, {self.get});")
        self.decode.append(f"auto {p.local} = from_word<{p.value_type}>(incoming.{lookup});")

    def add_struct(self, p):
        if p.deep:
            return self.add_structure(p)
        self.decode.append(f"{p.value_type} {p.local}{{}};")
        if p.direction in ("in", "inout"):
            guard = f"if (params.has{self.field}()) " if p.opt else ""
            self.decode.append(f"{guard}incoming.copy({self.get}, &{p.local}, sizeof {p.local});")
        if p.returns:
            self.bytes.append(f"sizeof {p.local}")
            self.lists += 1
            self.sets.append(f"results.set{self.field}(bytes_of(&{p.local}, sizeof {p.local}));")

    def add_structure(self, p):
        self.decode.append(f"{p.value_type} {p.local}{{}};")
        if p.direction in ("in", "inout"):
            self.decode.append(f"Flat {p.local}_flat(incoming, {self.get});")
            guard = f"if (params.has{self.field}()) " if p.opt else ""
            self.decode.append(f"{guard}unpack(incoming, {p.local}_flat, {p.local});")
        if p.returns:
            (self.always if self.function.results_always else self.after).append(f"to_client(incoming, {p.local});")
            self.bytes.append(f"sizeof {p.local}")
            self.lists += 1
            self.sets.append(f"results.set{self.field}(bytes_of(&{p.local}, sizeof {p.local}));")

    def add_by_attribute(self, p):
        attribute = self.function.param(p.count).local
        self.decode.append(f"uint64_t {p.local}[kAttributeBytesMax / 8] = {{}};")
        self.decode.append(f"uint32_t {p.local}_bytes = incoming.attribute(attribute_bytes({attribute}));")
        if p.direction in ("in", "inout"):
            self.decode.append(f"incoming.copy({self.get}, {p.local}, {p.local}_bytes);")
        if p.returns:
            self.bytes.append(f"{p.local}_bytes")
            self.lists += 1
            self.sets.append(f"results.set{self.field}(bytes_of({p.local}, {p.local}_bytes));")

    def add_bytes(self, p):
        self.decode.append(f"size_t {p.local}_bytes = incoming.bytes({server_count(self.function, p)});")
        if p.direction == "in":
            self.decode.append(f"Items<uint8_t> {p.local} = incoming.items<uint8_t>({self.get}, {p.local}_bytes);")
        else:
            self.decode.append(f"Room<uint8_t> {p.local}({p.local}_bytes);")
            self.bytes.append(f"{p.local}_bytes")
            self.lists += 1
            self.sets.append(f"results.set{self.field}(bytes_of({p.local}.data(), {p.local}_bytes));")

    def add_list(self, p):
        count = f"{p.local}_count"
        item = "uint64_t" if p.item.is_handle else p.value_type
        expression = server_count(self.function, p)
        present = ""
        if p.opt:
            has = f"params.get{self.field}Wanted()" if p.direction == "out" else f"params.has{self.field}()"
            present = f"{has} ? size_t({expression}) : size_t(0)"
        self.decode.append(f"size_t {count} = incoming.count({present or expression}, sizeof({item}));")
        if p.item.is_handle and p.direction == "in":
            kind = f"wire::HandleKind::{p.item.kind}"
            self.decode.append(
                f"Room<{p.value_type}> {p.local} = incoming.handles<{p.value_type}>({kind}, {self.get}, {count});")
        elif p.direction == "in":
            self.decode.append(
                f"Items<{p.value_type}> {p.local} = incoming.items<{p.value_type}>({self.get}, {count});")
        elif p.item.is_handle:
            self.add_given_list(p, count)
        else:
            self.decode.append(f"Room<{p.value_type}> {p.local}({count});")
            returned = self.returned_count(p, count)
            self.bytes.append(f"{count} * sizeof({p.value_type})")
            self.lists += 1
            self.sets.append(
                f"results.set{self.field}(bytes_of({p.local}.data(), {returned} * sizeof({p.value_type})));")

    def returned_count(self, p, count):
        """The number of items that the driver has written: the returned count, if there is one."""
        counter = next((q for q in self.function.params if q.name == p.count), None)
        if counter is not None and counter.returns:
            return f"std::min<size_t>({count}, {counter.local})"
        return count

    def add_given_list(self, p, count):
        kind = f"wire::HandleKind::{p.item.kind}"
        self.decode.append(f"incoming.expect(({self.get}).size() == {count});")
        self.decode.append(f"Room<{p.value_type}> {p.local}({count});")
        self.decode.append(f"std::vector<uint64_t> {p.local}_given;")
        returned = self.returned_count(p, count)
        self.after.append(f"{p.local}_given = incoming.give_all({kind}, {self.get}, {p.local}.data(), {returned});")
        self.bytes.append(f"{count} * sizeof(uint64_t)")
        self.lists += 1
        self.sets.append(f"set_words(results.init{self.field}({p.local}_given.size()), {p.local}_given);")

    def text(self):
        f = self.function
        posted = "true" if f.cls == "posted" else "false"
        uses_params = any("params." in line for line in self.decode + self.after + self.always + self.args)
        lines = [f"Incoming incoming(replay, call, {posted});"]
        if uses_params:
            lines.append(f"auto params = call.message.getRoot<schema::{f.pascal}Params>();")
        lines += self.decode
        lines.append(f"auto function = replay.driver().{f.name};")
        lines.append("CUresult result = incoming.ready(function != nullptr);")
        if f.adds_sync_duties:
            lines.append("if (!result) replay.sync_duties().note();")
        lines.append(f"if (!result) result = function({', '.join(self.args)});")
        if self.after:
            lines.append("if (!result) {")
            lines += ["  " + line for line in self.after]
            lines.append("}")
        lines += self.always
        if f.has_results:
            data = " + ".join(self.bytes) or "0"
            lines.append(f"ReplyMessage<schema::{f.results_struct}> reply({data}, {self.lists});")
            lines.append("{" if f.results_always else "if (!result) {")
            lines.append("  auto results = reply.results();")
            lines += ["  " + line for line in self.sets]
            lines.append("}")
            lines.append("incoming.reply(reply.message(), reply.results(), result);")
        else:
            lines.append("incoming.finish(result);")
        return f"void replay_{f.name}(Replay& replay, Call& call) {{\n{block(lines)}}}\n"


def generated_functions(family):
    return [f for f in family.forwarded if f.server == "generated"]


def replay_source(family):
    functions = "\n".join(since(f.since, Server(f).text()) for f in generated_functions(family))
    structures = '#include "server/structures.hpp"\n' if family.has_structures else ""
    return f"""{banner(family.name + ".toml")}
#include "schema/api_{family.name}.capnp.h"
#include "server/driver_table.hpp"
#include "server/replay/call/generated_support.hpp"
#include "server/replay_functions.hpp"
{structures}
namespace gpuwire::server::generated {{

{functions}
}}  // namespace gpuwire::server::generated
"""


def replay_functions_header(api):
    declarations = "".join(
        since(f.since, f"void replay_{f.name}(Replay& replay, Call& call);\n") for family in api.families
        for f in generated_functions(family))
    return f"""{banner()}#pragma once

#include "server/replay/replay.hpp"

namespace gpuwire::server::generated {{

{declarations}
}}  // namespace gpuwire::server::generated
"""


def custom_header(api):
    declarations = "".join(
        since(f.since, f"void {f.name}(Replay& replay, Call& call);\n") for f in api.functions
        if f.travels and f.server == "hand")
    return f"""{banner()}// Calls that are replayed by hand-written functions: server/replay/*.cpp define these. Messages: schema/api_<family>.capnp.
#pragma once

#include "cuda_names.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server::custom {{

{declarations}
}}  // namespace gpuwire::server::custom
"""


def replay_table_source(api):
    entries = {}
    for f in api.functions:
        if f.travels:
            target = f"custom::{f.name}" if f.server == "hand" else f"generated::replay_{f.name}"
            entry = f'{{&{target}, "{f.name}", {"true" if f.cls == "posted" else "false"}}}'
            entries[f.ordinal] = since(f.since, f"    table[{f.ordinal - FIRST_ORDINAL}] = {entry};\n")
    last = max(entries, default=FIRST_ORDINAL - 1)
    assignments = "".join(entry for _, entry in sorted(entries.items()))
    return f"""{banner()}#include <array>

#include "server/custom.hpp"
#include "server/replay_functions.hpp"

namespace gpuwire::server {{

namespace {{

constexpr size_t kEntries = {last + 1 - FIRST_ORDINAL};

constexpr std::array<ReplayEntry, kEntries> make_table() {{
  std::array<ReplayEntry, kEntries> table{{}};
{assignments.replace("    table", "  table")}  return table;
}}

constexpr std::array<ReplayEntry, kEntries> kTable = make_table();

}}  // namespace

std::span<const ReplayEntry> generated_replay_table() {{ return kTable; }}

}}  // namespace gpuwire::server
"""
