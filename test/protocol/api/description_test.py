#!/usr/bin/env python3
"""The description of the driver API against the installed toolkit, and what was generated from it against a fresh run
of the generator."""

import argparse
import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "protocol/codegen"))

import emit_client  # noqa: E402
import emit_coverage  # noqa: E402
import emit_mocks  # noqa: E402
import generate  # noqa: E402
from model import (  # noqa: E402
    KNOWLEDGE, OLDEST_TOOLKIT, DescriptionError, Param, parse_function, parse_member, parse_param, read_api)
from session_model import parse_session  # noqa: E402

OPTIONS = None
PER_THREAD = re.compile(r"_pt(ds|sz)$")


def normal(c_type):
    return " ".join(c_type.replace("*", " * ").split()).replace("unsigned int",
                                                                "unsigned").replace("cuuint32_t", "unsigned")


def header_functions():
    """name -> [(C type, parameter name)] of everything that cuda.h and cudaProfiler.h declare, older forms too."""
    source = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <cudaProfiler.h>\n"
    text = subprocess.run(["c++", "-E", "-P", "-x", "c++", f"-I{OPTIONS.cuda}/include", "-"], input=source,
                          capture_output=True, text=True, check=True).stdout
    functions = {}
    for match in re.finditer(r"CUresult\s+(cu[A-Z]\w+)\s*\(([^;{]*)\)\s*;", text):
        parameters = []
        if match.group(2).strip() != "void":
            for parameter in match.group(2).split(","):
                c_type, name = re.fullmatch(r"(.*?)(\w+)", " ".join(parameter.split())).groups()
                parameters.append((normal(c_type), name))
        functions[match.group(1)] = parameters
    return functions


class Description(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.api = read_api(ROOT / "protocol/api")
        cls.header = header_functions()

    def test_every_function_of_the_header_is_described_and_no_other(self):
        self.assertGreater(len(self.header), 600)
        self.assertEqual(sorted(self.header), self.api.symbols)

    def test_every_symbol_of_the_toolkits_library_is_exported(self):
        library = OPTIONS.cuda / "lib64/stubs/libcuda.so"
        lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True,
                               check=True).stdout.split("\n")
        expected = {line.split()[-1] for line in lines if line}
        self.assertGreater(len(expected), 600)
        self.assertEqual(expected - set(self.api.symbols), set())
        exported = set()
        for family in self.api.families:
            exported |= set(
                re.findall(r"^GPUWIRE_EXPORT CUresult CUDAAPI (\w+)\(", emit_client.exports_source(family),
                           re.MULTILINE))
        self.assertEqual(expected - exported, set())

    def test_parameters_have_the_names_and_types_of_the_header(self):
        for function in self.api.functions:
            with self.subTest(function.name):
                described = [(normal(p.c_type), p.name) for p in function.params]
                self.assertEqual(described, self.header[function.name])

    def test_per_thread_forms_take_what_the_plain_ones_take(self):
        for function in self.api.functions:
            for symbol in function.symbols[1:]:
                with self.subTest(symbol):
                    self.assertEqual([t for t, _ in self.header[symbol]], [t for t, _ in self.header[function.name]])

    def test_the_table_of_error_codes_has_every_code_of_the_header_and_no_other(self):
        header = (OPTIONS.cuda / "include/cuda.h").read_text()
        enumerators = dict(re.findall(r"^\s*(CUDA_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)", header, re.MULTILINE))
        rows = re.findall(r'^\{(\d+), "(\w+)"', (ROOT / "protocol/cuda_abi/error_text.inc").read_text(), re.MULTILINE)
        self.assertGreater(len(enumerators), 90)
        self.assertEqual({name: code for code, name in rows}, enumerators)

    def test_ordinals_are_unique_and_in_range(self):
        ordinals = [f.ordinal for f in self.api.functions if f.travels]
        self.assertEqual(len(ordinals), len(set(ordinals)))
        self.assertTrue(all(1000 <= o < 4096 for o in ordinals))

    def test_since_says_of_every_function_and_no_other_that_a_newer_toolkit_is_the_first_to_have_it(self):
        """Against what cuGetProcAddress of a driver says of when a symbol came (protocol/cuda_abi)."""
        first = {}
        for line in (ROOT / "protocol/cuda_abi/proc_address_rules.txt").read_text().splitlines():
            if line and not line.startswith("#"):
                name, *versions = line.partition("|")[0].split()
                for version, suffix in (re.fullmatch(r"(\d+)(_\w+)?", text).groups() for text in versions):
                    first.setdefault(name + (suffix or ""), int(version))
        self.assertGreater(len([f for f in self.api.functions if f.since]), 100)
        for function in self.api.functions:
            with self.subTest(function.name):
                self.assertEqual(function.since, first[function.name] if first[function.name] > OLDEST_TOOLKIT else 0)

    def test_an_unsupported_function_gives_the_reason(self):
        for function in self.api.functions:
            if function.unsupported:
                self.assertGreater(len(function.unsupported), 15, function.name)

    def test_no_emitter_knows_a_function_by_name(self):
        names = {f.name for f in self.api.functions}
        for path in (ROOT / "protocol/codegen").glob("*.py"):
            code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL)
            self.assertEqual(names & set(re.findall(r"\bcu[A-Z]\w+", code)), set(), path.name)

    def test_no_emitter_knows_a_call_of_the_session_by_name(self):
        names = {frame.name for frame in self.api.session.calls + self.api.session.notices}
        self.assertGreater(len(names), 50)
        for path in (ROOT / "protocol/codegen").glob("emit_session*.py"):
            code = re.sub(r'""".*?"""|#[^\n]*', "", path.read_text(), flags=re.DOTALL)
            self.assertEqual(names & set(re.findall(r"""["'](\w+)["']""", code)), set(), path.name)


# A function at the outermost level of a source: its name, and its body.
DEFINITION = re.compile(r"^(?:[\w:<>*&]+ )+\*?(?:hand::)?(\w+)\([^;{]*?\)(?: noexcept)? \{(?: (.*?) \}|\n(.*?)^\})$",
                        re.MULTILINE | re.DOTALL)
ENTERS = re.compile(r"\benter(?:_context(?:_of|_at)?)?\(")
LOOKS_UP = re.compile(r"\b(?:Stream|Event)Call \w+\(")  # a call about an object, which enters, too


def those_with(what, source):
    """Names of the functions of a source in whose bodies there is `what`."""
    return {match[1] for match in DEFINITION.finditer(source) if what.search(match[2] or match[3] or "")}


class HandWritten(unittest.TestCase):
    def setUp(self):
        self.functions = {f.name: f for f in read_api(ROOT / "protocol/api").functions if f.is_hand}

    def test_a_hand_written_function_enters_by_itself_only_for_a_reason_that_the_description_gives(self):
        found = set()
        for path in (ROOT / "client_stub/driver/calls").rglob("*.cpp"):
            source = path.read_text()
            names = those_with(ENTERS, source)
            found |= names | those_with(LOOKS_UP, source) & self.functions.keys()
            # A helper that enters would hide that from the description.
            self.assertEqual(names - self.functions.keys(), set(), path.name)
            self.assertEqual(len(names) > 0, bool(ENTERS.search(source)), path.name)
        self.assertGreater(len(found), 10)
        self.assertEqual({name for name in found if not self.functions[name].enters}, set())

    def test_the_look_for_functions_that_enter_finds_them(self):
        source = """CUresult hand::cuOne(int flags) {
  if (!flags) {
    const CUresult fault = enter(Needs::context).error;
  }
  return CUDA_SUCCESS;
}

CUresult cuTwo(const Caller& caller, CUstream stream) { return forward::cuTwo(caller, stream); }

Begun begin(CUcontext context) noexcept {
  Caller caller = enter_context(context);
}
"""
        self.assertEqual(those_with(ENTERS, source), {"cuOne", "begin"})
        self.assertEqual(those_with(LOOKS_UP, "CUresult cuOne() {\n  const StreamCall on(s);\n}\n"), {"cuOne"})

    def test_reasons_are_sentences(self):
        for function in self.functions.values():
            if function.enters:
                self.assertGreater(len(function.enters.split()), 4, function.name)


class Generated(unittest.TestCase):
    def setUp(self):
        self.api = read_api(ROOT / "protocol/api")

    def test_the_coverage_table_is_up_to_date(self):
        written = (ROOT / "docs/api_coverage.md").read_text()
        self.assertEqual(written, emit_coverage.emit(self.api), "run python3 protocol/codegen/generate.py")

    def test_generating_again_gives_the_same(self):
        again = read_api(ROOT / "protocol/api")
        self.assertEqual(generate.outputs(self.api), generate.outputs(again))
        self.assertEqual(emit_mocks.emit(self.api), emit_mocks.emit(again))

    def test_the_build_holds_what_the_generator_writes(self):
        if not (OPTIONS.generated / "api.stamp").exists():
            self.skipTest("nothing was generated in this build")
        for path, text in generate.outputs(self.api).items():
            self.assertEqual((OPTIONS.generated / path).read_text(), text, path)


class Reader(unittest.TestCase):
    def test_mistakes_in_a_description_are_found(self):
        good = {"ordinal": 1001, "class": "posted", "params": ["stream: stream"]}
        parse_function("cuX", good, "family")
        for change in (
            {"class": "sent"},
            {"ordinal": 999},
            {"ordinal": 4096},
            {"needs": "luck"},
            {"colour": "red"},
            {"params": ["stream: rope"]},
            {"params": ["value: out u32"]},
            {"params": ["list: array:u32[count]"]},
            {"unsupported": "and forwarded"},
            {"server": "none"},
            {"since": "13"},
            {"since": "11.8"},
            {"before_fault": ["stream"], "needs": "living_context"},
            {"before_fault": ["stream"], "client": "hand", "enters": "it has a reason"},
            {"before_fault": ["value"], "params": ["value: u32"]},
            {"before_fault": ["other"]},
            {"needs": "context_if_any"},
            {"context_of": "other"},
            {"context_of": "stream", "needs": "initialised"},
            {"context_of": "event", "params": ["event: examined event"]},
            {"needs": "stream"},
            {"needs": "process"},
            {"needs": "event", "client": "hand"},
            {"enters": "it is generated"},
            {"enters": "it has a reason", "client": "hand", "needs": "context"},
            {"returns_earlier_errors": False},
            {"params": ["event: event"]},
            {"params": ["event: opt event"]},
            {"params": ["events: array:event[count]", "count: u32"]},
            {"params": ["stream: foreign stream"]},
            {"params": ["graph: foreign graph"]},
            {"params": ["event: foreign new event"]},
            {"records_foreign": True, "class": "called"},
        ):
            with self.subTest(change), self.assertRaises(DescriptionError):
                parse_function("cuX", good | change, "family")

    def test_every_event_that_is_given_says_what_becomes_of_what_is_known_of_it(self):
        good = {"ordinal": 1001, "class": "called"}
        for knowledge in KNOWLEDGE:
            parsed = parse_function("cuX", good | {"params": [f"event: {knowledge} event"]}, "family")
            self.assertEqual(parsed.params[0].knowledge, knowledge)
            self.assertEqual(parse_member(f"inner.event: {knowledge} event", "structure").knowledge, knowledge)
        for text in ("inner.event: event", "inner.event: opt event if type == A", "inner.graph: foreign graph"):
            with self.subTest(text), self.assertRaises(DescriptionError):
                parse_member(text, "structure")

    def test_an_event_that_a_graph_may_record_later_is_foreign_and_a_launch_says_so(self):
        api = read_api(ROOT / "protocol/api")
        foreign = {f.name for f in api.functions if not f.unsupported for p in f.params if p.knowledge == "foreign"}
        self.assertLessEqual({f.name for f in api.functions if re.search("EventRecordNode(Set|$)", f.name)}, foreign)
        self.assertIn("cuEventRecordWithFlags", foreign)
        node = api.structures["CUgraphNodeParams"].handles
        self.assertEqual([m.path for m in node if m.knowledge == "foreign"], ["eventRecord.event"])
        self.assertEqual({f.name for f in api.functions if f.records_foreign}, {"cuGraphLaunch"})

    def test_mistakes_in_a_description_of_session_calls_are_found(self):
        call = {"ordinal": 7, "class": "called", "params": ["bytes: u64"], "results": "Told"}
        good = {"call": {"ask": call}, "reply": {"Told": {"fields": ["count: u32"]}}}
        session = parse_session(good, "session.toml")
        self.assertEqual([c.name for c in session.calls], ["ask"])
        for change in (
            {"call": {"ask": call | {"ordinal": 1000}}},
            {"call": {"ask": call | {"class": "local"}}},
            {"call": {"ask": call | {"class": "posted"}}},
            {"call": {"ask": call | {"params": "Nothing"}}},
            {"call": {"ask": call | {"params": "Told"}}},
            {"call": {"ask": call | {"params": ["bytes: rope"]}}},
            {"call": {"ask": call | {"params": ["bytes: u64", "bytes: u64"]}}},
            {"call": {"ask": call | {"colour": "red"}}},
            {"call": {"ask": call | {"sessions": []}}},
            {"call": {"ask": call, "other": call}},
            {"reply": {"Told": {"fields": ["result: i32"]}}},
            {"reply": {"Told": {"fields": []}, "Unused": {"fields": []}}},
            {"notice": {"told": {"ordinal": 0, "params": []}}},
            {"reports": {}},
        ):
            with self.subTest(change), self.assertRaises(DescriptionError):
                parse_session(good | change, "session.toml")

    def test_prefixes_and_kinds_give_the_c_type(self):
        for text, c_type in (
            ("p: out deviceptr", "CUdeviceptr*"),
            ("p: struct:CUmemPoolProps", "const CUmemPoolProps*"),
            ("p: nonconst struct:CUmemLocation", "CUmemLocation*"),
            ("p: array:graph_node[n]", "const CUgraphNode*"),
            ("p: opt given array:graph_node[n]", "CUgraphNode*"),
            ("p: host:CUhostFn", "CUhostFn"),
            ("p: string", "const char*"),
            ("p: new array", "CUarray*"),
        ):
            param = parse_param(text, "test")
            self.assertIsInstance(param, Param)
            self.assertEqual(param.c_type, c_type, text)


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--cuda", type=Path, default=Path("/usr/local/cuda"))
    parser.add_argument("--generated", type=Path, default=ROOT / "build/generated")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
