"""Reads protocol/nvml/*.toml into the objects that emit_nvml.py uses. No code here treats a function by its name."""

import re
import tomllib
from dataclasses import dataclass, field

from model import DescriptionError

# kind -> C type
SCALARS = {"u8": "unsigned char", "u32": "unsigned int", "i32": "int", "u64": "unsigned long long"}
ORDINAL_MAX = 1023
CLASSES = ("query", "local", "changes", "unsupported", "same_as")
KEYS = {"ordinal", "fixed", "local", "changes", "unsupported", "same_as", "params"}

PARAM = re.compile(
    r"(?P<name>\w+): (?:(?P<direction>out|inout) )?(?P<array>array )?(?P<kind>\w+)(?:\[(?P<count>\w+)\])?$")


@dataclass
class Param:
    name: str
    direction: str  # in, out, inout
    kind: str       # a key of SCALARS, device, string, plain, versioned, or the name of an object that never travels
    type: str = ""  # of plain and versioned
    array: bool = False
    # For an array: the parameter with the number of its items. For a returned string: the parameter with its room, or a
    # number.
    count: str = ""

    @property
    def c_type(self):
        if self.kind == "string":
            return "char*" if self.direction != "in" else "const char*"
        if self.kind == "device":
            base = "nvmlDevice"
        else:
            base = SCALARS.get(self.kind, "void")
        pointer = "*" if self.direction != "in" or base == "void" else ""
        return base + pointer


@dataclass
class Function:
    name: str
    family: "Family"
    cls: str
    ordinal: int = 0
    fixed: bool = False
    reason: str = ""
    same_as: str = ""
    params: list = field(default_factory=list)

    def param(self, name):
        return next((p for p in self.params if p.name == name), None)

    @property
    def count(self):
        """The parameter with the room of the arrays, which receives the required room."""
        return next((p for p in self.params if p.direction == "inout" and p.kind == "u32" and not p.array
                     and any(a.array and a.count == p.name for a in self.params)), None)


@dataclass
class Family:
    name: str
    title: str
    functions: list


@dataclass
class Nvml:
    families: list
    plain: dict      # type -> bytes
    versioned: dict  # type -> [(version, bytes)]

    @property
    def functions(self):
        return [f for family in self.families for f in family.functions]

    @property
    def queries(self):
        return sorted((f for f in self.functions if f.cls == "query"), key=lambda f: f.ordinal)

    def codes(self, versioned):
        """The values that such a structure may begin with."""
        return [bytes_ | version << 24 for version, bytes_ in self.versioned[versioned]]


def read_param(text, nvml, where, travels):
    match = PARAM.fullmatch(text)
    if not match:
        raise DescriptionError(f"{where}: cannot read the parameter {text!r}")
    kind, direction = match["kind"], match["direction"] or "in"
    param = Param(match["name"], direction, kind, array=bool(match["array"]), count=match["count"] or "")
    if kind in nvml.plain:
        param.kind, param.type = "plain", kind
    elif kind in nvml.versioned:
        param.kind, param.type = "versioned", kind
    elif kind not in SCALARS and kind not in ("device", "string") and travels:
        raise DescriptionError(f"{where}: nothing is known of the kind {kind}")
    if travels and (param.array or (kind == "string" and direction == "out")) and not param.count:
        raise DescriptionError(f"{where}: {param.name} has no length")
    return param


def read_function(name, table, family, nvml):
    where = f"{family.name}.toml, {name}"
    if unknown := set(table) - KEYS:
        raise DescriptionError(f"{where}: unknown keys {sorted(unknown)}")
    classes = [c for c in ("local", "changes", "unsupported", "same_as") if table.get(c)]
    cls = classes[0] if classes else "query"
    if len(classes) > 1 or (cls == "query") != ("ordinal" in table):
        raise DescriptionError(f"{where}: exactly one of ordinal, local, changes, unsupported and same_as")
    function = Function(name, family, cls, table.get("ordinal", 0), table.get("fixed", False),
                        table.get("unsupported", ""), table.get("same_as", ""))
    function.params = [read_param(text, nvml, where, cls == "query") for text in table.get("params", [])]
    for param in function.params:
        if cls == "query" and param.count and not param.count.isdigit() and not function.param(param.count):
            raise DescriptionError(f"{where}: there is no parameter {param.count}")
    return function


def check(nvml):
    seen = {}
    names = {f.name for f in nvml.functions}
    for function in nvml.functions:
        if function.cls == "query":
            if not 1 <= function.ordinal <= ORDINAL_MAX or function.ordinal in seen:
                raise DescriptionError(f"{function.name}: the ordinal {function.ordinal} is out of range or taken")
            seen[function.ordinal] = function
        if function.same_as and function.same_as not in names:
            raise DescriptionError(f"{function.name}: there is no {function.same_as}")


def read_nvml(folder):
    structures = tomllib.loads((folder / "structures.toml").read_text())
    nvml = Nvml([], structures["plain"], structures["versioned"])
    for path in sorted(folder.glob("*.toml")):
        if path.stem == "structures":
            continue
        tables = tomllib.loads(path.read_text())
        family = Family(path.stem, tables.pop("title"), [])
        family.functions = [read_function(name, table, family, nvml) for name, table in tables.items()]
        nvml.families.append(family)
    check(nvml)
    by_name = {f.name: f for f in nvml.functions}
    for function in nvml.functions:
        if function.same_as:
            function.params = by_name[function.same_as].params
    return nvml
