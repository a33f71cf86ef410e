"""The C++ of the tree is laid out as .clang-format says, no line of code or prose is longer than 120 columns, and no
file holds the two sides of a merge.

clang-format 14 (Debian 12's) decides; where it is not installed, only the columns are checked: versions lay out some
lines differently."""

import io
import os
import re
import shutil
import subprocess
import tokenize
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CPP = (".cpp", ".hpp", ".cu", ".h", ".c")
PYTHON = (".py",)
OTHERS = (".toml", ".cmake", ".sh", "CMakeLists.txt", "Makefile")
VERSION = "version 14."
COLUMNS = 120
# Files whose long lines are the expected output of a program, which wraps none.
WIDE = {"test/server/control/view/metrics_view_test.cpp", "test/server/identity/register_test.cpp"}
# A member or constant of a header with its comment in the same line. Comments stand above.
TRAILING = re.compile(
    r"^ +(?!return |using |if )[\w:<>,&*\s\[\]()]*\b\w+(\[\w*\])?( GUARDED_BY\(\w+\))?"
    r"( = [^;]*|\{[^;]*\})?; +//(?! NOLINT)"
)
HEADERS_OF = ("bench", "client_stub", "command_line", "protocol", "scheduler", "server")
# Folders and headers whose members still have comments beside them.
BESIDE = (
    "client_stub/driver/state/memory/address_map.hpp",
    "scheduler/placement.hpp",
    "scheduler/placement_state.hpp",
    "server/broker/admission/admission.hpp",
    "server/broker/broker.hpp",
    "server/broker/keeper/kept_session.hpp",
    "server/broker/limits.hpp",
    "server/broker/suspension/",
    "server/cli/admin_server.hpp",
    "server/cli/serve/observation.hpp",
    "server/cli/serve/tenant_answers.hpp",
    "server/config/configuration.hpp",
    "server/control/client/metrics.hpp",
    "server/control/sources.hpp",
    "server/driver/",
    "server/ledger/broker/",
    "server/software_device/",
    "server/web/views.hpp",
)
# What a build and what Python writes comes and goes while this reads.
SKIPPED = {"build", "__pycache__"}


def files():
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("."))
        yield from (os.path.join(folder, name) for name in sorted(names))


def sources():
    yield from (path for path in files() if path.endswith(CPP))


def interpreter(path):
    """What runs a script without a suffix; empty: it is none."""
    if "." in os.path.basename(path):
        return ""
    with open(path, "rb") as file:
        first = file.readline(200)
    return first.decode("ascii", "replace") if first.startswith(b"#!") else ""


def is_python(path):
    return path.endswith(PYTHON) or "python" in interpreter(path)


def is_code(path):
    return path.endswith(CPP + PYTHON + OTHERS) or bool(interpreter(path))


def text_lines(source):
    """The lines of a Python source that are text which it writes, not code: those of strings over several lines."""
    lines, begun, code = set(), None, False
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":
            begun = token.start[0]
        first = begun if name == "FSTRING_END" else token.start[0] if name == "STRING" else None
        # A string that stands alone is a comment.
        if first is not None and first != token.end[0] and code:
            lines.update(range(first, token.end[0] + 1))
        if name in ("NEWLINE", "INDENT", "DEDENT"):
            code = False
        elif name not in ("NL", "COMMENT", "STRING", "ENCODING"):
            code = True
    return lines


def too_long(path):
    with open(path, encoding="utf-8") as file:
        source = file.read()
    long = [n for n, line in enumerate(source.splitlines(), 1) if len(line) > COLUMNS]
    return [n for n in long if n not in text_lines(source)] if long and is_python(path) else long


def too_long_in_document(path):
    """The lines of a document that are neither code nor in a table, which cannot be folded."""
    long, fenced = [], False
    with open(path, encoding="utf-8") as file:
        for n, line in enumerate(file.read().splitlines(), 1):
            fence = line.lstrip().startswith(("```", "~~~"))
            fenced ^= fence
            code = fenced or fence or line.startswith("    ")
            if len(line) > COLUMNS and not code and not line.lstrip().startswith(("|", "<a ")):
                long.append(n)
    return long


def conflicts(path):
    """The lines that a merge has written around the sides of a conflict."""
    with open(path, "rb") as file:
        lines = file.read().splitlines()
    return [n for n, line in enumerate(lines, 1) if line.startswith((b"<" * 7 + b" ", b">" * 7 + b" "))]


def formatter():
    path = shutil.which("clang-format-14") or shutil.which("clang-format")
    if path and VERSION in subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout:
        return path
    return None


class Format(unittest.TestCase):
    def test_there_are_sources(self):
        self.assertGreater(len(list(sources())), 1000)

    def test_lines_end_at_120_columns(self):
        code = ((path, os.path.relpath(path, ROOT)) for path in files() if is_code(path))
        self.assertEqual([f"{name}:{n}" for path, name in code if name not in WIDE for n in too_long(path)], [])

    def test_prose_ends_at_120_columns(self):
        documents = ((path, os.path.relpath(path, ROOT)) for path in files() if path.endswith(".md"))
        self.assertEqual([f"{name}:{n}" for path, name in documents for n in too_long_in_document(path)], [])

    def test_comments_stand_above_members(self):
        wrong = []
        for path in sources():
            name = os.path.relpath(path, ROOT)
            if name.endswith(".hpp") and name.split(os.sep)[0] in HEADERS_OF and not name.startswith(BESIDE):
                with open(path, encoding="utf-8") as file:
                    wrong += [f"{name}:{n}" for n, line in enumerate(file, 1) if TRAILING.match(line)]
        self.assertEqual(wrong, [])

    def test_no_conflict_of_a_merge_is_left(self):
        named = ((path, os.path.relpath(path, ROOT)) for path in files() if os.path.isfile(path))
        self.assertEqual([f"{name}:{n}" for path, name in named for n in conflicts(path)], [])

    @unittest.skipUnless(formatter(), "clang-format 14 is not installed")
    def test_the_layout_is_that_of_clang_format(self):
        done = subprocess.run([formatter(), "--dry-run", "--Werror", "--ferror-limit=1", *sources()],
                              capture_output=True, text=True, check=False)
        wrong = [line for line in done.stderr.splitlines() if "error:" in line]
        self.assertEqual(done.returncode, 0, "run clang-format -i on:\n" + "\n".join(wrong))


if __name__ == "__main__":
    unittest.main(verbosity=2)
