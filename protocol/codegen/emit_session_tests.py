"""Tests only. For every message, functions that fill it with random values and compare it with the message that was
read; for every call and notice, a function that sends it in each possible way."""

from emit_session import flag, is_posted
from session_model import Field
from text import banner

SOURCE = "session.toml"


def compare(field):
    name, got = field.name, f"got.get{field.accessor}()"
    if field.is_list_of_structures:
        return (f"  auto {name} = {got};\n"
                f'  found.note("{name}", message.{name}.size() == {name}.size());\n'
                f"  for (unsigned i = 0; i < {name}.size(); ++i) compare(found, message.{name}[i], {name}[i]);\n")
    return f'  found.same("{name}", message.{name}, {got});\n'


def message_functions(message):
    fields = ([Field("result", "result"), Field("deferred", "result")] if message.is_reply else []) + message.fields
    fills = "".join(f"  contents.fill(message.{field.name});\n" for field in fields)
    compares = "".join(map(compare, fields))
    return (
        f"inline void fill([[maybe_unused]] Contents& contents, [[maybe_unused]] wire::message::{message.name}&"
        f" message) {{\n{fills}}}\ninline void compare([[maybe_unused]] Differences& found, [[maybe_unused]] const"
        f" wire::message::{message.name}& message, [[maybe_unused]] schema::{message.name}::Reader got)"
        f" {{\n{compares}}}\n"
    )


def send(call, way):
    """The statements for one way to send a call."""
    name, reply = call.message.name, call.reply.name
    lines = [f"wire::message::{name} message;", "fill(round.contents, message);"]
    bulk = ["round.bulk()"] if call.bulk else []
    sink = ["round.sink()"] if call.reply_bulk else []
    if way == "post":
        arguments = ["round.session", "round.context", "message", *bulk, "&round.sequence", "[&] { round.leaves(); }"]
        lines.append(f"CUresult result = client::send::post_{call.name}({', '.join(arguments)});")
        lines.append(f"round.posted<schema::{name}>({call.ordinal}, message, result);")
        return lines
    lines += [f"wire::message::{reply} reply;", "fill(round.contents, reply);"]
    lines.append(f"round.answer_with<schema::{reply}>(reply);")
    reader = f"[&](schema::{reply}::Reader got) {{ compare(round.found, reply, got); ++round.replies_read; }}"
    read = [reader] if call.reply.fields else []
    if way == "call":
        arguments = ["round.session", "round.context", "message", *bulk, *sink, *read]
        lines.append(f"CUresult result = client::send::call_{call.name}({', '.join(arguments)});")
    else:
        arguments = ["round.session", "round.context", "message", "round.sequence", *bulk, *sink]
        lines.append(f"CUresult result = client::send::begin_{call.name}({', '.join(arguments)});")
        lines.append("round.begun(result);")
        arguments = ["round.session", "round.sequence", *sink, *read]
        lines.append(f"result = client::send::finish_{call.name}({', '.join(arguments)});")
    lines.append(f"round.called<schema::{name}>({call.ordinal}, message, result, reply.result, {1 if read else 0});")
    return lines


def call_functions(call):
    ways = ["post"] * is_posted(call) + ["call", "begin"]
    return "".join(
        f"void {way}_{call.name}(SessionRound& round)"
        f" {{\n{''.join(f'  {line}{chr(10)}' for line in send(call, way))}}}\n"
        for way in ways
    ), [f'    {{"{way} {call.name}", {call.ordinal}, {way}_{call.name}}},\n' for way in ways]


def notice_function(notice):
    bulk = ", round.notice_bulk()" if notice.bulk else ""
    name = notice.message.name
    return (
        f"void notify_{notice.name}(SessionRound& round) {{\n"
        f"  wire::message::{name} message;\n  fill(round.contents, message);\n"
        f"  server::notify::{notice.name}(round.outbox, message{bulk});\n"
        f"  round.noticed<schema::{name}>(wire::NoticeOrdinal::{notice.name}, message, {flag(notice.bulk)});\n}}\n"
    ), f'    {{"notice {notice.name}", {notice.ordinal}, notify_{notice.name}}},\n'


def source(session):
    functions, rows = [], []
    for call in session.calls:
        text, own = call_functions(call)
        functions.append(text)
        rows += own
    for notice in session.notices:
        text, row = notice_function(notice)
        functions.append(text)
        rows.append(row)
    return f"""{banner(SOURCE)}#include "client/session_sends.hpp"
#include "server/session_notices.hpp"
#include "test/protocol/api/session_round_trip.hpp"

namespace gpuwire::test {{

{chr(10).join(message_functions(m) for m in session.messages)}
template <class Schema, class Message>
void SessionRound::compare_with(const Message& message, const Words& words) {{
  read_words<Schema>(words, [&](typename Schema::Reader got) {{ compare(found, message, got); }});
}}

namespace {{

{chr(10).join(functions)}
}}  // namespace

std::vector<SentWay> sent_ways() {{
  return {{
{"".join(rows)}  }};
}}

}}  // namespace gpuwire::test
"""


def emit(session):
    return {"test/session_frames.cpp": source(session)}
