"""The documents: none is missing from an index, no link or path leads nowhere, and the messages that troubleshooting.md
and suspending.md explain are those of the sources, in both directions. SAYING below says which of the sources' messages
are a user's."""

import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import unittest

SOURCE = os.environ["GPUWIRE_SOURCE"]
DOCS = os.path.join(SOURCE, "docs")
SOURCES = ("client_stub", "command_line", "protocol", "scheduler", "server")
TREE = ("bench", "client_stub", "cmake", "command_line", "docs", "examples", "packaging", "protocol", "scheduler",
        "server", "test")
# Documents with names of files outside of the tree: a user's program, the suites of other projects.
NAMES_OF_OTHERS = {"README.md", "docs/compatibility.md"}
# Texts of the C library, not of gpuwire.
FOREIGN = {"unknown host"}
# The messages for users are found by a rule: the sentences (with two spaces or more) among the literal arguments of
# these calls in these folders, in what is assigned there to a reason, and in some folders in what is returned. A
# message is a line of the client in a program, a refusal of a connection or login, the reason of a wait or of an end,
# an error of a command, a mistake in a configuration file or option, a line of the notebook's extension, or a warning
# or error in the server's log. The rule excludes errors between the server's own processes (tl::unexpected elsewhere),
# which a user sees at the end of another message, and answers of CUDA, NVML and nvidia-smi in NVIDIA's words.
LINES = r"log_stderr|send_answer|not_ready|refuse|refuse_all|refused|end|close"
ERRORS = r"tl::unexpected|(?:\w+_)?fail(?:ed)?|Fail(?:ed|ure)|wrong|ValidationError|std::fprintf|push_back|emplace_back"
LOG = r"spdlog::warn|spdlog::error|spdlog::critical"
# The web page's answers to its visitors.
PAGE = LINES + "|" + ERRORS + "|message|sign_in_form"
ASSIGNED = r"|\b\w*(?:why|reason|cause|error|message)\w* = (?=[^;]*\")"
RETURNED = r"|\breturn (?=fmt::format|\")"
PYTHON = r"\bprint\(|\breturn (?=\(?f?\"|None, )"
SAYING = {
    rf"\b(?:{LINES}|{ERRORS})\(" + ASSIGNED:
        ("client_stub/account", "client_stub/driver", "client_stub/launcher", "client_stub/session", "command_line",
         "server/broker", "server/cli", "server/config", "server/identity", "protocol/units"),
    rf"\b(?:{LINES}|emplace_back)\(" + ASSIGNED:
        ("client_stub/nvml", "server/host_guard", "server/login", "protocol/resume"),
    rf"\b(?:{LINES}|{ERRORS})\(|\bObstacle\{{" + ASSIGNED + RETURNED:
        ("protocol/tls", "scheduler", "server/broker/admission", "server/broker/connection"),
    rf"\b(?:{LINES})\(" + ASSIGNED + RETURNED: ("server/gpu_scheduler", "server/ledger", "server/worker"),
    rf"\b(?:{PAGE})\(" + ASSIGNED: ("server/control/web", "server/web"),
    rf"\b(?:{LOG})\(": ("server",),
}
SAYING_IN_PYTHON = {PYTHON: ("client_stub/notebook",)}
# The pages that explain them: suspending.md has the reasons for which a session is not suspended.
EXPLAINING = ("troubleshooting.md", "suspending.md")
REFUSALS = r"|RefusalCode::\w+,\s*\"\w+\","
# Messages that need no row, with the reason.
UNEXPLAINED = {
    # Parts of another message, which is explained.
    "it offers none", "no key for the session:", "out of memory", "the client spoke before it was answered",
    "(and ... others)", ": it ended with", "credential ...: ...",
    # In the server's log and audit log, of connections that are no program's: a scan, a peer that is not gpuwire.
    "... bytes of a preface within ... ms",
    # The answer to an attempt to take a session over without its keys.
    "the session is not this client's",
    # A program that waits in an implausible number of threads, and a query whose answer is too long.
    "... programs wait already", "the answer is too long",
    # The two lines of --stats=why that ask for no change: docs/profiling.md.
    "change nothing: no wait is worth it", "nothing else is to be gained: no other wait took %.0f %% of the time",
    # Reports of a reload without mistakes.
    "tenant ... is new", "tenant ... is gone", "... has another ...",
    # The list of commands that `gpuwire` prints.
    "%-10s ...",
    # Parts of the web page's messages: the advice behind a reason, and the session that a warning is about.
    ". Ask for a new one; or close the browser, show no certificate when it asks for one, and sign in with a token.",
    "Session ... of ...: ...", "Not done:", "GPU ... is drained: no session begins on it or returns to it.",
    # A child of a program that forked has no session, as natively; the parent's goes on.
    "the program was forked by one that uses it",
    # Parts of explained messages: of a guarantee or of a session that an earlier server has noted, of a place in the
    # queue, of a certificate's day, of the reasons of an end.
    "there is no device", "a guarantee of", "bytes above the limit of", "guarantees of", "bytes in all on device",
    ": a guarantee above its limit", ": allowances of", "bytes, and it has", ": guarantees of",
    "a share without a session", "a share without a kind", "a session with ... devices", "an identity of ... bytes",
    "a session without a number", "place ... of ... in the queue", ", and enough on ... only", "an unreadable day",
    "the session has ended", "the session has ended:", "it is not needed", "... (process ... on ..., release ...)",
    # Mistakes of gpuwire's own books, which only tests look for.
    "session ... has a device twice", "session ... has a device that there is not",
    "device ... is promised beyond its memory", "place ... of the queue is not in order", "session ... waits and runs",
    "session ... was overtaken ... times",
    # A lane that is refused: the session goes on with its other connections.
    "the connection that the lane is for is not the session's any more", "... lanes where ... are allowed",
    "lane ... of ...", "lanes of an older set", "a lane that there is already",
}
# Internal variables: between the server's own processes, and between Slurm's plug-in and its scripts.
OWN_VARIABLES = {
    "GPUWIRE_SOFTWARE_DEVICES", "GPUWIRE_SOFTWARE_MEMORY_BYTES", "GPUWIRE_SOFTWARE_DRIVER_VERSION",
    "GPUWIRE_SOFTWARE_SLOW", "GPUWIRE_SOFTWARE_LOADS_WAIT", "GPUWIRE_SOFTWARE_CHECKPOINTS", "GPUWIRE_MEM",
    "GPUWIRE_CLASS", "GPUWIRE_SLURM_JOB", "GPUWIRE_DRIVER_TRACE"
}


def read(*path):
    with open(os.path.join(SOURCE, *path), encoding="utf-8") as file:
        return file.read()


def pages(folder):
    return sorted(name for name in os.listdir(os.path.join(SOURCE, folder))
                  if name.endswith(".md") and name != "README.md")


def links(text):
    return re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)


def anchors(text):
    """Returns the valid anchors of a page: its headings, as GitHub converts them, and its explicit anchors."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    made = {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
    return made | set(re.findall(r'<a (?:name|id)="([^"]+)">', text))


def files():
    """Returns every file of the tree, by its path."""
    for folder, folders, names in os.walk(SOURCE):
        folders[:] = [name for name in folders if name not in ("build", "__pycache__") and not name.startswith(".")]
        yield from (os.path.relpath(os.path.join(folder, name), SOURCE) for name in names)


def documents():
    return [path for path in files() if path.endswith(".md")]


def paths_in(text):
    """Returns the words in backticks that are paths from the top of the tree."""
    for word in re.findall(r"`([\w.][\w./*<>{},-]*)`", text):
        if word.split("/")[0] in TREE and "/" in word:
            yield word


def is_there(path):
    """`*`, `<family>` and `{a,b}` stand for any name; a name without its ending for a source of that name."""
    pattern = re.sub(r"<[^>]*>|\{[^}]*\}", "*", path)
    return bool(glob.glob(os.path.join(SOURCE, pattern)) or glob.glob(os.path.join(SOURCE, pattern.rstrip("/") + ".*")))


def all_literals():
    """Returns all strings of the sources; adjacent literals are joined, as by the compiler."""
    found = []
    for top in SOURCES:
        for folder, _, names in os.walk(os.path.join(SOURCE, top)):
            for name in names:
                if name.endswith((".cpp", ".hpp", ".py", ".inc")):
                    with open(os.path.join(folder, name), encoding="utf-8") as file:
                        text = re.sub(r'"\s*\n\s*f?"' if name.endswith(".py") else r'"\s*\n\s*"', "", file.read())
                    found.append("\n".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)).replace('\\"', '"'))
    return "\n".join(found)


def sources(folders, endings):
    for top in folders:
        for folder, _, names in os.walk(os.path.join(SOURCE, top)):
            for name in names:
                if name.endswith(endings):
                    yield read(folder, name)


def literals(text):
    return [one.replace('\\"', '"') for one in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text)]


def messages():
    """Returns the messages that the pages explain."""
    return [one for page in EXPLAINING for one in explained(read("docs", page))]


def with_dots(text):
    """Replaces the placeholders of a format by the dots of a message."""
    return re.sub(r"\{[^{}]*\}|%[a-z0-9.*]*[sdu]", "...", text)


def literals_of(text, start):
    """Returns the literals from `start` to the end of the call's arguments; behind no bracket, to that of the
    statement."""
    depth, end, quoted, is_call = 1, start, False, text[start - 1] in "({"
    while end < len(text) and depth and (is_call or quoted or text[end] != ";"):
        if quoted:
            end += text[end] == "\\"
            quoted = text[end] != '"'
        else:
            quoted = text[end] == '"'
            depth += (text[end] in "({") - (text[end] in ")}")
        end += 1
    return literals(text[start:end])


def is_sentence(text):
    return text.count(" ") >= 2


def said(text, calls=rf"\b(?:{LINES})\("):
    """Returns the sentences in the arguments of calls that print messages."""
    text = re.sub(r'"\s*\n\s*"', "", re.sub(r"//[^\n]*", "", text))
    for found in re.finditer(calls + REFUSALS, text):
        for one in literals_of(text, found.end()):
            yield with_dots(re.sub(r"^gpuwire(?: (?:[\w-]+|%s))?: |\\n$", "", re.sub(r"\\n$", "", one)))


def said_in_python(text, calls):
    """Returns the sentences of a script: those in a statement of one line, or of lines with one literal each."""
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    for found in re.finditer(rf"^[^\n#]*(?:{calls})([^\n]*)", text, re.M):
        for one in literals(found[1]):
            yield with_dots(one.removeprefix("gpuwire: "))


def sentences():
    """Returns the sentences that users are told."""
    read_by = ((SAYING, (".cpp", ".hpp"), said), (SAYING_IN_PYTHON, (".py",), said_in_python))
    return {one for rules, endings, find in read_by for calls, folders in rules.items()
            for text in sources(folders, endings) for one in find(text, calls) if is_sentence(one)}


def parts_of(message):
    return [part.strip(' ;:,"()') for part in message.split("...")]


def is_explained(sentence, messages):
    """A sentence may be a part of a message, for example if a name separates two parts."""
    if sentence.strip() in UNEXPLAINED:
        return True
    return any(
        all(part in sentence for part in parts_of(message)) or all(part in message for part in parts_of(sentence))
        for message in messages)


def explained(text):
    """Returns the messages in the first column of the tables."""
    for line in text.splitlines():
        if line.startswith("| `"):
            cell = re.split(r"(?<!\\)\|", line)[1]
            yield from (whole or one for whole, one in re.findall(r"``(.+?)``(?!`)|`([^`]+)`", cell))


def words_of(text):
    """A name's words, however it is written: as a sentence, or as a Python function."""
    return " ".join(re.findall(r"[a-z0-9]+", text.lower().replace("'", "").replace("_", " ")))


def tests_of_the_tree():
    """The words of the names of all tests."""
    names = set()
    for text in sources(("test",), (".cpp", ".py")):
        for name in re.findall(r"(?:TEST_CASE(?:_FIXTURE)?|SUBCASE)\(\s*(?:\w+,\s*)?((?:\"[^\"]*\"\s*)+)", text):
            names.add(words_of("".join(re.findall(r"\"([^\"]*)\"", name))))
        names |= {words_of(name) for name in re.findall(r"\bdef test_(\w+)", text)}
    return names


def tests_named_in(text):
    """The tests that a page's tables name in italics, each by the pieces of its name between dots."""
    for line in text.splitlines():
        if line.startswith("| "):
            for name in re.findall(r"(?<![*\w])\*([^*|`]{8,})\*(?!\*)", line):
                yield [words_of(piece) for piece in name.split("...") if words_of(piece)]


class Documents(unittest.TestCase):
    def test_every_test_that_the_page_on_security_names_is_there(self):
        tests = tests_of_the_tree()
        named = list(tests_named_in(read("docs/security.md")))
        self.assertGreater(len(named), 100)
        self.assertEqual([pieces for pieces in named
                          if not any(all(piece in test for piece in pieces) for test in tests)], [])

    def test_the_indexes_list_every_page(self):
        for index, folder in (("README.md", "docs"), ("docs/README.md", "docs"), ("docs/recipes/README.md",
                                                                                  "docs/recipes")):
            listed = {os.path.normpath(os.path.join(os.path.dirname(index), link)) for link in links(read(index))}
            missing = [page for page in pages(folder) if os.path.join(folder, page) not in listed]
            self.assertEqual(missing, [], f"pages that {index} does not list")
        self.assertIn("recipes/README.md", links(read("docs/README.md")))

    def test_no_link_leads_nowhere(self):
        for folder in (".", "docs", "docs/recipes", "packaging", "cmake/old_glibc", "packaging/manual"):
            for page in os.listdir(os.path.join(SOURCE, folder)):
                if not page.endswith(".md"):
                    continue
                dead = [
                    link for link in links(read(folder, page)) if not os.path.exists(os.path.join(SOURCE, folder, link))
                ]
                self.assertEqual(dead, [], os.path.join(folder, page))

    def test_every_example_of_a_configuration_is_toml_and_no_comment_has_swallowed_a_key(self):
        wrong, examples = [], 0
        for page in documents():
            for example in re.findall(r"^```toml\n(.*?)^```", read(page), re.MULTILINE | re.DOTALL):
                examples += 1
                try:
                    tomllib.loads(example)
                except tomllib.TOMLDecodeError as error:
                    wrong.append(f"{page}: {error}")
                # A comment with keys behind its words is TOML, too.
                wrong += [f"{page}: {comment}" for comment in re.findall(r"# .* [a-z_.]+ = .*", example)]
        self.assertEqual(wrong, [])
        self.assertGreater(examples, 10)

    def test_no_link_names_a_heading_that_is_not_there(self):
        dead = []
        for page in documents():
            for target, anchor in re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", read(page)):
                there = os.path.normpath(os.path.join(os.path.dirname(page), target)) if target else page
                if there.endswith(".md") and anchor not in anchors(read(there)):
                    dead.append(f"{page}: {target}#{anchor}")
        self.assertEqual(dead, [])

    def test_every_path_that_a_document_names_is_in_the_tree(self):
        # The generator's page lists what it writes below the build's generated/.
        named = [(page, path) for page in documents() if page != "protocol/codegen/README.md"
                 for path in paths_in(read(page))]
        self.assertGreater(len(named), 200)
        self.assertEqual([f"{page}: {path}" for page, path in named if not is_there(path)], [])

    def test_every_source_that_a_document_names_is_in_the_tree_or_generated(self):
        there = {os.path.basename(path) for path in files()}
        generators = "".join(sources(("protocol/codegen",), (".py", "CMakeLists.txt")))
        named = [(page, path) for page in documents() if page not in NAMES_OF_OTHERS
                 for path in re.findall(r"`([\w./-]+\.(?:cpp|hpp|py|cu|capnp))`", read(page))]
        self.assertGreater(len(named), 200)
        self.assertEqual([f"{page}: {path}" for page, path in named
                          if os.path.basename(path) not in there and os.path.basename(path) not in generators], [])

    def test_a_path_that_is_not_there_would_be_found(self):
        found, = paths_in("a file `server/lodger/lodger.hpp` and `a word`")
        self.assertFalse(is_there(found))

    @unittest.skipUnless(shutil.which("patch"), "patch is not installed")
    def test_the_change_that_contributing_shows_fits_the_tree(self):
        shown, = re.findall(r"^```diff\n(.*?)^```$", read("CONTRIBUTING.md"), re.M | re.S)
        tried = subprocess.run(["patch", "--dry-run", "--force", "-p1", "--directory", SOURCE], input=shown,
                               capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual(tried.returncode, 0, tried.stdout + tried.stderr)

    def test_every_message_that_is_explained_is_in_the_sources(self):
        texts = with_dots(all_literals())
        there = [message for message in messages() if message not in FOREIGN]
        self.assertGreater(len(there), 50)
        missing = [message for message in there if any(part not in texts for part in parts_of(message))]
        self.assertEqual(missing, [])

    def test_every_message_that_a_user_is_told_is_explained(self):
        # Single words would be found in any text.
        there = [message for message in messages() if sum(map(len, parts_of(message))) >= 9]
        told = sentences()
        self.assertGreater(len(told), 300)
        self.assertEqual(sorted(one for one in told if not is_explained(one, there)), [])
        self.assertEqual({one for one in UNEXPLAINED if one not in {each.strip() for each in told}}, set())

    def test_the_rule_finds_a_message_wherever_it_is_made(self):
        rules = {folder: calls for calls, folders in SAYING.items() for folder in folders}
        for folder, text in (("server/cli", 'return users_failed("no lodger is there");'),
                             ("server/identity", 'return Failure(fmt::format("no lodger is there"));'),
                             ("protocol/tls", 'return Failed("no lodger is there");'),
                             ("server/identity", 'refused.reason = fmt::format("no lodger is there", x);'),
                             ("scheduler", 'else obstacle.why = "no lodger is there";'),
                             ("scheduler", 'return Obstacle{fmt::format("no lodger is there"), true};')):
            self.assertIn("no lodger is there", list(said(text, rules[folder])), text)
        self.assertEqual(list(said_in_python('    return None, f"no {lodger} is there"\n', PYTHON)),
                         ["no ... is there"])

    def test_a_message_without_a_line_would_be_found(self):
        found, = said('if (lost) log_stderr(fmt::format("the server has no "\n    "lodger {}", name()));')
        self.assertEqual(found, "the server has no lodger ...")
        self.assertFalse(is_explained(found, list(messages())))

    def test_every_variable_that_is_read_is_in_the_list(self):
        listed = set(re.findall(r"`(GPUWIRE_\w+)`", read("docs", "cli.md")))
        named = {
            name
            for text in sources(SOURCES, (".cpp", ".hpp", ".c"))
            for name in re.findall(r'"(GPUWIRE_[A-Z_]+)"', text)
        }
        self.assertGreater(len(named), 15)
        self.assertEqual(named - listed - OWN_VARIABLES, set())
        self.assertEqual(listed - named, set())

    def test_a_message_that_is_not_in_the_sources_would_be_found(self):
        self.assertNotIn("this server has no lodger", all_literals())


class Pictures(unittest.TestCase):
    def test_the_picture_of_the_dashboard_is_what_the_script_makes_of_it(self):
        made = subprocess.run([sys.executable, os.path.join(SOURCE, "packaging", "monitoring", "draw_dashboard.py")],
                              check=True, capture_output=True, text=True, timeout=120).stdout
        self.assertTrue(made == read("docs", "monitoring_dashboard.svg"),
                        "make it anew: packaging/monitoring/draw_dashboard.py > docs/monitoring_dashboard.svg")
        for panel in json.loads(read("packaging", "monitoring", "grafana_dashboard.json"))["panels"]:
            self.assertIn(f">{panel['title'].replace('&', '&amp;')}</text>", made)

    def test_the_picture_of_top_in_the_readme_has_the_columns_of_the_program(self):
        picture, = re.findall(r"^```\n(gpuwire \d.*?)^```$", read("README.md"), re.M | re.S)
        columns = set(literals(read("server", "control", "view", "metrics_text.cpp")))
        headings = re.findall(r"^(?:GPU|TENANT|SESSION|PLACE) .*$", picture, re.M)
        self.assertEqual(len(headings), 4)
        for heading in headings:
            for column in re.split(r" {2,}", heading.strip()):
                self.assertIn(column, columns, "make it anew: docs/pictures/make_top.py")


class Monitoring(unittest.TestCase):
    def test_prometheus_is_told_to_scrape_the_address_that_the_server_listens_on(self):
        page = read("docs", "monitoring.md")
        section = page[page.index("## Prometheus"):]
        listen = re.search(r'metrics_listen = "(\S+)"', section)[1]
        self.assertEqual(re.search(r'targets: \["(\S+)"\]', section)[1], listen)
        self.assertIn(f'metrics_listen = "{listen}"', read("README.md"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
