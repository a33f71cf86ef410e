"""No asynchronous callback of the server's outlives its object: the text of the calls that take one."""

import os
import re
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# A call that comes back later, up to the captures of the lambda in its arguments.
LATER = re.compile(
    r"\b(?:async_\w+|asio::post|asio::defer|asio::dispatch)\((?P<before>[^;{}]*?)\[(?P<captures>[^\]]*)\]\s*\(?[^{;]*\{"
)


def bare(text):
    """Calls whose callback uses an object without a guard (server/base/lifetime.hpp), and without a share of it."""
    for match in LATER.finditer(text):
        guarded = "guard(" in match["before"]
        if re.search(r"\bthis\b", match["captures"].replace("shared_from_this", "")) and not guarded:
            yield match[0].split("\n")[0].strip()


class Callbacks(unittest.TestCase):
    def test_every_callback_is_guarded_or_keeps_its_object(self):
        found = []
        for folder, _, files in os.walk(os.path.join(ROOT, "server")):
            for name in sorted(files):
                if name.endswith((".cpp", ".hpp")):
                    path = os.path.join(folder, name)
                    with open(path, encoding="utf-8") as file:
                        found += [f"{os.path.relpath(path, ROOT)}: {call}" for call in bare(file.read())]
        self.assertEqual(found, [])

    def test_the_rule_finds_what_it_is_about(self):
        self.assertTrue(list(bare("timer_.async_wait([this](error_code error) { look(); });")))
        self.assertTrue(list(bare("boost::asio::post(io_, [this, one] { end(one); });")))
        self.assertFalse(list(bare("timer_.async_wait(lifetime_.guard([this](error_code error) { look(); }));")))
        self.assertFalse(
            list(bare("socket_.async_wait(what, [self = shared_from_this()](error_code error) { self->end(); });")))


if __name__ == "__main__":
    unittest.main()
