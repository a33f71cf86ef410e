"""Several servers without a coordinator: a program starts at the one that has room, and waits at the one that promises
the earliest start. Two real servers on loopback, and addresses without a server."""

import json
import os
import re
import socket
import subprocess
import tempfile
import threading
import unittest

from support import BUILD, DEVICE, RUN_LIMIT_SECONDS, Server, nobody_listens, wait_until

GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
STUBS = os.path.join(BUILD, "lib", "gpuwire")
PROGRAM = os.path.join(BUILD, "test_programs", "neighbour")


class Forwarder:
    """A proxy to a server: it passes each connection on, until cut() ends all of them."""

    def __init__(self, test, address):
        host, port = address.rsplit(":", 1)
        self._to = (host, int(port))
        self._pairs, self._lock = [], threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listening.getsockname()[1]
        test.addCleanup(self.cut)
        test.addCleanup(self._listening.close)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listening.accept()
                pair = (client, socket.create_connection(self._to))
            except OSError:
                return
            with self._lock:
                self._pairs.append(pair)
            for source, target in (pair, pair[::-1]):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    @staticmethod
    def _pass_on(source, target):
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def cut(self):
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for one in (end for pair in pairs for end in pair):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()


class SeveralServers(unittest.TestCase):
    """Two servers of one software device each, on which one program runs at a time."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="gpuwire-several-")
        self.addCleanup(self.folder.cleanup)
        self.first, self.second = self.start_server("first"), self.start_server("second")
        self.both = f"{self.first.address},{self.second.address}"

    def start_server(self, name):
        file = os.path.join(self.folder.name, name + ".toml")
        with open(file, "w", encoding="utf-8") as out:
            out.write(f'[server]\nopen_tenant = "open"\nsessions_per_gpu_max = 1\n'
                      f'control_socket = "{self.folder.name}/{name}.control"\n'
                      f'audit_log = "{self.folder.name}/{name}.audit"\n[tenants.open]\n')
        server = Server(BUILD, ["--config", file, "--device", DEVICE])
        self.addCleanup(server.stop)
        return server.__enter__()

    def sessions(self, server, event):
        """Returns the sessions with this event in the server's audit log; queries are no sessions."""
        with open(os.path.join(self.folder.name, server + ".audit"), encoding="utf-8") as lines:
            events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [one["session"] for one in events if one["event"] == event and "management" not in one]

    def start(self, servers, *options, **environment):
        """A program that works until its standard input closes."""
        started = subprocess.Popen([GPUWIRE, "run", "--server", servers, *options, "--", PROGRAM],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, **environment})
        self.addCleanup(started.wait)
        self.addCleanup(started.communicate)
        self.addCleanup(started.kill)
        return started

    def assert_works(self, program):
        self.assertEqual(program.stdout.readline(), "working\n", "".join(self.first.log[-9:] + self.second.log[-9:]))

    def assert_passes(self, program):
        out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(program.returncode, 0, err)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)
        return err

    def fill(self, server):
        program = self.start(server.address)
        self.assert_works(program)
        return program

    def gpuwire(self, *words, **environment):
        return subprocess.run([GPUWIRE, *words], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                              env={**os.environ, **environment}, check=False)

    def programs(self, server):
        return json.loads(self.gpuwire("ps", "--json", "--server", server.address).stdout)

    def await_programs(self, server, number):
        wait_until(lambda: len(self.programs(server)) == number, RUN_LIMIT_SECONDS, f"{number} programs")

    def check(self, servers, *options):
        ran = self.gpuwire("run", "--check", "--json", "--server", servers, *options)
        self.assertEqual(ran.stderr, "")
        return ran.returncode, json.loads(ran.stdout)

    # --- the choice

    def test_the_first_one_that_is_free_is_used_without_a_word(self):
        program = self.start(self.both)
        self.assert_works(program)
        self.assertEqual((len(self.programs(self.first)), self.programs(self.second)), (1, []))
        self.assertEqual(self.assert_passes(program), "")

    def test_a_full_server_is_passed_over_with_one_line(self):
        full = self.fill(self.first)
        program = self.start(self.both)
        self.assert_works(program)
        self.assertEqual(len(self.programs(self.second)), 1)
        said = self.assert_passes(program)
        self.assertRegex(said, rf"^gpuwire run: using {self.second.address}; passed over: {self.first.address} "
                         r"\(place 1 of 1 in the queue: .*\)\n$")
        self.assert_passes(full)

    def test_a_profile_names_the_servers(self):
        with nobody_listens() as dead:
            os.makedirs(os.path.join(self.folder.name, "gpuwire"))
            with open(os.path.join(self.folder.name, "gpuwire", "config.toml"), "w", encoding="utf-8") as out:
                out.write(f'server = "{dead}"\n[profiles.lab]\n'
                          f'servers = ["{self.first.address}", "{self.second.address}"]\n')
            full = self.fill(self.first)
            # An address in this process's environment would be in the place of the file's.
            environment = {name: value for name, value in os.environ.items() if name != "GPUWIRE_SERVER"}
            environment["XDG_CONFIG_HOME"] = self.folder.name
            ran = subprocess.run([GPUWIRE, "run", "--use", "lab", "--", PROGRAM], stdin=subprocess.DEVNULL, text=True,
                                 capture_output=True, timeout=RUN_LIMIT_SECONDS, env=environment, check=False)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertRegex(ran.stderr, rf"^gpuwire run: using {self.second.address}; passed over: "
                             rf"{self.first.address} \(place 1 of 1 in the queue: .*\)\n$")
            ran = subprocess.run([GPUWIRE, "ps", "--use", "lab"], capture_output=True, text=True, env=environment,
                                 timeout=RUN_LIMIT_SECONDS, check=False)
            self.assertEqual(re.findall(r"^127\.0\.0\.1:\d+$", ran.stdout, re.M), self.both.split(","), ran.stderr)
            self.assert_passes(full)

    def test_a_dead_server_is_passed_over_with_one_line(self):
        with nobody_listens() as dead:
            program = self.start(f"{dead},{self.second.address}")
            self.assert_works(program)
            said = self.assert_passes(program)
        self.assertEqual(said.count("\n"), 1, said)
        self.assertIn(f"using {self.second.address}; passed over: {dead} (connection refused", said)

    def test_a_program_waits_at_the_shorter_queue(self):
        programs = [self.fill(self.first), self.fill(self.second)]
        waits = self.start(self.first.address)
        self.assertIn("place 1 of 1", waits.stderr.readline())
        program = self.start(self.both)
        self.assertIn(f"using {self.second.address}; passed over", program.stderr.readline())
        self.assertIn("place 1 of 1", program.stderr.readline())
        self.assert_passes(programs[1])
        self.assert_works(program)
        self.assert_passes(program)
        self.assert_passes(programs[0])
        self.assert_works(waits)
        self.assert_passes(waits)

    def test_a_program_waits_where_a_start_is_promised(self):
        for _ in range(3):
            self.assert_passes(self.fill(self.second))
            self.await_programs(self.second, 0)
        programs = [self.fill(self.first), self.fill(self.second)]
        code, told = self.check(self.both)
        self.assertEqual((code, told["answer"], told["server"]), (3, "queued", self.second.address))
        first, second = told["servers"]
        self.assertEqual((first["place"], second["place"]), (1, 1))
        self.assertIsNone(first["start_in_s"])
        self.assertGreaterEqual(second["start_in_s"], 0)
        program = self.start(self.both)
        self.assertIn(f"using {self.second.address}", program.stderr.readline())
        self.assertIn("place 1 of 1", program.stderr.readline())
        waiting, = (one for one in self.programs(self.second) if one["place"] == 1)
        self.assertLessEqual(waiting["start_in_s"], second["start_in_s"] + RUN_LIMIT_SECONDS)
        self.assertRegex(self.gpuwire("queue", "--server", self.second.address).stdout, r"STARTS IN .*\n +1 .* ~\d+s ")
        for one in (*programs, program):
            self.assert_passes(one)

    def test_servers_without_the_type_of_gpu_are_passed_over(self):
        code, told = self.check(self.both)
        self.assertEqual(code, 0)
        name = told["servers"][0]["gpus"][0]["name"]
        program = self.start(self.both, "--gpu-type", name.upper())
        self.assert_works(program)
        self.assert_passes(program)
        code, told = self.check(self.both, "--gpu-type", "h900")
        self.assertEqual((code, told["answer"], told["server"]), (1, "no", None))
        self.assertIn("no GPU of the type h900", told["servers"][0]["why"])
        program = self.start(self.first.address, "--gpu-type", "h900")
        out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertNotEqual(program.returncode, 0, out)
        self.assertIn("this server has no GPU of the type h900 for the tenant", err)

    def test_when_no_server_will_do_the_program_says_of_each_why(self):
        with nobody_listens() as dead, nobody_listens() as other:
            program = self.start(f"{dead},{other}")
            out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertNotEqual(program.returncode, 0, out)
        self.assertIn(f"gpuwire: none of 2 servers takes the program: {dead} (connection refused", err)
        self.assertIn(f"{other} (connection refused", err)

    def test_a_program_without_run_chooses_by_itself_and_its_libraries_meet_at_one_server(self):
        full = self.fill(self.first)
        environment = {**os.environ, "LD_LIBRARY_PATH": STUBS, "GPUWIRE_SERVER": self.both}
        program = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, env=environment)
        self.addCleanup(program.wait)
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        self.assert_works(program)
        self.assertEqual(len(self.programs(self.second)), 1)
        said = self.assert_passes(program)
        self.assertIn(f"gpuwire: using {self.second.address}; passed over: {self.first.address}", said)
        self.assert_passes(full)

    def assert_comes_back(self, *prefix, **environment):
        """`prefix`: the command in front of a program that chooses between the first server and the second, which has
        room all the time. Each server is new: a program that ran before would count as the load of one of them."""
        program = subprocess.Popen([*prefix, PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
        self.addCleanup(program.wait)
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        self.assert_works(program)
        begun, = (one["id"] for one in self.programs(self.first))
        self.way.cut()
        wait_until(lambda: begun in self.sessions("first", "attached"), RUN_LIMIT_SECONDS, "the program's return")
        self.assert_passes(program)
        self.assertEqual(self.sessions("second", "begun"), [])

    def test_a_program_comes_back_to_its_own_server_when_the_connection_is_lost(self):
        self.way = Forwarder(self, self.first.address)
        self.assert_comes_back(GPUWIRE, "run", "--server", f"{self.way.address},{self.second.address}", "--")

    def test_a_program_without_run_comes_back_to_its_own_server_when_the_connection_is_lost(self):
        self.way = Forwarder(self, self.first.address)
        self.assert_comes_back(LD_LIBRARY_PATH=STUBS, GPUWIRE_SERVER=f"{self.way.address},{self.second.address}")

    # --- would it start?

    def test_check_says_yes_later_or_no_and_starts_nothing(self):
        here = self.first.address
        ran = self.gpuwire("run", "--check", "--server", here)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertIn(f"{here}: the program would start now\n", ran.stdout)
        full = self.fill(self.first)
        code, told = self.check(here)
        self.assertEqual((code, told["answer"], told["servers"][0]["place"]), (3, "queued", 1))
        self.assertIn("limit of sessions", told["servers"][0]["why"])
        self.assertEqual(told["servers"][0]["gpus"][0]["programs"], 1)
        self.assertIn("the program would wait, at place 1 of 1", self.gpuwire("run", "--check", "-s", here).stdout)
        code, told = self.check(here, "--gpus", "9")
        self.assertEqual((code, told["answer"]), (1, "no"))
        self.assertIn("9 GPUs asked for", told["servers"][0]["why"])
        self.assertEqual(len(self.programs(self.first)), 1)
        self.assert_passes(full)
        with nobody_listens() as dead:
            code, told = self.check(dead)
        self.assertEqual((code, told["answer"]), (1, "no"))
        self.assertIn("connection refused", told["servers"][0]["why"])
        ran = self.gpuwire("run", "--json", "--server", here, "--", "true")
        self.assertEqual((ran.returncode, ran.stderr), (2, "gpuwire run: --json is for --check\n"))

    def test_a_program_that_is_not_to_wait_gets_an_error_that_says_so(self):
        full = self.fill(self.first)
        for options, environment in ((("--no-wait",), {}), ((), {"GPUWIRE_QUEUE": "off"})):
            program = self.start(self.first.address, *options, **environment)
            out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
            self.assertNotEqual(program.returncode, 0, out)
            self.assertRegex(err, r"gpuwire: \S+: the program would wait at place 1 of 1 \(.*\), and is not to")
        self.await_programs(self.first, 1)
        self.assert_passes(full)

    # --- commands over all

    def test_info_and_ps_and_usage_show_every_server(self):
        told = json.loads(self.gpuwire("info", "--quick", "--json", "--server", self.both).stdout)
        self.assertEqual([one["server"]["address"] for one in told], self.both.split(","))
        self.await_programs(self.first, 0)
        self.await_programs(self.second, 0)
        text = self.gpuwire("info", "--quick", GPUWIRE_SERVER=self.both).stdout
        self.assertEqual(len(re.findall(r"^server  ", text, re.M)), 2)
        self.await_programs(self.second, 0)
        program = self.fill(self.second)
        ran = self.gpuwire("info", "--quick", "--json", "--server", self.both)
        self.assertEqual((ran.returncode, len(json.loads(ran.stdout))), (1, 1))
        self.assertIn(f"{self.second.address}: the program would wait at place 1 of 1", ran.stderr)
        self.await_programs(self.first, 0)
        told = json.loads(self.gpuwire("ps", "--json", "--server", self.both).stdout)
        self.assertEqual([(one["server"], len(one["answer"])) for one in told],
                         [(self.first.address, 0), (self.second.address, 1)])
        text = self.gpuwire("ps", "--server", self.both).stdout
        self.assertRegex(text, rf"^{self.first.address}\nno program of tenant open runs or waits\n\n"
                         rf"{self.second.address}\n")
        self.assertIn(f"{self.second.address}\n", self.gpuwire("usage", "--server", self.both).stdout)
        self.await_programs(self.first, 0)
        with nobody_listens() as dead:
            ran = self.gpuwire("info", "--quick", "--json", "--server", f"{dead},{self.first.address}")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("connection refused", ran.stderr)
        self.assertEqual(len(json.loads(ran.stdout)), 1)
        ran = self.gpuwire("top", "--once", "--interval", "0.2", "--server", self.both)
        self.assertEqual(ran.stderr, f"gpuwire top: shows {self.first.address}, the first of 2 servers\n")
        self.assert_passes(program)

    def test_end_finds_programs_by_their_numbers_at_any_server(self):
        # The second server's session has a number that the first one has not used.
        self.assert_passes(self.fill(self.second))
        self.await_programs(self.second, 0)
        program, other = self.fill(self.second), self.fill(self.first)
        number, = (one["id"] for one in self.programs(self.second))
        self.assertNotEqual(number, self.programs(self.first)[0]["id"])
        ran = self.gpuwire("end", str(number), "--server", self.both)
        self.assertEqual((ran.returncode, ran.stderr), (2, "gpuwire end: there is no terminal to ask on: say --yes\n"))
        ran = self.gpuwire("end", str(number), "--yes", "--server", self.both)
        self.assertEqual((ran.returncode, ran.stdout),
                         (0, f"session {number} at {self.second.address} was told to end\n"), ran.stderr)
        # The program's input stays open, or it would end by itself.
        self.assertNotEqual(program.wait(RUN_LIMIT_SECONDS), 0)
        self.assertIn("ended by gpuwire end on ", program.stderr.read())
        ran = self.gpuwire("end", "--all", "--yes", "--server", self.both)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertNotEqual(other.wait(RUN_LIMIT_SECONDS), 0)
        self.await_programs(self.first, 0)
        ran = self.gpuwire("end", "--all", "--yes", "--server", self.both)
        self.assertEqual((ran.returncode, ran.stdout), (0, "no program that you may end runs or waits\n"))


if __name__ == "__main__":
    unittest.main()
