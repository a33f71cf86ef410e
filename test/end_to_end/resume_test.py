"""A session outlives its connection: programs whose connection is cut again and again only notice a delay, and no other
client can resume it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

from support import (
    BUILD,
    DEVICE,
    FRAME,
    LONG,
    PREFACE,
    PROGRAMS,
    RUN_LIMIT_SECONDS,
    ServerCase,
    Server,
    children,
    preface,
    read_exactly,
    run,
    start,
    wait_for_answer,
    wait_until,
)
import control_messages
from unreliable_way import UnreliableWay

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251122"))
# The cuts of all programs and both kinds of connection together.
CUTS = int(os.environ.get("GPUWIRE_TEST_CUTS", "200" if LONG else "60"))
# A connection is cut only after so many bytes: a login takes some thousand bytes over TLS, and each attempt gets
# further than the one before.
CUT_BYTES = (4_000, 60_000)


CONTROL, RESUME_CHALLENGE, RESUME, RESUMED, LOGIN, LOGIN_ANSWER = 1, 7, 8, 9, 4, 5
# The examples and test programs that run on a server with one software device with the same output each time. Those
# with most traffic come last: they take the remaining cuts.
EXAMPLES_TO_CUT = ("add_one", "context_bound_modules", "context_free_library", "errors", "managed_symbol", "reduction",
                   "streams_events", "pinned_async", "vector_add", "matmul_tiled")
TEST_PROGRAMS_TO_CUT = (
    "bad_modules", "cooperative", "edges", "error_log", "events", "first_error", "forbidden_in_captures", "forks",
    "fresh_thread", "graph_capture", "graph_conditional", "graph_host_nodes", "graph_kernel_nodes",
    "graph_memory_nodes", "graph_updates", "large_parameters", "launch_blocking", "limits", "link",
    "memory_operations", "out_of_memory", "per_thread_streams", "rounds", "saturate", "separate_units",
    "stream_properties", "symbols", "texture_objects", "textures", "training_loop", "batch_copies", "callbacks_fault",
    "cooperation", "device_output", "device_reset", "crash_states", "graph_orders", "large_library", "mapped_memory",
    "pinned_pointers", "managed_threads", "virtual_memory", "vmm_share", "many_waits", "pinned_in_place", "callbacks",
    "stream_ordered", "cached_memory", "threads", "host_memory", "copies", "managed_memory", "graph_copies")
# Of these the programs each of which covers something of its own: images, results for the host, callbacks, graphs,
# mapped, pinned and managed memory, memory of other processes, several threads. The long form cuts the other programs,
# too.
OF_ITS_KIND = ("matmul_tiled", "managed_symbol", "graph_memory_nodes", "textures", "device_output", "mapped_memory",
               "virtual_memory", "vmm_share", "pinned_in_place", "callbacks", "stream_ordered", "threads",
               "host_memory", "managed_memory", "graph_copies")
PROGRAMS_TO_CUT = tuple(
    program for program in (*((os.path.join(BUILD, "examples", name),) for name in EXAMPLES_TO_CUT),
                            *((name,) for name in TEST_PROGRAMS_TO_CUT), ("graph_loop", "100"),
                            ("large_copies", "8", "1"))
    if LONG or len(program) > 1 or os.path.basename(program[0]) in OF_ITS_KIND)
# Its output depends on other programs' device memory.
WANTS_TO_BE_ALONE = ("out_of_memory",)
# The minimum number of programs that are cut: the smallest end before their first cut.
PROGRAMS_FOUND = 20 if LONG else 8


def control(ordinal, message):
    """A control frame."""
    return FRAME.pack(CONTROL, 0, 0x5747, ordinal, 0, len(message) // 8, 0, 0) + message


def read_frame(link):
    header = FRAME.unpack(read_exactly(link, FRAME.size))
    return header[3], read_exactly(link, header[5] * 8)


def frames_of(said):
    """Returns the frames, with their bodies, after a preface."""
    rest, frames = said[PREFACE.size:], []
    while len(rest) >= FRAME.size:
        size = FRAME.size + FRAME.unpack(rest[:FRAME.size])[5] * 8
        if len(rest) < size:
            break
        frames.append(rest[:size])
        rest = rest[size:]
    return frames


class ResumeCase(unittest.TestCase):
    GRACE = "10min"
    SERVER_WORDS = 'open_tenant = "open"\n'
    TENANTS = "[tenants.open]\n[tenants.other]\n"
    uncut = {}  # programs' output over an uncut connection, by TCP or TLS


    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.audit = os.path.join(cls.folder.name, "audit.jsonl")
        configuration = os.path.join(cls.folder.name, "gpuwire.toml")
        with open(configuration, "w", encoding="ascii") as out:
            out.write(
                f'[server]\nresume_grace = "{cls.GRACE}"\naudit_log = "{cls.audit}"\n{cls.SERVER_WORDS}\n{cls.TENANTS}')
        cls.server = Server(BUILD, ["--device", DEVICE, "--config", configuration]).__enter__()

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        cls.folder.cleanup()
        if code != 0:
            raise AssertionError(f"the server ended with {code}:\n" + "".join(cls.server.log))

    def audited(self, *words):
        with open(self.audit, encoding="utf-8") as lines:
            return sum(all(word in line for word in words) for line in lines)

    def events(self, name):
        with open(self.audit, encoding="utf-8") as lines:
            return [event for event in map(json.loads, lines) if event["event"] == name]

    def way(self, cuts, seed, **extra):
        way = UnreliableWay(self.server.address, cuts, seed, CUT_BYTES, **extra)
        self.addCleanup(way.close)
        return way

    def await_end_of_sessions(self):
        """Waits for the end of all sessions: a client whose last connection was cut has ended, while its session's
        grace still runs."""
        wait_until(lambda: self.audited('"event":"ended"') >= self.audited('"event":"begun"'), RUN_LIMIT_SECONDS,
                   "the end of all sessions")

    def said_uncut(self, program, **extra):
        if program not in ResumeCase.uncut:
            if program[0] in WANTS_TO_BE_ALONE:
                self.await_end_of_sessions()
            there = run(self.server.address, *program, **extra)
            self.assertEqual(there.returncode, 0, there.stderr)
            ResumeCase.uncut[program] = there.stdout
        return ResumeCase.uncut[program]

    def cut_all(self, cuts, **extra):
        """Runs the programs, each with its part of the cuts and the rest of the ones before, until all cuts are made;
        each output has to equal the uncut one. Returns the number of cuts, and of programs that were cut."""
        left, found = cuts, 0
        for number, program in enumerate(PROGRAMS_TO_CUT):
            seed, share = SEED + number, -(-left // (len(PROGRAMS_TO_CUT) - number))
            with self.subTest(program=program, seed=seed):
                if program[0] in WANTS_TO_BE_ALONE:
                    self.await_end_of_sessions()
                way = self.way(share, seed)
                cut = run(way.address, *program, **extra)
                left, found = left - way.lost, found + (way.lost > 0)
                self.assertEqual(cut.returncode, 0, cut.stderr + "".join(self.server.log[-20:]))
                self.assertEqual(cut.stdout, self.said_uncut(program, **extra))
        return cuts - left, found


class Resume(ResumeCase):
    def test_programs_notice_nothing_of_connections_that_are_cut(self):
        cuts, found = self.cut_all(CUTS * 3 // 5)
        print(f"{cuts} cuts of {found} programs")
        self.assertGreaterEqual(cuts, CUTS * 3 // 5)
        self.assertGreaterEqual(found, PROGRAMS_FOUND)
        wait_until(lambda: self.audited('"event":"attached"') > CUTS // 5, RUN_LIMIT_SECONDS, "returns of clients")

    def test_a_program_that_does_not_want_to_ends_with_its_connection(self):
        way = self.way(1, SEED)
        lost = run(way.address, "copies", env={**os.environ, "GPUWIRE_RESUME": "off"})
        self.assertNotEqual(lost.returncode, 0)
        self.assertIn("the connection to the server was lost", lost.stderr)
        self.assertEqual(way.made, 1)

    def test_a_program_hears_of_a_long_loss_and_of_its_end_in_one_line_each_and_the_account_counts_it(self):
        way = self.way(0, SEED)
        running = subprocess.Popen([
            os.path.join(BUILD, "bin", "gpuwire"), "run", "--stats", "--server", way.address, "--",
            os.path.join(PROGRAMS, "neighbour")
        ], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(running.stdout.readline(), "working\n")
        way.block()
        line = running.stderr.readline()
        told = re.search(r"^gpuwire: \S+: the connection was lost \(.+\); trying for (\d+) s to reconnect$", line)
        self.assertTrue(told, line)
        # The server's grace is as long.
        wait_until(lambda: self.audited('"event":"detached"') >= 1, RUN_LIMIT_SECONDS, "the loss, audited")
        with open(self.audit, encoding="utf-8") as file:
            lost = [json.loads(one) for one in file if '"event":"detached"' in one][-1]
        self.assertLessEqual(int(told[1]), lost["seconds_left"])
        self.assertGreater(lost["seconds_left"], 500)
        way.unblock()
        self.assertRegex(running.stderr.readline(),
                         r"^gpuwire: \S+: connected again after \d+\.\d s; the session goes on$")
        out, err = running.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)
        self.assertRegex(err, r"gpuwire: connections lost: [12], \d+\.\d+ ms without one, .+ sent again")
        self.assertNotIn("the connection was lost", err)


LANES = {"GPUWIRE_LANES": "3"}
LANES_OPENED = "gpuwire: lanes: 3 further connections for bulk"
ROUNDS_MOST = 32


def copied(address, rounds, **extra):
    return subprocess.run([
        os.path.join(BUILD, "bin", "gpuwire"), "run", "--stats", "--server", address, "--",
        os.path.join(PROGRAMS, "large_copies"), "48", str(rounds)
    ], capture_output=True, text=True, env={**os.environ, **LANES, **extra}, timeout=RUN_LIMIT_SECONDS)


def copied_over_lanes(address, rounds, **extra):
    """Returns a run that lasted until it had lanes, and its rounds: lanes are opened beside the copies, late on a busy
    machine."""
    while True:
        ran = copied(address, rounds, **extra)
        if LANES_OPENED in ran.stderr or ran.returncode != 0 or rounds >= ROUNDS_MOST:
            return ran, rounds
        rounds *= 4


class Lanes(ResumeCase):
    """Sessions whose large copies go over further connections."""

    SERVER_WORDS = 'open_tenant = "open"\nlanes_max = 3\n'
    # A lane, or the session's own connection, breaks in the middle of copies.
    CUT_BYTES = (100_000, 24_000_000)
    SEEDS_LEAST, SEEDS_MOST = 4, 12  # further seeds until one has lanes

    def test_large_copies_go_over_lanes_and_come_back_as_they_do_without(self):
        with_lanes, rounds = copied_over_lanes(self.server.address, 2)
        self.assertEqual(with_lanes.returncode, 0, with_lanes.stderr)
        without = copied(self.server.address, rounds, GPUWIRE_LANES="1")
        self.assertEqual(with_lanes.stdout, without.stdout)
        self.assertNotIn("lanes:", without.stderr)
        self.assertRegex(with_lanes.stderr,
                         LANES_OPENED + ", of which the last used [123], .+ over them")
        self.assertNotIn("connections lost", with_lanes.stderr)

    def test_programs_notice_nothing_of_lanes_and_connections_that_are_cut(self):
        cuts = over_lanes = 0
        there = {rounds: copied(self.server.address, rounds) for rounds in (2, 8)}
        for number in range(self.SEEDS_MOST):
            rounds = 2 if number < self.SEEDS_LEAST else 8
            if number >= self.SEEDS_LEAST and over_lanes:
                break
            with self.subTest(seed=SEED + number):
                way = UnreliableWay(self.server.address, 24, SEED + number, self.CUT_BYTES)
                self.addCleanup(way.close)
                cut = copied(way.address, rounds)
                self.assertEqual(cut.returncode, 0, cut.stderr)
                self.assertEqual(cut.stdout, there[rounds].stdout)
                cuts += way.lost
                over_lanes += LANES_OPENED in cut.stderr
        print(f"{cuts} cuts")
        self.assertGreaterEqual(cuts, 24)
        self.assertGreaterEqual(over_lanes, 1)

    def test_a_program_that_is_killed_in_the_middle_keeps_nothing(self):
        detached = self.audited('"event":"detached"')
        copier = subprocess.Popen([
            os.path.join(BUILD, "bin", "gpuwire"), "run", "--server", self.server.address, "--",
            os.path.join(PROGRAMS, "large_copies"), "32", "100000"
        ], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **LANES})
        for _ in range(4):
            self.assertRegex(copier.stdout.readline(), "^round ")
        ended = self.audited('"event":"ended"', '"cause":"cut"')
        copier.kill()
        copier.communicate()
        wait_until(lambda: self.audited('"event":"ended"', '"cause":"cut"') == ended + 1, RUN_LIMIT_SECONDS,
                   "the end of the session")
        self.assertEqual(self.audited('"event":"detached"'), detached)


class HostileCase(ResumeCase):
    """An attacker who knows a session's identity, or has overheard its client's resumption, and tries to take it
    over."""

    SERVER_WORDS = 'open_tenant = "open"\nsessions_max = 200\n'
    CUTS_OF_VICTIM = 1

    def lose_connection_of_victim(self):
        """Makes the victim resume, in addition to the cuts."""

    @classmethod
    def setUpClass(cls):
        cls.identity = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.identity, ignore_errors=True)
        admin = [os.path.join(BUILD, "bin", "gpuwire"), "admin", "--directory", os.path.join(cls.identity, "identity")]
        subprocess.run([*admin, "init"], check=True, capture_output=True)
        subprocess.run([*admin, "add-tenant", "other", "--token", "--out",
                        os.path.join(cls.identity, "other.token")], check=True, capture_output=True)
        with open(os.path.join(cls.identity, "other.token"), "rb") as file:
            cls.token = file.read().split()[-1]  # behind a line of comment
        cls.TENANTS = f'[tls]\ndirectory = "{cls.identity}/identity"\n[tenants.open]\n[tenants.other]\n'
        super().setUpClass()

    def setUp(self):
        self.attached_before = self.audited('"event":"attached"')
        self.way_of_victim = self.way(self.CUTS_OF_VICTIM, SEED, record_bytes=2000)
        self.victim = start(self.way_of_victim.address, "neighbour")
        self.addCleanup(self.victim.kill)
        self.assertEqual(self.victim.stdout.readline(), "working\n")
        self.lose_connection_of_victim()
        # The victim has resumed once, and the attacker has overheard it: preface, Login with the session's identity,
        # challenge, proof.
        wait_until(lambda: self.audited('"event":"attached"') > self.attached_before, RUN_LIMIT_SECONDS,
                   "the victim's own resumption")
        # On a busy machine an earlier connection may have been abandoned.
        self.overheard, self.frames = next(
            (said, frames[:3]) for said, frames in ((bytes(said), frames_of(bytes(said)))
                                                for said in self.way_of_victim.recorded[1:]) if len(frames) >= 3)
        self.session_id = self.frames[0][-16:]

    def connection(self):
        host, port = self.server.address.rsplit(":", 1)
        link = socket.create_connection((host, int(port)), timeout=RUN_LIMIT_SECONDS)
        link.sendall(preface())
        read_exactly(link, PREFACE.size)
        return link

    def log_in(self, link, session_id, token=b""):
        link.sendall(control(LOGIN, control_messages.login(token, session_id)))
        ordinal, answer = read_frame(link)
        self.assertEqual(ordinal, LOGIN_ANSWER)
        return answer

    def prove(self, link, proof, attempt=1 << 40):
        """Returns the worker's answer to this proof; None: it has closed."""
        link.sendall(control(RESUME_CHALLENGE, control_messages.resume_challenge()))
        try:
            self.assertEqual(read_frame(link)[0], RESUME_CHALLENGE)
            link.sendall(control(RESUME, control_messages.resume(attempt, proof, 0)))
            return read_frame(link)[1]
        except (EOFError, OSError):
            return b""


class Expired(HostileCase):
    # A closed connection leaves the session one second, a silent one ten minutes: so the victim's own resumption has
    # enough time, and a session that the test closes ends soon.
    SERVER_WORDS = HostileCase.SERVER_WORDS + 'hang_up_grace = "1s"\n'
    CUTS_OF_VICTIM = 0

    def lose_connection_of_victim(self):
        self.way_of_victim.swallow()
        self.way_of_victim.pass_on()  # over the next connection

    def test_a_session_whose_grace_is_over_is_nobody_s_any_more_and_its_own_client_hears_why(self):
        why = "the session has ended: the client did not come back within 1 s of the loss of its connection"
        self.way_of_victim.block()
        wait_until(lambda: self.audited('"event":"ended"', '"cause":"resume_grace"') == 1, RUN_LIMIT_SECONDS,
                   "the end of the session")
        attached = self.audited('"event":"attached"')
        with self.connection() as link:
            self.assertIn(why.encode(), self.log_in(link, self.session_id), "who knows its identity")
        with self.connection() as link:
            link.sendall(self.frames[0])
            self.assertIn(why.encode(), read_frame(link)[1], "a replay")
        with self.connection() as link:
            answer = self.log_in(link, self.session_id, self.token)
            self.assertIn(b"the session has ended", answer, "another tenant")
            self.assertNotIn(b"come back", answer, "what another tenant is told")
        wait_for_answer(lambda: self.audited('"event":"refused"', '"why":"resume"', '"tenant":"open"', why), 2,
                        "the two who knew the identity, in the audit log")
        wait_for_answer(lambda: self.audited('"event":"refused"', '"why":"resume"', '"tenant":"other"'), 1,
                        "the other tenant, in the audit log")
        self.way_of_victim.unblock()
        out, err = self.victim.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertFalse(out.rstrip().endswith("PASSED"), out)
        self.assertTrue("the session does not go on" in err, err)
        self.assertEqual(self.audited('"event":"attached"'), attached)


class Hostile(HostileCase):
    AT_ONCE, THREADS = 1000, 40

    def tearDown(self):
        out, err = self.victim.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), f"the victim noticed: {out}{err}")

    def test_nobody_else_gets_in(self):
        refused = self.audited('"event":"resume_refused"')
        with self.connection() as link:
            self.log_in(link, self.session_id)
            self.assertIn(b"the session is not this client's", self.prove(link, bytes(range(32))), "a wrong secret")
        with self.connection() as link:
            self.assertIn(b"the session has ended", self.log_in(link, self.session_id, self.token), "another tenant")
        with self.connection() as link:
            self.assertIn(b"the session has ended", self.log_in(link, bytes(16)), "an identity that is none")
        # An exact replay of the client's messages: its proof answers another challenge.
        with self.connection() as link:
            for frame in self.frames:
                link.sendall(frame)
                ordinal, answer = read_frame(link)
            self.assertEqual(ordinal, RESUMED)
            self.assertIn(b"the session is not this client's", answer, "a replay")
        wait_until(lambda: self.audited('"event":"resume_refused"') == refused + 2, RUN_LIMIT_SECONDS,
                   "the two attempts that came to the worker, in the audit log")
        self.assertEqual(self.audited('"event":"attached"'), self.attached_before + 1)

    def test_a_thousand_at_once_keep_the_client_neither_out_nor_get_in(self):
        turns, let_in, answered = iter(range(self.AT_ONCE)), [], []
        lock = threading.Lock()

        def attack():
            while True:
                with lock:
                    if next(turns, None) is None:
                        return
                try:
                    with self.connection() as link:
                        self.log_in(link, self.session_id)
                        answer = self.prove(link, os.urandom(32))
                        answered.append(bool(answer))
                        if answer and b"not this client's" not in answer:
                            let_in.append(answer)
                except (EOFError, OSError):
                    answered.append(False)

        threads = [threading.Thread(target=attack) for _ in range(self.THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answered), self.AT_ONCE)
        self.assertGreater(sum(answered), 0)
        self.assertEqual(let_in, [])
        self.assertEqual(self.audited('"event":"attached"'), self.attached_before + 1)
        # The session's own client can resume, meanwhile and afterwards.
        self.way_of_victim.block()
        self.way_of_victim.unblock()
        wait_until(lambda: self.audited('"event":"attached"') > self.attached_before + 1, RUN_LIMIT_SECONDS,
                   "the victim's next resumption")


class Endings(ResumeCase):
    GRACE = "5min"
    SERVER_WORDS = 'open_tenant = "open"\nhang_up_grace = "500ms"\n'

    def killed(self, address):
        copier = start(address, "endless_copies")
        self.assertEqual(copier.stdout.readline(), "copying\n")
        copier.kill()
        copier.communicate()

    def test_a_program_that_is_killed_on_the_server_s_own_machine_keeps_nothing(self):
        detached = self.audited('"event":"detached"')
        self.killed(self.server.address)
        wait_until(lambda: self.audited('"event":"ended"', '"cause":"cut"', "ended without a goodbye") == 1,
                   RUN_LIMIT_SECONDS, "the end of the session")
        self.assertEqual(self.audited('"event":"detached"'), detached)

    def test_a_program_that_is_killed_behind_a_proxy_keeps_its_session_for_the_short_grace(self):
        detached = self.audited('"event":"detached"')
        self.killed(self.way(0, SEED).address)
        wait_until(lambda: self.audited('"event":"ended"', '"cause":"resume_grace"') == 1, RUN_LIMIT_SECONDS,
                   "the end of the session")
        wait_for_answer(lambda: self.audited('"event":"detached"'), detached + 1, "the loss of the connection")

    def test_a_program_whose_grace_is_over_is_told_the_reason_that_the_server_has_noted(self):
        way = self.way(0, SEED)
        running = start(way.address, "endless_copies")
        self.addCleanup(running.communicate)
        self.addCleanup(running.kill)
        self.assertEqual(running.stdout.readline(), "copying\n")
        session = self.events("begun")[-1]["session"]
        way.block()
        wait_until(lambda: [one for one in self.events("ended") if one["session"] == session], RUN_LIMIT_SECONDS,
                   "the end of the session")
        ended, = (one for one in self.events("ended") if one["session"] == session)
        self.assertEqual(ended["cause"], "resume_grace")
        self.assertIn("the client did not come back within 0.5 s of the loss of its connection", ended["reason"])
        way.unblock()
        out, err = running.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertNotEqual(running.returncode, 0, out)
        self.assertEqual(out, "cudaErrorDevicesUnavailable\n", err)
        self.assertRegex(err, "the session does not go on: .*the session has ended: " + re.escape(ended["reason"]))

    def test_a_worker_that_died_is_one_error_and_one_line(self):
        copier = start(self.server.address, "endless_copies")
        self.assertEqual(copier.stdout.readline(), "copying\n")
        for worker in children(self.server.process.pid, "gpuwire-worker"):
            os.kill(worker, signal.SIGKILL)
        out, err = copier.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertIn("cudaError", out)
        self.assertEqual(sum(line.startswith("gpuwire") for line in err.splitlines()), 1, err)
        self.assertIn("the session has ended: its process ended with signal 9", err)


class Losses(ResumeCase):
    """The client and the server describe a lost connection alike: the connection ends without a goodbye."""

    GRACE = "2h"
    HANG_UP_SECONDS = 3600
    SERVER_WORDS = f'open_tenant = "open"\nhang_up_grace = "{HANG_UP_SECONDS}s"\n'

    def test_both_tell_the_same_time_and_the_same_cause_and_a_session_that_has_returned_goes_on(self):
        way = self.way(0, SEED)
        running = start(way.address, "neighbour")
        self.addCleanup(running.communicate)
        self.addCleanup(running.kill)
        self.assertEqual(running.stdout.readline(), "working\n")
        way.block()
        line = running.stderr.readline()
        told = re.search(r"the connection was lost \((.+?)(?:; now: .+)?\); trying for (\d+) s to reconnect$", line)
        self.assertTrue(told, line)
        wait_until(lambda: self.audited('"event":"detached"'), RUN_LIMIT_SECONDS, "the loss, audited")
        lost, = self.events("detached")
        self.assertEqual(told[1], lost["reason"])
        # The client's line comes later than the server's, and before half of the time is over.
        self.assertLessEqual(int(told[2]), lost["seconds_left"])
        self.assertLessEqual(lost["seconds_left"], self.HANG_UP_SECONDS)
        self.assertGreater(int(told[2]), self.HANG_UP_SECONDS / 2)
        way.unblock()
        self.assertRegex(running.stderr.readline(), r"connected again after \d+\.\d s; the session goes on$")
        out, err = running.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)


class Detached(ServerCase):
    """A detached session, whose client tries to reconnect and cannot yet."""

    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
            file.write(
                '[server]\nopen_tenant = "open"\nhang_up_grace = "1h"\nresume_grace ='
                ' "1h"\n[defaults]\nresume_grace_max = "10min"\n[tenants.open]\n'
            )
        cls.addClassCleanup(os.unlink, file.name)
        cls.server_arguments = ("--config", file.name)
        super().setUpClass()

    def setUp(self):
        self.way = UnreliableWay(self.server.address, 0, SEED, CUT_BYTES)
        self.addCleanup(self.way.close)
        self.running = start(self.way.address, "neighbour")
        self.assertEqual(self.running.stdout.readline(), "working\n")
        self.way.block()
        wait_until(lambda: self.session()["state"] == "detached", RUN_LIMIT_SECONDS, "the session without a connection")

    def tearDown(self):
        self.running.kill()
        self.running.communicate()
        self.way.unblock()

    def session(self):
        return self.status()["sessions"][0]

    def command(self, *arguments):
        folder = "/run/gpuwire" if os.geteuid() == 0 else f"/tmp/gpuwire-{os.geteuid()}"
        ran = subprocess.run([
            os.path.join(BUILD, "bin", "gpuwire"), *arguments, "--control", f"{folder}/{self.server.process.pid}.sock"
        ], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def test_it_is_shown_with_the_time_left_keeps_its_memory_and_takes_no_turns(self):
        session = self.session()
        # The tenant's bound applies, not the server's grace, and the remaining time decreases.
        self.assertLess(0, session["detached_left_s"])
        self.assertLess(session["detached_left_s"], 600)
        wait_until(lambda: self.session()["detached_left_s"] < session["detached_left_s"], RUN_LIMIT_SECONDS,
                   "less time left")
        for shown in (self.command("status"), self.command("admin", "sessions"),
                      self.command("top", "--once", "--interval", "0.1")):
            self.assertRegex(shown, r"detached \d+m\d\ds")
        self.assertGreater(session["devices"][0]["memory_used_bytes"], 0)
        wait_until(lambda: self.session()["in_flight_ns"] == 0, RUN_LIMIT_SECONDS, "its last work is done")

        def takes_no_turn_beside_another():
            leases = self.session()["leases"]
            self.assert_passed(run(self.server.address, "saturate", "steps", "50"))
            return self.session()["leases"] == leases

        # Beside it another session works alone: no work waits at a gate, and a session without work gets no lease. The
        # worker may still execute frames received before the cut, a bounded number.
        wait_until(takes_no_turn_beside_another, RUN_LIMIT_SECONDS, "no turns any more")
        session = self.session()
        self.assertEqual((session["holds_lease"], session["state"]), (False, "detached"))
        self.way.unblock()
        wait_until(lambda: self.session()["state"] == "running", RUN_LIMIT_SECONDS, "the session goes on")
        self.assertEqual(self.session()["detached_left_s"], 0)

    def test_an_administrator_ends_it_and_its_client_hears_so(self):
        self.command("admin", "end", str(self.session()["id"]), "--reason", "enough")
        wait_until(lambda: not self.status()["sessions"], RUN_LIMIT_SECONDS, "no session")
        self.way.unblock()
        out, err = self.running.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertNotEqual(self.running.returncode, 0)
        self.assertRegex(err, "the session has ended: .*enough")


class Silent(ResumeCase):
    """Silently dead connections: neither end is closed, and all sent bytes are accepted."""

    def sessions(self):
        folder = "/run/gpuwire" if os.geteuid() == 0 else f"/tmp/gpuwire-{os.geteuid()}"
        told = subprocess.run([
            os.path.join(BUILD, "bin", "gpuwire"), "status", "--json", "--control",
            f"{folder}/{self.server.process.pid}.sock"
        ], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
        return [session["state"] for session in json.loads(told.stdout)["sessions"]]

    def test_both_ends_find_out_and_the_session_goes_on_whether_its_program_does_nothing_or_posts(self):
        ways, programs = [], []
        for arguments in (("idle",), ("until", "1000")):
            ways.append(self.way(0, SEED))
            programs.append(start(ways[-1].address, "saturate", *arguments))
            self.addCleanup(programs[-1].kill)
            self.assertEqual(programs[-1].stdout.readline(), "working\n")
        made = [way.made for way in ways]
        attached = self.audited('"event":"attached"')
        for way in ways:
            way.swallow()
        # The server detects it by itself, before any reconnection of the clients; and so do the clients.
        wait_until(lambda: self.sessions() == ["detached", "detached"], RUN_LIMIT_SECONDS,
                   "both sessions without a connection")
        wait_until(lambda: all(way.made > before for way, before in zip(ways, made)), RUN_LIMIT_SECONDS,
                   "the next connection of both clients")
        self.assertEqual(self.audited('"event":"attached"'), attached)
        for way in ways:
            way.pass_on()
        wait_until(lambda: self.sessions() == ["running", "running"], RUN_LIMIT_SECONDS, "both sessions go on")
        for program in programs:
            out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
            self.assertTrue(out.rstrip().endswith("PASSED"), out + err)


class Encrypted(ResumeCase):
    SERVER_WORDS = "lanes_max = 3\n"

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            pass
        cls.identity = folder
        admin = [os.path.join(BUILD, "bin", "gpuwire"), "admin", "--directory", os.path.join(folder, "identity")]
        os.mkdir(folder)
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        subprocess.run([*admin, "init"], check=True, capture_output=True)
        subprocess.run([*admin, "add-tenant", "anna", "--out",
                        os.path.join(folder, "anna.pem")], check=True, capture_output=True)
        cls.TENANTS = f'[tls]\ndirectory = "{folder}/identity"\n[tenants.anna]\n'
        super().setUpClass()

    def test_over_tls_each_lane_has_a_channel_of_its_own_and_a_cut_is_not_noticed(self):
        extra = {"GPUWIRE_IDENTITY": os.path.join(self.identity, "anna.pem")}
        there, rounds = copied_over_lanes(self.server.address, 1, **extra)
        self.assertEqual(there.returncode, 0, there.stderr)
        self.assertRegex(there.stderr, r"gpuwire: server: \S+ over tls")
        self.assertIn(LANES_OPENED, there.stderr)
        way = UnreliableWay(self.server.address, 24, SEED, Lanes.CUT_BYTES)
        self.addCleanup(way.close)
        cut = copied(way.address, rounds, **extra)
        self.assertEqual(cut.returncode, 0, cut.stderr)
        self.assertEqual(cut.stdout, there.stdout)
        self.assertGreaterEqual(way.lost, 4)

    def test_over_tls_programs_notice_nothing_either(self):
        cuts, found = self.cut_all(
            CUTS * 2 // 5, env={**os.environ, "GPUWIRE_IDENTITY": os.path.join(self.identity, "anna.pem")})
        print(f"{cuts} cuts of {found} programs")
        self.assertGreaterEqual(cuts, CUTS * 2 // 5)
        self.assertGreaterEqual(found, PROGRAMS_FOUND)


if __name__ == "__main__":
    unittest.main()
