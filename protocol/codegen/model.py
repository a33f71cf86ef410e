"""Reads protocol/api/*.toml into the objects that all emitters use. No code here treats a function by its name."""

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from description import DescriptionError
from kinds import HANDLES, SCALARS
from session_model import SessionDescription, read_session

FIRST_ORDINAL = 1000
ORDINAL_MAX = 4096
CLASSES = ("posted", "called", "local")
NEEDS = ("context", "living_context", "context_if_any", "initialised", "process", "nothing")
# The same for hand-written functions: the context of an object, with the kind of the parameter that is the object.
NEEDS_OF_OBJECTS = {"stream": "stream", "event": "event"}
# The kinds of parameters that name a context (context_of).
NAMES_CONTEXT = ("func", "module", "stream", "deviceptr")
WORK = ("", "compute", "transfer")
# A call's effect on the gate, and the kind of the parameter that the effect refers to.
GATE_EFFECTS = {
    "": "", "begins_capture": "stream", "ends_capture": "stream", "enters_context": "context",
    "ends_context": "context", "ends_primary": "device", "ends_green": "green_context", "ends_stream": "stream"
}

# A call's effect on memory that the server charges to a tenant, and whether the ledger wraps the call for it
# (server/ledger/worker/wrap_*.cpp).
CHARGES = {
    "takes": (True, "takes memory of a device or of the server: charged before the driver is called"),
    "frames": (True, "a kernel's local memory and its library's place are charged before its first launch or node"),
    "places": (True, "gives a library a place in a context at its first use there, which is charged before"),
    "gives_back": (True, "what was charged is given back"),
    "follows": (True, "not charged itself; decides how long, to whom, or as what other memory is charged"),
    "settles": (True, "finds work done: what pools have given back since is seen"),
    "shows": (True, "tells the tenant's figures"),
    "asks": (False, "asks, and changes nothing"),
    "work": (False, "gives work to a stream, or waits for it; the memory that it uses is there"),
    "managed": (False, "about managed memory, which is charged in full where it is made"),
    "setting": (False, "sets something; takes nothing"),
    "pools": (False, "which pool is used next, and pointers into pools; pools are charged by what they have reserved"),
    "addresses": (False, "addresses without memory behind them"),
    "multicast": (False, "an object without memory of its own; what is bound to it is charged where it is made"),
    "shared": (False, "closes or opens what another session made and is charged for"),
    "objects": (
        False, "a small object in memory that the driver keeps for a context and that the context's charge covers; "
        "their number in a session is bounded (wire/limits.hpp)"
    ),
    "parts": (False, "a part of a loaded module, which was charged in full when it was loaded"),
    "capture": (
        False, "begins or steers a capture; what it makes is charged when it ends, allocations when they are made"
    ),
    "graph": (False, "changes a graph without making it larger"),
    "linker": (False, "works in host memory, which the replay charges; its result is charged when it is loaded"),
    "files": (False, "names a file of the server; the replay never calls it"),
    "partitions": (
        False, "divides the multiprocessors of a primary context, which is charged; memory taken in a part is charged "
        "like all other"
    ),
    "legacy": (False, "counts holders of a context on the client; the replay never calls it"),
    "staged": (
        False, "kept on the client until its launch, which comes as a launch of its own; the replay never calls it"),
}

# The oldest toolkit whose headers generated code supports. `since` is not needed for older versions.
OLDEST_TOOLKIT = 11080


def parse_version(text, where):
    """The CUDA_VERSION of a toolkit such as "12.4"; 0 if the text is empty."""
    if not text:
        return 0
    match = re.fullmatch(r"(\d+)\.(\d)", text)
    if not match:
        raise DescriptionError(f"{where}: since: '{text}' is no version of a toolkit")
    version = int(match[1]) * 1000 + int(match[2]) * 10
    if version <= OLDEST_TOOLKIT:
        raise DescriptionError(f"{where}: since: every toolkit that is supported has it")
    return version


# The result of a call with an invalid handle: for these kinds cuda.h lists only CUDA_ERROR_INVALID_VALUE, and for
# others CUDA_ERROR_INVALID_HANDLE.
UNKNOWN_HANDLE_ERRORS = {
    "context": "CUDA_ERROR_INVALID_CONTEXT",
    "green_context": "CUDA_ERROR_INVALID_CONTEXT",
    **dict.fromkeys(
        ("graph", "graph_node", "graph_exec", "user_object", "memory_pool", "memory_allocation"),
        "CUDA_ERROR_INVALID_VALUE",
    ),
}

# Types that cuda.h declares only for the driver itself. Functions with them are exported, but not looked up in a
# driver.
OLD_ABI_TYPES = re.compile(
    r"\b(CUdeviceptr_v1|CUDA_MEMCPY2D_v1|CUDA_MEMCPY3D_v1|CUDA_ARRAY_DESCRIPTOR_v1|CUDA_ARRAY3D_DESCRIPTOR_v1)\b"
)

PREFIXES = ("out", "inout", "new", "given", "destroy", "opt", "nonconst", "nonnull")
# A call's effect on the client's record of the completion of an event or a stream that it receives. Every event has one
# of these words; a stream has work after the call unless it is examined.
KNOWLEDGE = ("recorded", "awaited", "examined", "foreign")
# Names that generated functions use themselves.
RESERVED = {
    "result", "deferred", "caller", "replay", "call", "params", "sequence", "incoming", "function", "reply", "results",
    "error", "sent", "on", "owner", "refused"
}


@dataclass
class Param:
    name: str
    text: str
    direction: str = "in"  # in, out, inout, new, given, destroy
    opt: bool = False
    nonconst: bool = False
    nonnull: bool = False
    knowledge: str = ""  # one of KNOWLEDGE
    # A key of SCALARS or HANDLES, or: enum value struct byval list (array:KIND[count]) bytes by_attribute string host
    kind: str = ""
    # The C type of enum, value, struct, byval or host; for a list, its items' type.
    type: str = ""
    item: "Param | None" = None  # of a list
    structure: "Structure | None" = None  # of a struct, byval or list item that is more than plain data
    # A C expression over parameter names: the items of a list, the bytes of `bytes`, or the attribute of by_attribute.
    count: str = ""

    @property
    def local(self):
        return self.name + "_" if self.name in RESERVED else self.name

    @property
    def is_handle(self):
        return self.kind in HANDLES

    @property
    def unknown_error(self):
        """The call's result for an unknown handle."""
        return UNKNOWN_HANDLE_ERRORS.get(self.kind, "CUDA_ERROR_INVALID_HANDLE")

    @property
    def sends(self):
        """Whether a part of it is sent to the server."""
        return self.kind != "host" and self.direction != "out" or (self.direction == "out" and self.kind == "list"
                                                                   and self.opt)

    @property
    def returns(self):
        return self.kind != "host" and self.direction in ("out", "inout", "given")

    @property
    def is_pointer(self):
        """Whether the C parameter is a pointer to the described value."""
        return self.direction in ("out", "inout", "new", "given") or self.kind in ("struct", "list", "bytes",
                                                                                   "by_attribute", "string")

    @property
    def count_names(self):
        return re.findall(r"[A-Za-z_]\w*", self.count)

    @property
    def deep(self):
        """Whether it is a structure that the server has to translate."""
        return self.structure is not None and not self.structure.plain_on_server

    @property
    def translated(self):
        """Whether it is a structure that only the client translates, so that it is plain data for the server."""
        return self.structure is not None and self.structure.plain_on_server

    @property
    def value_type(self):
        """The C type of one value, without the pointer."""
        if self.kind in SCALARS:
            return SCALARS[self.kind][0]
        if self.kind in HANDLES:
            return HANDLES[self.kind]
        if self.kind == "list":
            return self.item.value_type
        return self.type

    @property
    def c_type(self):
        if self.kind == "host":
            return self.type
        const = "" if self.nonconst or self.direction != "in" else "const "
        if self.kind == "string":
            return "const char*"
        if self.kind in ("bytes", "by_attribute"):
            return const + "void*"
        if self.kind in ("struct", "list"):
            return const + self.value_type + "*"
        return self.value_type + ("*" if self.is_pointer else "")


@dataclass
class Function:
    name: str
    family: str
    params: list
    ordinal: int | None = None
    cls: str = "local"
    needs: str = "context"
    client: str = "generated"
    server: str = "generated"
    unsupported: str = ""
    same_as: str = ""
    via: str = ""
    null_stream: bool = False
    results_always: bool = False
    unsafe_in_capture: bool | str = False  # "handle_first": an invalid handle is the error
    fault_before_capture: bool = False
    before_fault: list = field(default_factory=list)  # names of the parameters that are checked before the fault
    context_of: str = ""  # the parameter in whose context the call is made if no context is current
    known_flags: str = ""  # a C expression: other bits of the parameter `flags` are refused first
    enters: str = ""  # why a hand-written function enters by itself
    returns_earlier_errors: bool = True
    releases_cached_memory: bool = False
    waits_for_work: bool = False
    adds_sync_duties: bool = False
    in_halves: bool = False
    records_foreign: bool = False
    gives_work: str = ""
    work_key: list = field(default_factory=list)  # C expressions over parameter names
    work_bytes: str = ""
    work_stream: str = ""
    gate_effect: str = ""
    charges: str = ""
    since: int = 0  # the CUDA_VERSION of the first toolkit whose headers have it; 0: all have it
    variants: list = field(default_factory=list)
    target: "Function | None" = None  # of same_as and via

    @property
    def travels(self):
        return self.ordinal is not None

    @property
    def is_hand(self):
        return self.client == "hand"

    @property
    def is_entered(self):
        """Whether the generated prologue makes a Caller, or a call about an object."""
        return not self.enters and self.needs not in ("process", "nothing")

    @property
    def object_param(self):
        """The parameter in whose context a hand-written function is entered, if that is not the current context."""
        kind = NEEDS_OF_OBJECTS.get(self.needs)
        return next((p for p in self.params if p.kind == kind and p.direction in ("in", "destroy")), None)

    @property
    def has_epilogue(self):
        """Whether a success of a hand-written function becomes the error of an earlier posted call."""
        return self.is_entered and self.cls != "local" and self.returns_earlier_errors

    @property
    def symbols(self):
        return [self.name] + [f"{self.name}_{v}" for v in self.variants]

    @property
    def pascal(self):
        return "".join(part[:1].upper() + part[1:] for part in self.name.split("_"))

    @property
    def is_old_abi(self):
        return any(OLD_ABI_TYPES.search(p.c_type) for p in self.params)

    @property
    def has_results(self):
        return any(p.returns for p in self.params)

    @property
    def stream_param(self):
        return next((p for p in self.params if p.kind == "stream" and p.direction == "in"), None)

    @property
    def gives_stream_work(self):
        """Whether the stream may have work after the call."""
        return self.stream_param is not None and self.stream_param.knowledge != "examined"

    @property
    def sends_to_stream(self):
        """Whether a stream is sent to the server, as an argument or inside one."""
        return self.stream_param is not None or any(p.structure and p.sends and p.structure.names_stream
                                                    for p in self.params)

    @property
    def takes_per_thread(self):
        return bool(self.variants)

    @property
    def uses_per_thread(self):
        """Whether there is a stream that the per-thread forms change."""
        return self.takes_per_thread and any(p.kind == "stream" or p.structure for p in self.params)

    @property
    def results_struct(self):
        return self.pascal + "Results" if self.has_results else "Result"

    def param(self, name):
        return next(p for p in self.params if p.name == name)


@dataclass
class Member:
    """A field of a structure that must be translated: a handle or device (kind), a list (type and count) or a structure
    (type)."""

    path: str
    kind: str = ""
    type: str = ""
    count: str = ""
    opt: bool = False
    knowledge: str = ""  # one of KNOWLEDGE
    condition: str = ""
    since: int = 0


@dataclass
class Refusal:
    """A condition under which a structure does not travel."""

    condition: str
    since: int = 0


@dataclass
class Structure:
    name: str
    handles: list
    lists: list
    parts: list
    refuse: list
    clear: list
    since: int = 0
    plain_on_server: bool = False  # only contains device numbers, which the client translates


    @property
    def names_stream(self):
        return any(member.kind == "stream" for member in self.handles)


@dataclass
class Family:
    name: str
    title: str
    functions: list

    @property
    def forwarded(self):
        return [f for f in self.functions if f.travels]

    @property
    def has_structures(self):
        return any(p.structure for f in self.forwarded for p in f.params)


@dataclass
class Api:
    families: list
    structures: dict  # name -> Structure
    session: SessionDescription

    @property
    def functions(self):
        return [f for family in self.families for f in family.functions]

    @property
    def symbols(self):
        return sorted(s for f in self.functions for s in f.symbols)

    @property
    def since(self):
        """Returns {symbol: the CUDA_VERSION of the first toolkit that has it}."""
        return {s: f.since for f in self.functions for s in f.symbols}


def field_name(name):
    """The Cap'n Proto name of a parameter: camelCase with a small first letter."""
    parts = name.split("_")
    joined = parts[0] + "".join(p[:1].upper() + p[1:] for p in parts[1:])
    joined = joined[:1].lower() + joined[1:]
    return joined + "Value" if joined in ("result", "deferred") else joined


def accessor(name):
    camel = field_name(name)
    return camel[:1].upper() + camel[1:]


def parse_param(text, where):
    name, _, rest = text.partition(":")
    name, rest = name.strip(), rest.strip()
    param = Param(name=name, text=rest)
    words = rest.split(" ")
    while len(words) > 1 and words[0] in PREFIXES + KNOWLEDGE:
        word = words.pop(0)
        if word in KNOWLEDGE:
            param.knowledge = word
        elif word == "opt":
            param.opt = True
        elif word == "nonconst":
            param.nonconst = True
        elif word == "nonnull":
            param.nonnull = True
        else:
            param.direction = word
    kind = " ".join(words)
    counted = re.fullmatch(r"(.*)\[([^\]]*)\]", kind)
    if counted:
        kind, param.count = counted.group(1), counted.group(2)
    head, _, tail = kind.partition(":")
    if head == "array" and tail:
        param.kind, param.item = "list", parse_param("item:" + tail, where)
        if not param.count:
            raise DescriptionError(f"{where}: {name}: an array needs a count")
    elif head in ("enum", "value", "struct", "byval"):
        param.kind, param.type = head, tail
    elif head == "host":
        param.kind, param.type = "host", tail or "void*"
    elif head in SCALARS or head in HANDLES or head in ("bytes", "by_attribute", "string"):
        param.kind = head
    else:
        raise DescriptionError(f"{where}: {name}: unknown kind '{kind}'")
    return param


def check_knowledge(kind, direction, knowledge, where):
    """Checks that every event has a word for the call's effect on the client's record."""
    if kind == "event" and direction == "in":
        good = bool(knowledge)
    elif kind == "stream" and direction == "in":
        good = knowledge in ("", "examined")
    else:
        good = not knowledge
    if not good:
        raise DescriptionError(f"{where}: an event that is given is one of {KNOWLEDGE}, a stream may be examined")


FUNCTION_KEYS = {
    "ordinal", "class", "params", "needs", "client", "server", "unsupported", "variants", "same_as", "via",
    "null_stream", "since", "results_always", "unsafe_in_capture", "fault_before_capture", "before_fault",
    "context_of", "known_flags", "enters", "returns_earlier_errors", "releases_cached_memory", "waits_for_work",
    "adds_sync_duties", "in_halves", "records_foreign", "gives_work", "work_key", "work_bytes", "work_stream",
    "gate_effect", "charges",
}


def parse_function(name, table, family):
    where = f"{family}.toml: {name}"
    unknown = set(table) - FUNCTION_KEYS
    if unknown:
        raise DescriptionError(f"{where}: unknown keys {sorted(unknown)}")
    function = Function(
        name=name,
        family=family,
        params=[parse_param(text, where) for text in table["params"]],
        ordinal=table.get("ordinal"),
        cls=table.get("class", "local"),
        needs=table.get("needs", "context"),
        client=table.get("client", "generated"),
        server=table.get("server", "generated"),
        unsupported=table.get("unsupported", ""),
        same_as=table.get("same_as", ""),
        via=table.get("via", ""),
        null_stream=table.get("null_stream", False),
        results_always=table.get("results_always", False),
        unsafe_in_capture=table.get("unsafe_in_capture", False),
        fault_before_capture=table.get("fault_before_capture", False),
        before_fault=table.get("before_fault", []),
        context_of=table.get("context_of", ""),
        known_flags=table.get("known_flags", ""),
        enters=table.get("enters", ""),
        returns_earlier_errors=table.get("returns_earlier_errors", True),
        releases_cached_memory=table.get("releases_cached_memory", False),
        waits_for_work=table.get("waits_for_work", False),
        adds_sync_duties=table.get("adds_sync_duties", False),
        in_halves=table.get("in_halves", False),
        records_foreign=table.get("records_foreign", False),
        gives_work=table.get("gives_work", ""),
        work_key=table.get("work_key", []),
        work_bytes=table.get("work_bytes", ""),
        work_stream=table.get("work_stream", ""),
        gate_effect=table.get("gate_effect", ""),
        charges=table.get("charges", ""),
        since=parse_version(table.get("since", ""), where),
        variants=table.get("variants", []),
    )
    check_function(function, table, where)
    return function


def check_function(function, table, where):
    def demand(condition, what):
        if not condition:
            raise DescriptionError(f"{where}: {what}")

    demand(
        sum(key in table for key in ("class", "unsupported", "same_as", "via")) == 1,
        "exactly one of class, unsupported, same_as, via")
    demand(function.cls in CLASSES, "class")
    demand(function.needs in NEEDS or function.is_hand and function.object_param, "needs")
    demand(function.client in ("generated", "hand"), "client")
    demand(function.server in ("generated", "hand", "none"), "server")
    demand(set(function.variants) <= {"ptsz", "ptds"}, "variants")
    demand(not function.charges or function.charges in CHARGES, "charges")
    if "class" in table and function.server != "none":
        demand(function.travels, "what travels needs an ordinal")
        demand(function.cls != "local", "what travels is not local")
        demand(FIRST_ORDINAL <= function.ordinal < ORDINAL_MAX, "ordinal out of range")
        demand(function.needs not in ("process", "nothing"), "what travels needs a session")
        demand(function.cls == "called" or not function.has_results, "a posted call has no results")
    else:
        demand(not function.travels, "an ordinal is for what travels")
    if "class" in table and function.server == "none":
        demand(function.is_hand, "what is never sent is written by hand on the client")
    demand(not function.enters or function.is_hand and "needs" not in table,
           "enters is for hand-written functions, and takes the place of needs")
    demand(not function.before_fault or function.is_entered and function.needs in ("context", "context_if_any",
                                                                                   *NEEDS_OF_OBJECTS),
           "before_fault is for what is entered and needs a context that has not failed")
    demand(function.needs != "context_if_any" or function.is_hand,
           "context_if_any is for hand-written functions, which refuse a missing context themselves")
    demand(not function.context_of or function.is_entered and function.needs == "context" and any(
        p.name == function.context_of and p.kind in NAMES_CONTEXT and p.direction == "in" for p in function.params),
           f"context_of is a parameter of a function that needs a context, of one of the kinds {NAMES_CONTEXT}")
    names = {p.name for p in function.params if p.is_handle or p.is_pointer or p.kind in ("host", "deviceptr")}
    named = {name for one in function.before_fault for name in ([one] if isinstance(one, str) else one)}
    demand(named <= names, "before_fault is a list of handles, pointers and addresses, or of lists of them")
    demand(not function.known_flags or function.is_hand and any(p.name == "flags" for p in function.params),
           "known_flags is for hand-written functions with a parameter flags")
    demand(function.returns_earlier_errors or function.is_hand and function.is_entered and function.cls != "local",
           "returns_earlier_errors is for hand-written functions that are entered and not local")
    demand(not function.fault_before_capture or function.unsafe_in_capture,
           "fault_before_capture is for what a capture forbids")
    demand(not function.adds_sync_duties or function.travels and function.server == "generated",
           "adds_sync_duties is for what is replayed by generated functions")
    demand(not function.records_foreign or function.travels and function.cls == "posted",
           "records_foreign is for what is posted")
    demand(function.gives_work in WORK, "gives_work")
    demand(function.gate_effect in GATE_EFFECTS and not (function.gate_effect and function.gives_work), "gate_effect")
    if function.in_halves:
        demand(function.cls == "called" and not function.takes_per_thread and not function.releases_cached_memory,
               "in_halves is for plain called functions")
        demand(all(p.direction == "in" or p.direction == "out" and not p.opt and not p.is_handle and
                   p.kind not in ("list", "bytes", "by_attribute", "host") for p in function.params),
               "in_halves: parameters are in, or values that are out")
    names = {p.name for p in function.params}
    for expression in [*function.work_key, function.work_bytes, function.work_stream]:
        demand(bool(function.gives_work) or not expression, "work_* describe what gives_work")
        demand({word for word in re.findall(r"(?<![>.\w])[A-Za-z_]\w*", expression)} <= names,
               f"'{expression}' is over unknown parameters")
    for p in function.params:
        if "class" in table:
            of_items = p.item if p.kind == "list" else p
            check_knowledge(of_items.kind, p.direction, of_items.knowledge, f"{where}: {p.name}")
        demand(set(p.count_names) <= names, f"{p.name}: count over unknown parameter")
        if function.travels and p.kind == "list" and p.item.is_handle:
            demand(p.direction in ("in", "given"), f"{p.name}: an array of handles is in or given")


def parse_member(text, where):
    match = re.fullmatch(
        rf"([\w.]+): (opt )?(?:({'|'.join(KNOWLEDGE)}) )?(\w+)(?:\[([\w.]+)\])?(?: if (.*?))?(?: since (\S+))?", text)
    if not match:
        raise DescriptionError(f"{where}: cannot read '{text}'")
    path, opt, knowledge, what, count, condition, first = match.groups()
    check_knowledge(what, "in", knowledge or "", f"{where}: {path}")
    others = {"condition": condition or "", "since": parse_version(first, where)}
    if count:
        return Member(path, type=what, count=count, **others)
    if what in HANDLES or what == "device":
        return Member(path, kind=what, opt=bool(opt), knowledge=knowledge or "", **others)
    return Member(path, type=what, **others)


def parse_refusal(text, where):
    condition, _, first = text.partition(" since ")
    return Refusal(condition, parse_version(first, where))


def read_structures(path):
    structures = {}
    for name, table in tomllib.loads(path.read_text()).items():
        where = f"{path.name}: {name}"
        members = {
            key: [parse_member(text, where) for text in table.get(key, [])] for key in ("handles", "lists", "parts")
        }
        refuse = [parse_refusal(text, where) for text in table.get("refuse", [])]
        first = parse_version(table.get("since", ""), where)
        structures[name] = Structure(name=name, refuse=refuse, clear=table.get("clear", []), since=first, **members)
    for structure in structures.values():
        for part in structure.parts:
            if part.type not in structures or structures[part.type].lists:
                raise DescriptionError(
                    f"{path.name}: {structure.name}: {part.path} is no structure of this file without lists")
    for structure in structures.values():
        structure.plain_on_server = is_plain_on_server(structure, structures)
    return structures


def is_plain_on_server(structure, structures):
    return (
        not structure.lists
        and not structure.refuse
        and not structure.clear
        and all(m.kind == "device" for m in structure.handles)
        and all(is_plain_on_server(structures[m.type], structures) for m in structure.parts)
    )


STRUCTURES = "structures.toml"
SESSION = "session.toml"


def read_api(folder):
    families = []
    structures = read_structures(Path(folder) / STRUCTURES)
    for path in sorted(Path(folder).glob("*.toml")):
        if path.name in (STRUCTURES, SESSION):
            continue
        text = path.read_text()
        title = text.splitlines()[0].lstrip("# ").strip()
        tables = tomllib.loads(text)
        functions = [parse_function(name, table, path.stem) for name, table in tables.items()]
        families.append(Family(path.stem, title, functions))
    api = Api(families, structures, read_session(Path(folder) / SESSION))
    for function in api.functions:
        for p in function.params:
            if not function.travels:
                continue
            p.structure = structures.get(p.item.type if p.kind == "list" else p.type)
            if (p.deep and p.kind != "struct" or p.translated and p.direction == "inout"
                    or p.structure and p.kind == "list" and p.direction != "in"):
                raise DescriptionError(f"{function.name}: {p.name}: this structure cannot travel this way")
    check_api(api)
    return api


def check_api(api):
    by_name, ordinals = {}, {}
    for function in api.functions:
        if function.name in by_name:
            raise DescriptionError(f"{function.name} is described twice")
        by_name[function.name] = function
        if function.travels:
            if function.ordinal in ordinals:
                raise DescriptionError(
                    f"{function.name}: ordinal {function.ordinal} belongs to {ordinals[function.ordinal]}")
            ordinals[function.ordinal] = function.name
    for function in api.functions:
        other = function.same_as or function.via
        if not other:
            continue
        target = by_name.get(other)
        if target is None or target.unsupported or target.same_as:
            raise DescriptionError(f"{function.name}: stands for {other}, which is not there")
        expected = [p.c_type for p in target.params]
        if function.via:
            if not target.travels or (target.is_hand and not target.variants) or expected[-1] != "CUstream":
                raise DescriptionError(
                    f"{function.name}: via needs a function with a stream at its end, and with variants if it is"
                    " written by hand"
                )
            expected = expected[:-1]
        if [p.c_type for p in function.params] != expected:
            raise DescriptionError(f"{function.name}: other parameters than {other}")
        function.target = target
