"""generated/{client,server}/structures.hpp: the translation of structures that contain handles and lists."""

import re

from text import banner, since


def condition(text, value):
    """The description's `type == NAME` as C++, for an object that may contain any bits."""
    match = re.fullmatch(r"([\w.]+) == (\w+)", text)
    if not match:
        raise ValueError(f"structures.toml: cannot read condition '{text}'")
    return f"holds({value}.{match.group(1)}, {match.group(2)})"


def guarded(member, value, statement):
    if_met = f"if ({condition(member.condition, value)}) " if member.condition else ""
    return since(member.since, f"  {if_met}{{\n    {statement}\n  }}\n")


# --- client
# ---------------------------------------------------------------------------------------------------------------------


def client_handle(member):
    field = f"value.{member.path}"
    if member.kind == "stream":
        return f"if (CUresult error = stream_to_wire(caller, {field}, per_thread)) return error;"
    if member.kind == "device":
        return f"if (CUresult error = device_to_wire({field})) return error;"
    foreign = f"\n    hand_over_event(word({field}));" if member.knowledge == "foreign" else ""
    return (
        f"if (CUresult error = check_handle(wire::HandleKind::{member.kind}, word({field}),"
        f" {'true' if member.opt else 'false'})) return error;{foreign}"
    )


def client_translate(structure):
    body = "".join(
        since(r.since, f"  if ({condition(r.condition, 'value')}) return CUDA_ERROR_NOT_SUPPORTED;\n")
        for r in structure.refuse)
    body += "".join(guarded(m, "value", client_handle(m)) for m in structure.handles)
    body += "".join(
        guarded(m, "value", f"if (CUresult error = to_wire(caller, value.{m.path}, per_thread)) return error;")
        for m in structure.parts)
    return (
        f"inline CUresult to_wire([[maybe_unused]] const Caller& caller, [[maybe_unused]] {structure.name}& value,"
        f" [[maybe_unused]] bool per_thread) {{\n{body}  return CUDA_SUCCESS;\n}}\n"
    )


def client_pack(structure, structures):
    body = ""
    for m in structure.lists:
        item = "structured" if m.type in structures else "plain"
        body += guarded(
            m,
            "value",
            (
                f"if (CUresult error = flat.append_{item}(caller, value.{m.path}, value.{m.count}, per_thread)) return"
                " error;"
            ),
        )
    return (
        f"inline CUresult pack(const Caller& caller, const {structure.name}& own, bool per_thread, Flat& flat) {{\n"
        f"  {structure.name} value;\n"
        f"  std::memcpy(&value, &own, sizeof value);\n"
        f"  if (CUresult error = to_wire(caller, value, per_thread)) return error;\n"
        f"  flat.begin(sizeof value);\n"
        f"{body}  flat.put(0, &value, sizeof value);\n"
        f"  return CUDA_SUCCESS;\n}}\n"
    )


def client_return(structure):
    devices = [m for m in structure.handles if m.kind == "device"]
    body = "".join(guarded(m, "value", f"value.{m.path} = program_device(value.{m.path});") for m in devices)
    body += "".join(guarded(m, "value", f"to_program(value.{m.path});") for m in structure.parts)
    return f"inline void to_program([[maybe_unused]] {structure.name}& value) {{\n{body}}}\n"


def client_keep(structure):
    body = "".join(guarded(m, "returned", f"returned.{m.path} = own.{m.path};") for m in structure.handles)
    body += "".join(
        guarded(m, "returned", f"returned.{m.path} = own.{m.path}; returned.{m.count} = own.{m.count};")
        for m in structure.lists)
    return (
        "// What an updated structure keeps of the caller's own: handles and pointers.\ninline void"
        f" keep_own([[maybe_unused]] {structure.name}& returned, [[maybe_unused]] const {structure.name}& own)"
        f" {{\n{body}}}\n"
    )


def client_header(api):
    names = api.structures
    translate = "".join(since(s.since, client_translate(s) + client_return(s)) for s in ordered(names))
    pack = "".join(
        since(s.since,
              client_pack(s, names) + client_keep(s)) for s in ordered(names) if not s.plain_on_server)
    return f"""{banner("structures.toml")}#pragma once

#include "client_stub/driver/state/call/flat.hpp"
#include "cuda_names.hpp"

namespace gpuwire::client {{

{translate}
{pack}
}}  // namespace gpuwire::client
"""


def ordered(structures):
    """The structures, each before those that contain it."""
    done, result = set(), []

    def visit(structure):
        if structure.name in done:
            return
        done.add(structure.name)
        for member in structure.parts + structure.lists:
            if member.type in structures:
                visit(structures[member.type])
        result.append(structure)

    for structure in structures.values():
        visit(structure)
    return result


# --- server ----------------------------------------------------------------------------------------------------------


def server_lookup(member):
    field = f"value.{member.path}"
    lookup = (
        f"stream(word({field}))"
        if member.kind == "stream"
        else f"handle(wire::HandleKind::{member.kind}, word({field}), {'true' if member.opt else 'false'})"
    )
    return f"{field} = from_word<decltype({field})>(incoming.{lookup});"


def server_give_back(member):
    field = f"value.{member.path}"
    return f"{field} = from_word<decltype({field})>(incoming.known(wire::HandleKind::{member.kind}, word({field})));"


def server_functions(structure, structures):
    refuse = "".join(
        since(r.since, f"  if ({condition(r.condition, 'value')}) incoming.fail(CUDA_ERROR_NOT_SUPPORTED);\n")
        for r in structure.refuse)
    known = [m for m in structure.handles if m.kind != "device"]
    inner = [m for m in structure.parts if not structures[m.type].plain_on_server]
    handles = "".join(guarded(m, "value", server_lookup(m)) for m in known)
    parts = "".join(guarded(m, "value", f"to_native(incoming, value.{m.path});") for m in inner)
    lists = ""
    for m in structure.lists:
        each = (
            f" for (size_t i = 0; i < value.{m.count}; ++i) to_native(incoming,"
            f" const_cast<{m.type}&>(value.{m.path}[i]));"
            if m.type in structures and not structures[m.type].plain_on_server
            else ""
        )
        lists += guarded(m, "value", f"value.{m.path} = flat.list<{m.type}>(incoming, value.{m.count});{each}")
    back = "".join(guarded(m, "value", server_give_back(m)) for m in known)
    back += "".join(guarded(m, "value", f"to_client(incoming, value.{m.path});") for m in inner)
    back += "".join(guarded(m, "value", f"value.{m.path} = nullptr; value.{m.count} = 0;") for m in structure.lists)
    back += "".join(f"  value.{path} = {{}};\n" for path in structure.clear)
    name = structure.name
    return (
        f"inline void to_native([[maybe_unused]] Incoming& incoming, [[maybe_unused]] {name}& value)"
        f" {{\n{refuse}{handles}{parts}}}\ninline void unpack(Incoming& incoming, Flat& flat, {name}& value) {{\n "
        f" flat.take(incoming, &value, sizeof value);\n{lists}  flat.end(incoming);\n  to_native(incoming,"
        f" value);\n}}\ninline void to_client([[maybe_unused]] Incoming& incoming, [[maybe_unused]] {name}& value)"
        f" {{\n{back}}}\n"
    )


def server_header(api):
    deep = [s for s in ordered(api.structures) if not s.plain_on_server]
    functions = "\n".join(since(s.since, server_functions(s, api.structures)) for s in deep)
    return f"""{banner("structures.toml")}// Structures out of a message: to_native() turns handles into the driver's, to_client() the other way, where lists are left out.
#pragma once

#include "cuda_names.hpp"
#include "server/replay/call/generated_support.hpp"

namespace gpuwire::server {{

{functions}
}}  // namespace gpuwire::server
"""
