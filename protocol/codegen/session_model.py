"""Reads protocol/api/session.toml: the session's own calls and notices, and their messages."""

import re
import tomllib
from dataclasses import dataclass

from description import DescriptionError
from kinds import HANDLES, SCALARS

FIRST_ORDINAL = 1
ORDINAL_MAX = 1000  # driver functions have ordinals from there on
CLASSES = ("posted", "called")
SESSIONS = ("program", "management")

# kind -> (C++ type, Cap'n Proto type)
C_TYPES = {
    "Int32": "int32_t",
    "UInt8": "uint8_t",
    "UInt16": "uint16_t",
    "UInt32": "uint32_t",
    "UInt64": "uint64_t",
    "Float32": "float",
    "Float64": "double",
}
NUMBERS = {kind: (C_TYPES[wire], wire) for kind, (_, wire) in SCALARS.items()}
NUMBERS |= {kind: ("uint64_t", "UInt64") for kind in HANDLES}
NUMBERS["handle"] = ("uint64_t", "UInt64")  # of several kinds
NUMBERS["bool"] = ("bool", "Bool")
NUMBERS["result"] = ("int32_t", "Int32")  # a CUresult

LIST_ITEMS = {"i32": "Int32", "u32": "UInt32", "u64": "UInt64", "text": "Text"}


@dataclass
class Field:
    name: str
    kind: str  # a key of NUMBERS, or: data, text, list
    item: str = ""  # of a list: a key of LIST_ITEMS, or a structure
    filled: bool = False  # data that the sender writes directly into the message

    @property
    def is_number(self):
        return self.kind in NUMBERS

    @property
    def is_list_of_structures(self):
        return self.kind == "list" and self.item not in LIST_ITEMS

    @property
    def wire_type(self):
        if self.is_number:
            return NUMBERS[self.kind][1]
        if self.kind == "list":
            return f"List({LIST_ITEMS.get(self.item, self.item)})"
        return self.kind.capitalize()

    @property
    def wire_name(self):
        head, *rest = self.name.split("_")
        return head + "".join(part.capitalize() for part in rest)

    @property
    def accessor(self):
        return self.wire_name[:1].upper() + self.wire_name[1:]


@dataclass
class Message:
    """A structure, or a reply, which begins with `result` and `deferred`."""

    name: str
    fields: list
    is_reply: bool = False


@dataclass
class Frame:
    """A call or a notice."""

    name: str
    ordinal: int
    message: Message
    bulk: str = ""  # the limit (wire/limits.hpp) of the raw bytes behind the frame; empty: none are allowed


@dataclass
class SessionCall(Frame):
    cls: str = "called"
    reply: Message = None
    reply_bulk: str = ""  # the limit of the raw bytes behind its reply
    out_of_turn: bool = False
    any_context: bool = False
    sessions: tuple = ("program",)


@dataclass
class SessionDescription:
    calls: list
    notices: list
    messages: list  # in the order of the file

    def calls_of(self, session):
        return [call for call in self.calls if session in call.sessions]


RESULT = Message("Result", [], is_reply=True)


def pascal(name):
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def parse_field(text, where):
    match = re.fullmatch(r"([a-z]\w*): (filled )?(\w+)(?::(\w+))?", text)
    if not match:
        raise DescriptionError(f"{where}: cannot read the field '{text}'")
    name, filled, kind, item = match.groups()
    field = Field(name, kind, item or "", bool(filled))
    known = kind in NUMBERS or kind in ("data", "text", "list")
    if not known or bool(item) != (kind == "list") or filled and kind != "data":
        raise DescriptionError(f"{where}: {name}: unknown kind '{text.partition(': ')[2]}'")
    return field


class Reader:
    """Collects the messages while it reads the frames."""

    def __init__(self, where):
        self.where = where
        self.messages = {"Result": RESULT}

    def demand(self, condition, name, what):
        if not condition:
            raise DescriptionError(f"{self.where}: {name}: {what}")

    def add(self, name, fields, is_reply=False):
        self.demand(name not in self.messages, name, "is described twice")
        message = Message(name, [parse_field(text, f"{self.where}: {name}") for text in fields], is_reply)
        names = [field.name for field in message.fields]
        self.demand(len(set(names)) == len(names), name, "a field is described twice")
        own = {"result", "deferred"} & set(names)
        self.demand(not is_reply or not own, name, "every reply has result and deferred by itself")
        self.messages[name] = message
        return message

    def named(self, name, user, is_reply):
        self.demand(name in self.messages, user, f"there is no message {name}")
        self.demand(self.messages[name].is_reply == is_reply, user, f"{name} is {'no' if is_reply else 'a'} reply")
        return self.messages[name]

    def check_keys(self, name, table, needed, allowed):
        self.demand(set(needed) <= set(table), name, f"needs {sorted(set(needed) - set(table))}")
        unknown = sorted(set(table) - set(needed) - set(allowed))
        self.demand(not unknown, name, f"unknown keys {unknown}")

    def frame(self, name, table):
        """The arguments of a Frame that calls and notices share."""
        params = table["params"]
        message = self.named(params, name, False) if isinstance(params, str) else self.add(pascal(name), params)
        bulk = table.get("bulk", "")
        self.demand(FIRST_ORDINAL <= table["ordinal"] < ORDINAL_MAX, name, "ordinal out of range")
        return {"name": name, "ordinal": table["ordinal"], "message": message, "bulk": bulk}

    def call(self, name, table):
        allowed = ("results", "bulk", "reply_bulk", "out_of_turn", "any_context", "sessions")
        self.check_keys(name, table, ("ordinal", "class", "params"), allowed)
        call = SessionCall(
            **self.frame(name, table),
            cls=table["class"],
            reply=self.named(table.get("results", "Result"), name, True),
            reply_bulk=table.get("reply_bulk", ""),
            out_of_turn=table.get("out_of_turn", False),
            any_context=table.get("any_context", False),
            sessions=tuple(table.get("sessions", ("program",))),
        )
        self.demand(call.cls in CLASSES, name, "class")
        self.demand(call.cls == "called" or call.reply is RESULT, name, "a posted call has no results")
        self.demand(bool(call.sessions) and set(call.sessions) <= set(SESSIONS), name, "sessions")
        return call

    def notice(self, name, table):
        self.check_keys(name, table, ("ordinal", "params"), ("bulk",))
        return Frame(**self.frame(name, table))


def check_unique(frames, where):
    names = {}
    for frame in frames:
        if frame.ordinal in names:
            raise DescriptionError(f"{where}: {frame.name}: ordinal {frame.ordinal} belongs to {names[frame.ordinal]}")
        names[frame.ordinal] = frame.name


def parse_session(tables, where):
    reader = Reader(where)
    unknown = set(tables) - {"structure", "reply", "call", "notice"}
    reader.demand(not unknown, where, f"unknown tables {sorted(unknown)}")
    for section, is_reply in (("structure", False), ("reply", True)):
        for name, table in tables.get(section, {}).items():
            reader.check_keys(name, table, ("fields",), ())
            reader.add(name, table["fields"], is_reply)
    calls = [reader.call(name, table) for name, table in tables.get("call", {}).items()]
    notices = [reader.notice(name, table) for name, table in tables.get("notice", {}).items()]
    check_unique(calls, where)
    check_unique(notices, where)
    for message in reader.messages.values():
        for field in message.fields:
            if field.is_list_of_structures:
                inner = reader.named(field.item, f"{message.name}.{field.name}", False)
                plain = all(f.is_number for f in inner.fields)
                reader.demand(plain, message.name, f"{field.item} is more than numbers")
    used = {m.name for c in calls for m in (c.message, c.reply)} | {n.message.name for n in notices}
    used |= {f.item for m in reader.messages.values() for f in m.fields if f.is_list_of_structures}
    for name in set(reader.messages) - used - {"Result"}:
        raise DescriptionError(f"{where}: {name} is used by no call and no notice")
    in_order = [sorted(frames, key=lambda frame: frame.ordinal) for frames in (calls, notices)]
    return SessionDescription(*in_order, list(reader.messages.values()))


def read_session(path):
    return parse_session(tomllib.loads(path.read_text()), path.name)
