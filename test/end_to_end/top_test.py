"""`gpuwire top` on a terminal: an administrator's, and a tenant's from its own machine. Both have the same keys."""

import os
import re
import signal
import socket
import subprocess
import unittest

from screen import Screen
from support import BUILD, DEVICE, RUN_LIMIT_SECONDS, Server, start
from unreliable_way import UnreliableWay

GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
ROWS, COLUMNS = 24, 80
COLOUR = r"\x1b\[(?:1|3\d)m"


class TopCase(unittest.TestCase):
    def setUp(self):
        self.server = Server(BUILD, ["--device", DEVICE])
        self.server.__enter__()
        self.addCleanup(self.server.stop)

    def neighbours(self, count):
        """Starts programs that work until their standard input closes."""
        for _ in range(count):
            program = start(self.server.address, "neighbour")
            self.addCleanup(program.communicate)
            self.addCleanup(program.kill)
            self.assertEqual(program.stdout.readline(), "working\n")

    def words(self):
        folder = "/run/gpuwire" if os.geteuid() == 0 else f"/tmp/gpuwire-{os.geteuid()}"
        return [GPUWIRE, "top", "--control", f"{folder}/{self.server.process.pid}.sock", "--interval", "0.2"]

    def screen(self, *options, rows=ROWS, columns=COLUMNS, environment=None):
        return Screen(self, [*self.words(), *options], rows, columns, environment)


class Top(TopCase):
    def test_it_fits_an_old_terminal_and_names_its_keys(self):
        self.neighbours(2)
        screen = self.screen()
        lines = screen.wait_for(lambda lines: any("neighbour" in line for line in lines), "program")
        self.assertEqual(len(lines), ROWS)
        self.assertEqual([line for line in lines if len(line) > COLUMNS], [])
        self.assertIn("q quit", lines[-1])
        self.assertIn("j k scroll", lines[-1])
        screen.type("q")
        self.assertEqual(screen.end(), (0, ""))

    def test_keys_scroll_and_stop_at_both_ends(self):
        self.neighbours(3)
        screen = self.screen(rows=6)
        top = screen.wait_for(lambda lines: any("GPU%" in line for line in lines), "table")[0]
        screen.type("j" * 200)
        end = screen.wait_for(lambda lines: any("neighbour" in line for line in lines), "last program")
        self.assertNotEqual(end[0], top)
        self.assertIn("q quit", end[-1])
        self.assertTrue(end[-2].strip(), "the last line is at the bottom")
        screen.type("k" * 200)
        screen.wait_for(lambda lines: lines[0].split()[:1] == top.split()[:1], "first line")
        screen.type("\x03")
        self.assertEqual(screen.end(), (0, ""))

    def test_keys_sort(self):
        self.neighbours(3)
        screen = self.screen("--sort", "gpu")
        for key in "gmlt":  # the order among equal programs does not matter
            screen.type(key)
            screen.wait_for(lambda lines: sum("neighbour" in line for line in lines) == 3, f"programs after {key}")

        def numbers(lines):
            return [int(line.split()[0]) for line in lines if "neighbour" in line]

        screen.type("i")
        screen.wait_for(lambda lines: len(numbers(lines)) == 3 and numbers(lines) == sorted(numbers(lines)), "order")
        screen.type("q")
        self.assertEqual(screen.end(), (0, ""))

    def test_help_is_a_key_away_and_gone_with_the_next(self):
        self.neighbours(1)
        screen = self.screen()
        screen.wait_for(lambda lines: any("neighbour" in line for line in lines), "program")
        for key in "h?":
            screen.type(key)
            lines = screen.wait_for(lambda lines: "any key: back" in lines[-1], "help")
            self.assertTrue(any("x ends a session" in line for line in lines), lines)
            screen.type(" ")
            screen.wait_for(lambda lines: any("neighbour" in line for line in lines), "program")
        screen.type("q")
        self.assertEqual(screen.end(), (0, ""))

    def test_the_footer_shows_by_what_the_sessions_are_sorted_and_headings_stand_out(self):
        self.neighbours(1)
        screen = self.screen()
        screen.wait_for(lambda lines: any("neighbour" in line for line in lines), "program")
        self.assertIn("\x1b[7mg GPU\x1b[0m", screen.seen)
        self.assertRegex(screen.seen, r"\x1b\[1m *GPU [^\r]*\x1b\[0m")
        screen.type("m")
        screen.wait_for(lambda lines: any("neighbour" in line for line in lines), "program")
        self.assertIn("\x1b[7mm memory\x1b[0m", screen.seen)
        screen.type("q")
        self.assertEqual(screen.end(), (0, ""))
        for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
            plain = self.screen(environment={**os.environ, name: value})
            plain.wait_for(lambda lines: any("neighbour" in line for line in lines), "program")
            self.assertNotRegex(plain.seen, COLOUR)
            plain.type("q")
            self.assertEqual(plain.end(), (0, ""))

    def test_the_session_with_the_lease_is_green_and_one_without_a_connection_is_yellow(self):
        way = UnreliableWay(self.server.address, 0, 0, (1 << 20, 1 << 21))
        self.addCleanup(way.close)
        detached = start(way.address, "neighbour")
        self.addCleanup(detached.communicate)
        self.addCleanup(detached.kill)
        self.assertEqual(detached.stdout.readline(), "working\n")
        way.block()
        self.neighbours(2)
        screen = self.screen(columns=160)
        for colour, state in (("32", r"running\*"), ("33", r"detached \d+m\d\ds")):
            line = re.compile(rf"\x1b\[{colour}m *\d+ [^\r\x1b]* {state} [^\r\x1b]*\x1b\[0m")
            screen.wait_for(lambda _: line.search(screen.seen), f"line with {state}")
        screen.type("q")
        self.assertEqual(screen.end(), (0, ""))

    def test_a_pipe_gets_whole_tables_without_colours(self):
        self.neighbours(1)
        top = subprocess.Popen(self.words(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.addCleanup(top.wait)
        self.addCleanup(top.stdout.close)
        self.addCleanup(top.kill)
        lines = []
        while sum("neighbour" in line for line in lines) < 2:  # two intervals
            lines.append(top.stdout.readline())
            self.assertNotEqual(lines[-1], "", lines)
        self.assertNotIn("\x1b", "".join(lines))

    def test_a_session_is_ended_after_a_question(self):
        program = start(self.server.address, "neighbour")
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "working\n")
        screen = self.screen()
        lines = screen.wait_for(lambda lines: any("neighbour" in line for line in lines), "program")
        number = next(line.split()[0] for line in lines if "neighbour" in line)
        screen.type("x" + number + "7\x7f")
        screen.wait_for(lambda lines: f"session to end: {number}_" in lines[-1], "number")
        screen.type("\r")
        question = screen.wait_for(lambda lines: "end it? y n" in lines[-1], "question")[-1]
        self.assertIn("neighbour", question)
        screen.type("n")
        screen.wait_for(lambda lines: lines[-1] == "nothing was ended", "word that nothing was ended")
        self.assertIsNone(program.poll())
        screen.type(f"x{number}\ry")
        screen.wait_for(lambda lines: lines[-1] == f"session {number} was told to end", "word of the end")
        self.assertNotEqual(program.wait(RUN_LIMIT_SECONDS), 0)
        screen.type("x99999\ry")
        screen.wait_for(lambda lines: "99999" in lines[-1] and "no " in lines[-1], "word that there is none")
        screen.type("q")
        self.assertEqual(screen.end(), (0, ""))

    def test_a_terminal_that_becomes_narrow_has_a_screen_that_fits(self):
        self.neighbours(1)
        screen = self.screen(columns=160)
        screen.wait_for(lambda lines: any(len(line) > 100 for line in lines), "wide table")
        screen.seen = ""
        screen.resize(ROWS, 60)
        screen.process.send_signal(signal.SIGWINCH)
        screen.wait_for(lambda lines: any("neighbour" in line for line in lines) and
                        all(len(line) <= 60 for line in lines[:-1]), "narrow table")
        screen.process.send_signal(signal.SIGTERM)
        self.assertEqual(screen.end(), (0, ""))

    def test_a_server_that_ends_is_told_when_the_terminal_is_as_it_was(self):
        screen = self.screen()
        screen.wait_for(lambda lines: any("GPU%" in line for line in lines), "table")
        self.server.stop()
        code, err = screen.end()
        self.assertEqual(code, 1)
        self.assertRegex(err, r"^gpuwire top: .*\n$")


class OwnTop(Top):
    """Over the network, as a tenant."""

    def words(self):
        return [GPUWIRE, "top", "--server", self.server.address, "--interval", "0.2"]

    def test_a_server_that_does_not_answer_keeps_nobody(self):
        silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(silent.close)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        for key in ("q", "\x03"):
            screen = Screen(self, [GPUWIRE, "top", "--server", address])
            screen.wait_for(lambda lines: lines[0].startswith(f"waiting for an answer from {address}"), "first line")
            screen.type(key)
            self.assertEqual(screen.end(), (0, ""))


if __name__ == "__main__":
    unittest.main()
