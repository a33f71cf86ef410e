"""generated/client/: forward.hpp, custom.hpp, forward_<family>.cpp, exports_<family>.cpp, symbols.{hpp,cpp}."""

import re

from model import accessor
from text import arguments, banner, block, names, since


# --- forward
# ---------------------------------------------------------------------------------------------------------------------


def forward_extra(function, defaults):
    extra = []
    if function.takes_per_thread:
        used = defaults or function.uses_per_thread
        extra.append(("bool per_thread" if used else "bool") + (" = false" if defaults else ""))
    if function.cls == "posted":
        extra.append("uint64_t* sequence" + (" = nullptr" if defaults else ""))
    return extra


def forward_signature(function, defaults):
    own = [p.c_type if p.kind == "host" and not defaults else f"{p.c_type} {p.local}" for p in function.params]
    parameters = ", ".join(["const Caller& caller"] + own + forward_extra(function, defaults))
    return f"CUresult {function.name}({parameters})"


def half_signature(function, half):
    """The signature of begin_NAME(), which takes the inputs, or of finish_NAME(), which takes the outputs."""
    direction, sequence = {"begin": ("in", "uint64_t& sequence"), "finish": ("out", "uint64_t sequence")}[half]
    own = [f"{p.c_type} {p.local}" for p in function.params if p.direction == direction]
    parameters = [*own, sequence] if half == "begin" else [sequence, *own]
    return f"CUresult {half}_{function.name}({', '.join(['const Caller& caller', *parameters])})"


def forward_declarations(function):
    yield since(function.since, forward_signature(function, True) + ";\n")
    if function.in_halves:
        for half in ("begin", "finish"):
            yield since(function.since, half_signature(function, half) + ";\n")


def forward_header(api):
    declarations = []
    for family in api.families:
        if family.forwarded:
            declarations.append(f"\n// {family.name}\n")
            declarations += [line for f in family.forwarded for line in forward_declarations(f)]
    ordinals = [
        f"inline constexpr uint32_t {f.name} = {f.ordinal};\n" for family in api.families for f in family.forwarded
    ]
    return f"""{banner()}// One function per driver call that travels: checks the arguments and handles, sends, and for called ones waits. Handles are the client's.
// `per_thread`: the stream argument means what it means in the _ptds and _ptsz forms. `sequence`: of the posted frame.
// begin_ sends the call and does not wait, finish_ waits for the reply of that: several that are begun before the first is finished are one round trip.
#pragma once

#include <cstdint>

#include "client_stub/driver/state/call/caller.hpp"
#include "cuda_names.hpp"

namespace gpuwire::client::forward {{
{"".join(declarations)}
}}  // namespace gpuwire::client::forward

// Their numbers on the wire.
namespace gpuwire::client::forward_ordinal {{

{"".join(ordinals)}
}}  // namespace gpuwire::client::forward_ordinal
"""


def count_expression(function, p):
    """The count as an expression of the C parameters."""
    return re.sub(r"[A-Za-z_]\w*", lambda m: dereferenced(function.param(m.group(0))), p.count)


def dereferenced(p):
    return f"*{p.local}" if p.is_pointer else p.local


def kind_name(p):
    return f"wire::HandleKind::{p.kind}"


NOTES_FOREIGN = "note_foreign_records(caller, sent);"


class Client:
    """Collects the pieces of one forward function."""

    def __init__(self, function):
        self.function = function
        self.checks, self.creates, self.bytes, self.sets, self.reads, self.always, self.after, self.failed = (
            [],
            [],
            [],
            [],
            [],
            [],
            [],
            [],
        )
        self.results_checks = []  # where the results go
        self.lists = 0
        self.looked_through = False  # the parameters were scanned for addresses of pinned memory
        described = [p for p in function.params if p.kind != "host"]
        # The stream is checked first: a call that captures forbid makes them invalid, whatever other errors the call
        # has.
        for p in described:
            if p.kind == "stream" and p.direction == "in":
                self.add_stream(p)
        if function.null_stream:
            self.declare_error()
            self.checks.append("resolve_stream(caller, nullptr, false, error);")
            self.checks.append("if (error) return error;")
        for p in described:
            # A list may be null if its count is 0, which is checked with the count.
            if p.is_pointer and not p.opt and p.kind not in ("list", "bytes"):
                to = self.results_checks if function.in_halves and p.direction == "out" else self.checks
                self.check(f"!{p.local}", "CUDA_ERROR_INVALID_VALUE", to)
        for p in described:
            self.add(p)

    def check(self, condition, error, to=None):
        (self.checks if to is None else to).append(f"if ({condition}) return {error};")

    def add(self, p):
        self.field = accessor(p.name)
        if p.kind == "list":
            self.add_list(p)
        elif p.kind == "bytes":
            self.add_bytes(p)
        elif p.kind == "by_attribute":
            self.add_by_attribute(p)
        elif p.kind == "struct" or p.kind == "byval":
            self.add_struct(p)
        elif p.kind == "string":
            self.checks.append(f"size_t {p.local}_bytes = strnlen({p.local}, wire::kNameBytesMax + 1);")
            self.check(f"{p.local}_bytes > wire::kNameBytesMax", "CUDA_ERROR_INVALID_VALUE")
            self.bytes.append(f"{p.local}_bytes + 1")
            self.lists += 1
            self.sets.append(f"params.set{self.field}(capnp::Text::Reader({p.local}, {p.local}_bytes));")
        elif p.is_handle:
            self.add_handle(p)
        else:
            self.add_scalar(p)

    def scan_words(self, p, data):
        """Makes the pinned memory in the parameters known to the device before the frame is sent."""
        look = f"note_addresses_in(caller, {data});"
        self.looked_through = True
        self.checks.append(f"if ({p.local}) {look}" if p.opt else look)

    def declare_error(self):
        if "CUresult error = CUDA_SUCCESS;" not in self.checks:
            self.checks.append("CUresult error = CUDA_SUCCESS;")

    def add_device(self, p):
        """Translates a device to the server's number. With `opt`, negative numbers (CU_DEVICE_CPU) stay unchanged."""
        self.declare_error()
        lookup = f"server_device({p.local}, error)"
        self.checks.append(f"int32_t {p.local}_wire = {f'{p.local} < 0 ? {p.local} : ' if p.opt else ''}{lookup};")
        self.checks.append("if (error) return error;")
        self.sets.append(f"params.set{self.field}({p.local}_wire);")

    def add_scalar(self, p):
        if p.kind == "device" and p.direction == "in":
            return self.add_device(p)
        wire = "int32_t" if p.kind == "enum" else ""
        value = dereferenced(p)
        if p.kind == "pointer":
            wire = "word"
        if p.kind == "deviceptr" and p.direction == "in":
            self.checks.append(f"note_address(caller, {p.local});")
        if p.direction in ("in", "inout"):
            if p.direction == "inout" and p.opt:
                value = f"{p.local} ? {value} : {p.value_type}{{}}"
            self.sets.append(
                f"params.set{self.field}({wire}({value}));" if wire else f"params.set{self.field}({value});")
        if p.returns:
            guard = f"if ({p.local}) " if p.opt else ""
            self.reads.append(f"{guard}*{p.local} = from_word<{p.value_type}>(results.get{self.field}());")

    def add_handle(self, p):
        if p.direction == "out":
            raise ValueError(f"{self.function.name}: {p.name}: an out handle is new or given")
        wire = f"{p.local}_wire"
        if p.direction in ("new", "given"):
            self.creates.append(f"uint64_t {wire} = create_handle(caller, {kind_name(p)});")
            self.creates.append(f"if (!{wire}) return CUDA_ERROR_OUT_OF_MEMORY;")
            self.sets.append(f"params.set{self.field}({wire});")
            guard = f"if ({p.local}) " if p.opt else ""
            always = p.direction == "given" and self.function.results_always
            after = self.always if always else self.after
            if not always:
                self.failed.append(f"forget_handle({kind_name(p)}, {wire});")
            if p.direction == "new":
                self.after.append(f"{guard}*{p.local} = from_word<{p.value_type}>({wire});")
            else:
                self.reads.append(f"{p.local}_given = results.get{self.field}();")
                self.creates.append(f"uint64_t {p.local}_given = 0;")
                # The client has no record of an event that only the driver knew.
                new = f" else hand_over_event({wire});" if p.kind == "event" else ""
                after.append(f"if ({p.local}_given != {wire}) forget_handle({kind_name(p)}, {wire});{new}")
                after.append(f"{guard}*{p.local} = from_word<{p.value_type}>({p.local}_given);")
            return
        if p.kind != "stream" or p.direction != "in":
            self.checks.append(f"uint64_t {wire} = word({p.local});")
            known = f"known_function({wire})" if p.kind == "func" else f"known_handle({kind_name(p)}, {wire})"
            optional = f"{wire} && " if p.opt else ""
            if p.nonnull:
                self.check(f"!{wire}", "CUDA_ERROR_INVALID_VALUE")
            self.check(f"{optional}!{known}", p.unknown_error)
            if p.knowledge == "foreign":
                self.checks.append(f"hand_over_event({wire});")
        self.sets.append(f"params.set{self.field}({wire});")
        if p.direction == "destroy":
            self.after.append(f"forget_handle({kind_name(p)}, {wire});")

    def add_stream(self, p):
        per_thread = "per_thread" if self.function.takes_per_thread else "false"
        self.declare_error()
        self.checks.append(f"uint64_t {p.local}_wire = resolve_stream(caller, {p.local}, {per_thread}, error);")
        self.checks.append("if (error) return error;")

    def add_structure(self, p):
        if p.direction in ("in", "inout"):
            pack = (
                f"if (CUresult packed = pack(caller, *{p.local}, {self.per_thread()}, {p.local}_flat)) return packed;"
            )
            self.checks.append(f"Flat {p.local}_flat;")
            self.checks.append(f"if ({p.local}) {{ {pack} }}" if p.opt else pack)
            self.scan_words(p, f"{p.local}_flat.view()")
            self.bytes.append(f"{p.local}_flat.bytes()")
            self.lists += 1
            guard = f"if ({p.local}) " if p.opt else ""
            self.sets.append(f"{guard}params.set{self.field}({p.local}_flat.data());")
        if p.returns:
            copy = (
                f"{p.value_type} returned; copy_exactly(results.get{self.field}(), &returned, sizeof returned);"
                " to_program(returned);"
            )
            keep = f" keep_own(returned, *{p.local});" if p.direction == "inout" else ""
            guard = f"if ({p.local}) " if p.opt else ""
            self.reads.append(f"{guard}{{ {copy}{keep} *{p.local} = returned; }}")

    def per_thread(self):
        return "per_thread" if self.function.uses_per_thread else "false"

    def add_struct(self, p):
        if p.deep:
            return self.add_structure(p)
        address = p.local if p.kind == "struct" else f"&{p.local}"
        if p.translated and p.direction == "in":
            translate = (
                f"std::memcpy(&{p.local}_wire, {address}, sizeof {p.local}_wire); if (CUresult bad = to_wire(caller,"
                f" {p.local}_wire, {self.per_thread()})) return bad;"
            )
            self.checks.append(f"{p.value_type} {p.local}_wire;")
            self.checks.append(f"if ({p.local}) {{ {translate} }}" if p.opt else translate)
            address = f"&{p.local}_wire"
        if p.direction in ("in", "inout"):
            self.scan_words(p, f"std::as_bytes(std::span({address}, 1))")
            self.bytes.append(f"sizeof({p.value_type})")
            self.lists += 1
            guard = f"if ({p.local}) " if p.opt else ""
            self.sets.append(f"{guard}params.set{self.field}(bytes_of({address}, sizeof({p.value_type})));")
        if p.returns:
            guard = f"if ({p.local}) " if p.opt else ""
            translate = f" to_program(*{p.local});" if p.translated else ""
            self.reads.append(
                f"{guard}{{ copy_exactly(results.get{self.field}(), {p.local}, sizeof({p.value_type}));{translate} }}")

    def add_by_attribute(self, p):
        attribute = self.function.param(p.count).local
        self.checks.append(f"uint32_t {p.local}_bytes = attribute_bytes({attribute});")
        self.check(f"!{p.local}_bytes", "CUDA_ERROR_INVALID_VALUE")
        if p.direction in ("in", "inout"):
            self.bytes.append(f"{p.local}_bytes")
            self.lists += 1
            self.sets.append(f"params.set{self.field}(bytes_of({p.local}, {p.local}_bytes));")
        if p.returns:
            self.reads.append(f"copy_exactly(results.get{self.field}(), {p.local}, {p.local}_bytes);")

    def add_bytes(self, p):
        count = count_expression(self.function, p)
        self.checks.append(f"size_t {p.local}_bytes = {count};")
        self.check(f"{p.local}_bytes > kDataBytesMax || ({p.local}_bytes && !{p.local})", "CUDA_ERROR_INVALID_VALUE")
        if p.direction in ("in", "inout"):
            self.bytes.append(f"{p.local}_bytes")
            self.lists += 1
            self.sets.append(f"params.set{self.field}(bytes_of({p.local}, {p.local}_bytes));")
        if p.returns:
            self.reads.append(f"copy_exactly(results.get{self.field}(), {p.local}, {p.local}_bytes);")

    def add_list(self, p):
        count = f"{p.local}_count"
        missing = f"{count} && !{p.local}"
        self.checks.append(f"size_t {count} = {count_expression(self.function, p)};")
        if p.opt:
            self.checks.append(f"if (!{p.local}) {count} = 0;")
            missing = ""
        size = "sizeof(uint64_t)" if p.item.is_handle else f"sizeof({p.value_type})"
        too_many = f"{count} > wire::kListItemsMax || {count} * {size} > kDataBytesMax"
        self.check(too_many + (f" || ({missing})" if missing else ""), "CUDA_ERROR_INVALID_VALUE")
        if p.item.is_handle:
            self.add_handle_list(p, count)
        elif p.direction == "in":
            self.bytes.append(f"{count} * {size}")
            self.lists += 1
            guard = f"if ({p.local}) " if p.opt else ""
            items = p.local
            if p.item.kind == "struct":
                self.scan_words(p, f"std::as_bytes(std::span({p.local}, {count}))")
            if p.translated:
                items = f"{p.local}_flat.data().begin()"
                self.checks.append(f"Flat {p.local}_flat;")
                self.checks.append(
                    f"if (CUresult bad = {p.local}_flat.append_translated(caller, {p.local}, {count},"
                    f" {self.per_thread()})) return bad;"
                )
            self.sets.append(f"{guard}params.set{self.field}(bytes_of({items}, {count} * {size}));")
        else:
            if p.opt:
                self.sets.append(f"params.set{self.field}Wanted({p.local} != nullptr);")
            self.reads.append(f"copy_at_most(results.get{self.field}(), {p.local}, {count} * {size});")

    def add_handle_list(self, p, count):
        kind = f"wire::HandleKind::{p.item.kind}"
        self.bytes.append(f"{count} * sizeof(uint64_t)")
        self.lists += 1
        guard = f"if ({p.local}) " if p.opt else ""
        if p.direction == "in":
            self.check(f"!known_handles({kind}, {p.local}, {count})", p.item.unknown_error)
            self.sets.append(f"{guard}set_handles(params.init{self.field}({count}), {p.local});")
            return
        self.creates.append(f"Candidates {p.local}_candidates({kind});")
        self.creates.append(f"if (!{p.local}_candidates.create(caller, {count})) return CUDA_ERROR_OUT_OF_MEMORY;")
        self.sets.append(f"{guard}set_handles(params.init{self.field}({count}), {p.local}_candidates.handles());")
        self.reads.append(f"{p.local}_candidates.take(results.get{self.field}(), {p.local});")

    def words(self):
        data = " + ".join(self.bytes) if self.bytes else "0"
        return f"message_words<schema::{self.function.pascal}Params>({data}, {self.lists})"

    def before(self):
        """The checks and preparations before the frame is sent."""
        f = self.function
        lines = [f"if (!server_knows(caller, {f.ordinal})) return CUDA_ERROR_NOT_SUPPORTED;"]
        lines += self.checks
        if f.waits_for_work:
            lines.append("if (CUresult failed = await_work(caller)) return failed;")
        if f.releases_cached_memory:
            lines.append("give_back_cached_memory(caller);")
        if f.sends_to_stream:
            lines.append("if (CUresult unsent = before_work(caller)) return unsent;")
        elif self.looked_through:
            lines.append("take_profiled_allocations(caller);")
        if self.lists > 1:
            lines.append(f"if ({self.words()} > wire::kMessageWordsMax) return CUDA_ERROR_INVALID_VALUE;")
        return lines + self.creates

    def common(self):
        return f"*caller.session, {self.function.ordinal}, caller.context, {self.words()}"

    def writer(self):
        # Noted before the frame is sent, so that a later notice about an event is not applied to an older record.
        if self.function.records_foreign and NOTES_FOREIGN not in self.sets:
            self.sets.append(NOTES_FOREIGN)
        builder = f"schema::{self.function.pascal}Params::Builder" + (" params" if self.sets else "")
        return f"[&]({builder}) {{ {' '.join(self.sets)} }}".replace("{  }", "{}")

    def reader(self, end):
        """The lines of the call's last argument, which reads the reply; `end` follows it."""
        f = self.function
        parameter = f"schema::{f.results_struct}::Reader" + (" results" if self.reads else "")
        if not self.reads:
            return [f"    [&]({parameter}) {{}}{end}"]
        guard = [] if f.results_always else ["      if (results.getResult()) return;"]
        return [f"    [&]({parameter}) {{", *guard, *("      " + read for read in self.reads), f"    }}{end}"]

    def halves(self):
        f = self.function
        begin = self.before() + [f"return begin_call<schema::{f.pascal}Params>({self.common()},",
                                 f"    {self.writer()}, sequence);"]
        finish = [f"return finish_call<schema::{f.results_struct}>(*caller.session, sequence,", *self.reader(");")]
        sent, filled = (", ".join(p.local for p in f.params if p.direction == way) for way in ("in", "out"))
        both = self.results_checks + [
            "uint64_t sequence = 0;",
            f"if (CUresult unsent = begin_{f.name}(caller, {sent}, sequence)) return unsent;",
            f"return finish_{f.name}(caller, sequence, {filled});",
        ]
        return "\n".join(f"{signature} {{\n{block(lines)}}}\n" for signature, lines in (
            (half_signature(f, "begin"), begin), (half_signature(f, "finish"), finish),
            (forward_signature(f, False), both)))

    def text(self):
        f = self.function
        if f.in_halves:
            return self.halves()
        lines = self.before()
        if f.cls == "posted":
            lines.append("uint64_t sent = 0;")
            lines.append(f"CUresult result = post<schema::{f.pascal}Params>({self.common()},")
            lines.append(f"    {self.writer()}, {{}}, &sent);")
        else:
            # Memory that could not be given back without a wait may suffice.
            begin, end = ("auto ask = [&] { return", " };") if f.releases_cached_memory else ("CUresult result =", "")
            lines.append(f"{begin} call<schema::{f.pascal}Params, schema::{f.results_struct}>({self.common()},")
            lines.append(f"    {self.writer()},")
            lines += self.reader(f");{end}")
            if f.releases_cached_memory:
                lines.append("CUresult result = ask();")
                lines.append("if (result == CUDA_ERROR_OUT_OF_MEMORY && free_cached_memory(caller)) result = ask();")
        lines += self.always
        if self.failed:
            lines.append("if (result) {")
            lines += ["  " + line for line in self.failed + ["return result;"]]
            lines.append("}")
        elif self.after or f.cls == "posted" or f.gives_stream_work:
            lines.append("if (result) return result;")
        lines += self.after
        # Work that the client waits for allocates and moves memory in stream order, but writes none of the program's
        # memory.
        sent = "sent" if f.cls == "posted" else "caller.session->last_sequence(), false"
        if f.gives_stream_work:
            lines.append(f"note_stream_work(caller, {f.stream_param.local}_wire, {sent});")
        elif f.cls == "posted" and f.null_stream:
            lines.append("note_stream_work(caller, wire::kStreamNull, sent);")
        if f.cls == "posted":
            lines.append("if (sequence) *sequence = sent;")
        lines.append("return result;")
        return f"{forward_signature(f, False)} {{\n{block(lines)}}}\n"


def forward_source(family):
    functions = "\n".join(since(f.since, Client(f).text()) for f in family.forwarded)
    structures = '#include "client/structures.hpp"\n' if family.has_structures else ""
    return f"""{banner(family.name + ".toml")}
#include "client/forward.hpp"

{structures}#include "client_stub/driver/state/call/generated_support.hpp"
#include "schema/api_{family.name}.capnp.h"
#include "schema/session.capnp.h"

namespace gpuwire::client::forward {{

{functions}
}}  // namespace gpuwire::client::forward
"""


# --- hand ------------------------------------------------------------------------------------------------------------


def first_handle(function):
    """The handle that is destroyed, else the first handle."""
    handles = [p for p in function.params if p.is_handle]
    return next((p for p in handles if p.direction == "destroy"), handles[0])


def is_known(p):
    word = f"uint64_t({p.local})"
    return f"known_function({word})" if p.kind == "func" else f"known_handle(gpuwire::{kind_name(p)}, {word})"


def permission(function):
    """The statements that refuse the call while a capture forbids it."""
    if not function.unsafe_in_capture:
        return []
    permitted = "permit_unless_failed" if function.fault_before_capture else "permit_unsafe_call"
    lines = [f"if (CUresult refused = {permitted}()) return refused;"]
    if function.unsafe_in_capture == "handle_first":
        handle = first_handle(function)
        lines.insert(0, f"if (!{is_known(handle)}) return {handle.unknown_error};")
    return lines


def mistake_before_fault(function):
    """The error of the parameters that are checked even in a context that has failed, as an expression."""
    text = "CUDA_SUCCESS"
    for name in reversed(function.before_fault):
        if not isinstance(name, str):
            absent = " && ".join(f"!{function.param(one).local}" for one in name)
            text = f"{absent} ? CUDA_ERROR_INVALID_VALUE : {text}"
            continue
        p = function.param(name)
        by_handle = p.is_handle and p.direction in ("in", "destroy") and not p.nonnull
        right, error = (is_known(p), p.unknown_error) if by_handle else (p.local, "CUDA_ERROR_INVALID_VALUE")
        text = f"!{right} ? {error} : {text}"
    return text


def entering(function):
    """The expression that finds the context of the call and its session."""
    if not function.context_of:
        return f"enter(Needs::{function.needs})"
    p = function.param(function.context_of)
    if not p.is_handle:
        return f"enter_context_at({p.local})"
    kind = "wire::HandleKind::function" if p.kind == "func" else kind_name(p)
    return f"enter_context_of(gpuwire::{kind}, uint64_t({p.local}))"


def entered(function, error):
    """The statement that ends a call whose context, or an argument that is checked before that, is wrong."""
    if not function.before_fault:
        return f"if ({error}) return {error};"
    return f"if (CUresult error = argument_first({error}, {mistake_before_fault(function)})) return error;"


# The object that the prologue makes for a hand-written function, by the function's `needs`: its type and its name.
MADE = {"stream": ("StreamCall", "on"), "event": ("EventCall", "on"), "process": ("Process", "owner"), "nothing": None}


def made_for(function):
    return None if function.enters else MADE.get(function.needs, ("Caller", "caller"))


def hand_signature(function):
    made = made_for(function)
    first = [f"const {made[0]}& {made[1]}"] if made else []
    own = [f"{p.c_type} {p.local}" for p in function.params]
    per_thread = ["bool per_thread"] if function.takes_per_thread else []
    return f"CUresult {function.name}({', '.join(first + own + per_thread)})"


def prologue(function):
    if function.enters:
        return ["if (!process()) return absent_process();"]
    if function.needs == "process":
        return ["const Process* owner = process();", "if (!owner) return absent_process();"]
    if function.object_param:
        of = [function.object_param.local]
        if function.needs == "stream":
            of.append("per_thread" if function.takes_per_thread else "false")
        return [f"const {MADE[function.needs][0]} on({', '.join(of)});", entered(function, "on.error")]
    if function.is_entered:
        return [f"const Caller caller = {entering(function)};", entered(function, "caller.error")]
    return []


def unknown_flags(function):
    """The statement that refuses unknown flags."""
    if not function.known_flags:
        return []
    return [f"if (flags & ~({function.known_flags})) return process() ? CUDA_ERROR_INVALID_VALUE : absent_process();"]


def custom_function(function):
    """What calls a hand-written function: the checks in front of it and behind it that all functions have."""
    f = function
    lines = unknown_flags(f) + permission(f) + prologue(f)
    if not lines:
        return f"using hand::{f.name};\n"
    made, flag = made_for(f), ["per_thread"] if f.takes_per_thread else []
    first = [f"*{made[1]}" if f.needs == "process" else made[1]] if made else []
    call = f"hand::{f.name}({', '.join(first + [p.local for p in f.params] + flag)})"
    if f.has_epilogue:
        call = f"leave({'on.' if f.object_param else ''}caller, {call})"
    extra = ["bool per_thread"] if f.takes_per_thread else []
    return f"inline CUresult {f.name}({arguments(f, extra)}) {{\n{block([*lines, f'return {call};'])}}}\n"


def custom_header(api):
    hand = {family.name: [f for f in family.functions if f.is_hand] for family in api.families}

    def of_families(text):
        return "".join(f"\n// {family}\n" + "".join(since(f.since, text(f)) for f in functions)
                       for family, functions in hand.items() if functions)

    declarations = of_families(lambda f: hand_signature(f) + ";\n")
    calls = of_families(custom_function)
    return f"""{banner()}// What is written by hand on the client: client_stub/driver/calls define the functions of `hand`, and those of `custom` call them. `per_thread`: called through the _ptds or _ptsz form.
#pragma once

#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/event_call.hpp"
#include "client_stub/driver/state/stream/stream_call.hpp"
#include "cuda_names.hpp"

// Behind the checks that the description of the API tells: with what these have made.
namespace gpuwire::client::hand {{
{declarations}
}}  // namespace gpuwire::client::hand

// With these checks.
namespace gpuwire::client::custom {{
{calls}
}}  // namespace gpuwire::client::custom
"""


# --- exports ---------------------------------------------------------------------------------------------------------


def trace_format(p):
    if p.is_pointer and p.kind != "string":
        return "memory"
    if p.is_pointer or p.kind == "host" and p.type.endswith("*"):
        return "string" if p.kind == "string" else "pointer"
    if p.kind in ("i32", "device", "enum"):
        return "signed_number"
    if p.kind in ("u32", "u64", "uint64", "size", "u8", "u16"):
        return "number"
    if p.kind == "f32":
        return "real"
    return "opaque" if p.kind == "byval" else "pointer"


def entry_body(function, per_thread):
    """The statements of the lambda for an exported function."""
    f = function.target if function.same_as else function
    values = names(function)
    flag = [per_thread] if f.takes_per_thread else []
    if f.unsupported:
        return "return CUDA_ERROR_NOT_SUPPORTED;"
    if f.via and f.target.is_hand:
        return f"return custom::{f.target.name}({names(function, ['nullptr', per_thread])});"
    if f.is_hand:
        return f"return custom::{f.name}({names(function, flag)});"
    checks = [f"Caller caller = {entering(f)};", entered(f, "caller.error"), *permission(f)]
    enter = " ".join(checks) + " "
    if f.via:
        values = names(function, ["nullptr", per_thread])
        return enter + f"return leave(caller, forward::{f.target.name}(caller, {values}));"
    values = ", ".join(["caller"] + [p.local for p in function.params] + flag)
    return enter + f"return leave(caller, forward::{f.name}({values}));"


def entry_class(function):
    f = function.target or function
    return "local" if f.unsupported else f.cls


def export(function, symbol):
    per_thread = "false" if symbol == function.name else "true"
    words = ", ".join(f"trace::word({p.local})" for p in function.params) or "0"
    count = len(function.params)
    unused = ""
    return (
        f"GPUWIRE_EXPORT CUresult CUDAAPI {symbol}({arguments(function)}) {{\n  const trace::Arguments<{max(count, 1)}>"
        f' arguments{{&trace_{function.name}, {{{words}}}}};{unused}\n  return run_entry("{symbol}",'
        f" CallClass::{entry_class(function)}, trace::print, &arguments, [&]() -> CUresult {{"
        f" {entry_body(function, per_thread)} }});\n}}\n"
    )


def trace_layout(function):
    items = ", ".join(f'{{"{p.name}", trace::Format::{trace_format(p)}}}' for p in function.params)
    if not items:
        return f"static constexpr trace::Layout trace_{function.name}{{nullptr, 0}};\n"
    return (
        f"static constexpr trace::Parameter parameters_{function.name}[] = {{{items}}};\n"
        f"static constexpr trace::Layout trace_{function.name}{{parameters_{function.name}, {len(function.params)}}};\n"
    )


def exports_source(family):
    layouts = "".join(since(f.since, trace_layout(f)) for f in family.functions)
    exports = "\n".join(since(f.since, export(f, symbol)) for f in family.functions for symbol in f.symbols)
    return f"""{banner(family.name + ".toml")}
// The header then declares every exported symbol under its own name, and the compiler compares each definition below with it.
#define __CUDA_API_VERSION_INTERNAL
#include "client/forward.hpp"
#include "client/custom.hpp"
#include "client/trace.hpp"
#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/calls/call/entry.hpp"

#define GPUWIRE_EXPORT extern "C" __attribute__((visibility("default")))

using namespace gpuwire::client;

{layouts}
{exports}"""


# --- symbols ---------------------------------------------------------------------------------------------------------


def symbols_header(api):
    return f"""{banner()}#pragma once

#include <span>

namespace gpuwire::client {{

struct ExportedSymbol {{
  const char* name;
  void* address;
}};

// Every exported function of the driver API, sorted by name.
std::span<const ExportedSymbol> exported_symbols();

}}  // namespace gpuwire::client
"""


def symbols_source(api):
    declarations = "".join(since(api.since[s], f"void gpuwire_symbol_{s}() __asm__(\"{s}\");\n") for s in api.symbols)
    rows = "".join(
        since(api.since[s], f'    {{"{s}", reinterpret_cast<void*>(&gpuwire_symbol_{s})}},\n') for s in api.symbols)
    return f"""{banner()}#include "client/symbols.hpp"

#include <cuda.h>

// Only addresses are taken, so the parameters do not matter; the names are given to the assembler, out of reach of cuda.h's macros.
extern "C" {{
{declarations}}}

namespace gpuwire::client {{

std::span<const ExportedSymbol> exported_symbols() {{
  static const ExportedSymbol kSymbols[] = {{
{rows}  }};
  return kSymbols;
}}

}}  // namespace gpuwire::client
"""
