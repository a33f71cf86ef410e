"""Clients and workers that end at every point of the protocol: the other side notices, the server serves others, and
nothing of the session is left."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

from cutting_proxy import CALLED, CONTROL, NOTICE, POSTED, REPLY, CuttingProxy, Point
from support import BUILD, LONG, RUN_LIMIT_SECONDS, ServerCase, run, start, wait_until
import time_limit

PROGRAM = "crash_states"

# Ordinals of protocol/api/session.toml and wire/ordinals.hpp.
HELLO, WELCOME, GOODBYE, LOGIN, LOGIN_ANSWER = 1, 2, 3, 4, 5
LAUNCH, TO_DEVICE, FROM_DEVICE, MODULE_DATA, MODULE_LOAD = 10, 11, 12, 21, 22
SYNCHRONIZE = 1203
HOST_CALLBACK, COPY_DATA = 3, 4

# By name: the program's argument, and the point of the connection.
BEFORE_A_SESSION = {
    "mid-preface": ("steps", Point("client", "preface")),
    "after the client's preface": ("steps", Point("client", "whole")),
    "mid-preface of the server": ("steps", Point("server", "preface")),
    "after both prefaces": ("steps", Point("server", "whole")),
    "mid-header of the first frame": ("steps", Point("client", "header")),
    "mid-login": ("steps", Point("client", "message", CONTROL, LOGIN)),
    "after the login": ("steps", Point("client", "whole", CONTROL, LOGIN)),
    "mid-answer to the login": ("steps", Point("server", "header", CONTROL, LOGIN_ANSWER)),
    "between admission and Hello": ("steps", Point("server", "whole", CONTROL, LOGIN_ANSWER)),
    "mid-Hello": ("steps", Point("client", "message", CONTROL, HELLO)),
}
IN_A_SESSION = {
    "after Hello": ("steps", Point("client", "whole", CONTROL, HELLO)),
    "mid-Welcome": ("steps", Point("server", "message", CONTROL, WELCOME)),
    "after Welcome": ("steps", Point("server", "whole", CONTROL, WELCOME)),
    "mid-bulk of an image": ("steps", Point("client", "bulk", POSTED, MODULE_DATA)),
    "while an image is loaded": ("steps", Point("client", "whole", CALLED, MODULE_LOAD)),
    "mid-launch": ("steps", Point("client", "message", None, LAUNCH)),
    "after a launch": ("steps", Point("client", "whole", None, LAUNCH)),
    "mid-bulk to the device": ("steps", Point("client", "bulk", None, TO_DEVICE)),
    "after a question": ("steps", Point("client", "whole", CALLED, FROM_DEVICE)),
    "mid-reply": ("steps", Point("server", "message", REPLY)),
    "mid-bulk of a reply": ("steps", Point("server", "bulk", REPLY)),
    "mid-bulk of a copy that runs back": ("steps", Point("server", "bulk", NOTICE, COPY_DATA)),
    "while a call waits": ("waits", Point("client", "whole", CALLED, SYNCHRONIZE)),
    "while a host function is awaited": ("host_function", Point("server", "whole", NOTICE, HOST_CALLBACK)),
}

class BesideANeighbour(ServerCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.neighbour = start(cls.server.address, "neighbour")
        if cls.neighbour.stdout.readline() != "working\n":
            raise AssertionError("the neighbour does not work")
        cls.neighbours_id = cls.snapshot()["sessions"][0]["id"]

    @classmethod
    def tearDownClass(cls):
        try:
            out, err = cls.neighbour.communicate(timeout=RUN_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            stacks = time_limit.stacks_below(os.getpid())
            cls.neighbour.kill()
            out, err = cls.neighbour.communicate()
            err += "the neighbour does not end\n" + stacks
        super().tearDownClass()
        if not out.rstrip().endswith("PASSED"):
            raise AssertionError(f"the neighbour noticed: {out}{err}")

    workers = 2  # with no session

    def setUp(self):
        wait_until(lambda: len(self.worker_ids()) >= self.workers, RUN_LIMIT_SECONDS,
                   "the neighbour's worker and a prewarmed one")
        self.memory = self.device_memory()

    # --- the server's view
    @classmethod
    def snapshot(cls):
        folder = "/run/gpuwire" if os.geteuid() == 0 else f"/tmp/gpuwire-{os.geteuid()}"
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(RUN_LIMIT_SECONDS)
            link.connect(f"{folder}/{cls.server.process.pid}.sock")
            link.sendall(b'{"command":"snapshot"}\n')
            return json.loads(link.makefile().readline())["snapshot"]

    def device_memory(self):
        return [device["memory_used_bytes"] for device in self.snapshot()["devices"]]

    def sessions(self):
        return [session for session in self.snapshot()["sessions"] if session["id"] != self.neighbours_id]

    def assert_nothing_left(self):
        wait_until(lambda: not self.sessions(), RUN_LIMIT_SECONDS, "no session but the neighbour's")
        wait_until(lambda: self.device_memory() == self.memory, RUN_LIMIT_SECONDS,
                   f"device memory used as before: {self.memory}")
        wait_until(lambda: len(self.worker_ids()) <= self.workers, RUN_LIMIT_SECONDS,
                   "no worker but the neighbour's and a prewarmed one")

    # --- one crash
    proxy = CuttingProxy

    def crash(self, where, point, strike, fails=True):
        """Runs the program, and calls `strike(proxy)` at the point; returns its exit code and its output."""
        started = threading.Event()

        def once_started(proxy):
            started.wait()
            strike(proxy)

        proxy = self.proxy(self.server.address, point, once_started)
        self.addCleanup(proxy.close)
        self.program = start(proxy.address, PROGRAM, where)
        started.set()
        self.addCleanup(self.program.kill)
        self.assertTrue(proxy.reached.wait(RUN_LIMIT_SECONDS), "the point is never reached")
        # The standard input stays open: the session's end has to release the host function that waits there.
        code = self.program.wait(RUN_LIMIT_SECONDS)
        said = self.program.stdout.read() + self.program.stderr.read()
        for pipe in (self.program.stdin, self.program.stdout, self.program.stderr):
            pipe.close()
        proxy.close()
        self.assertNotIn("succeeded after", said)
        if fails:
            self.assertEqual(code, 3, said)
            self.assertIn("cudaError", said)
        return code, said

    def each(self, points, strike, **how):
        for name, (where, point) in points.items():
            with self.subTest(name):
                self.crash(where, point, strike, **how)
                self.assert_nothing_left()

    def kill_client(self, proxy):
        self.program.kill()


class EndsAtPoints:
    """For a BesideANeighbour: ends of each side at each of POINTS, or at some of them."""

    RESETS, CLOSES, KILLED = slice(None), slice(None), slice(None)

    def tearDown(self):
        self.assert_passed(run(self.server.address, os.path.join(BUILD, "examples", "add_one")))
        self.assert_nothing_left()

    def some(self, which):
        return dict(list(self.POINTS.items())[which])

    def test_a_connection_that_is_reset(self):
        self.each(self.some(self.RESETS), lambda proxy: proxy.cut(reset=True))

    def test_a_connection_that_closes(self):
        self.each(self.some(self.CLOSES), lambda proxy: proxy.cut())

    def test_a_client_that_is_killed(self):
        self.each(self.some(self.KILLED), self.kill_client, fails=False)


class Crashes(BesideANeighbour):
    # A client whose connection is cut tries in vain to reconnect for this time.
    resume_grace = "300ms"
    # Every program sends its images again.
    server_arguments = ("--module-cache", "none")

    def tearDown(self):
        self.assert_passed(run(self.server.address, os.path.join(BUILD, "examples", "add_one")))
        self.assert_nothing_left()

    def kill_worker(self, proxy):
        wait_until(self.sessions, RUN_LIMIT_SECONDS, "the session is known")
        os.kill(self.sessions()[0]["worker_pid"], signal.SIGKILL)

    # --- all points
    def test_a_program_without_a_crash_passes(self):
        self.assert_passed(run(self.server.address, PROGRAM))

    def test_a_connection_that_is_reset_before_there_is_a_session(self):
        self.each(BEFORE_A_SESSION, lambda proxy: proxy.cut(reset=True))

    def test_a_connection_that_closes_before_there_is_a_session(self):
        points = list(BEFORE_A_SESSION.items())
        self.each(dict(points if LONG else points[::2]), lambda proxy: proxy.cut())

    def test_a_connection_without_a_word(self):
        host, port = self.server.address.rsplit(":", 1)
        for reset in (False, True):
            link = socket.create_connection((host, int(port)))
            if reset:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            link.close()

    def test_a_connection_that_is_reset_in_a_session(self):
        self.each(IN_A_SESSION, lambda proxy: proxy.cut(reset=True))

    def test_a_connection_that_closes_in_a_session(self):
        # The server's side is the same as above, so half of the points suffice.
        self.each(dict(list(IN_A_SESSION.items())[::2]), lambda proxy: proxy.cut())

    def test_a_client_that_is_killed(self):
        # The server sees the connection close at the same points, so a part of them suffices for the other closer.
        points = list({**BEFORE_A_SESSION, **IN_A_SESSION}.items())
        for name, (where, point) in points if LONG else points[1::3]:
            with self.subTest(name):
                code, said = self.crash(where, point, self.kill_client, fails=False)
                self.assertEqual(code, -signal.SIGKILL, said)
                self.assert_nothing_left()

    def test_a_worker_that_is_killed(self):
        self.each(IN_A_SESSION, self.kill_worker)

    def test_a_client_that_is_killed_while_it_says_goodbye(self):
        self.crash("steps", Point("client", "header", CONTROL, GOODBYE), self.kill_client, fails=False)
        self.assert_nothing_left()


class CrashesInTheQueue(BesideANeighbour):
    """The neighbour occupies the only place."""

    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
            file.write(
                "[server]\nopen_tenant = \"all\"\nsessions_per_gpu_max = 1\nresume_grace = \"300ms\"\n[tenants.all]\n")
        cls.server_arguments = ("--config", file.name)
        cls.addClassCleanup(os.unlink, file.name)
        super().setUpClass()

    QUEUED = Point("server", "whole", CONTROL, LOGIN_ANSWER)

    def assert_the_place_is_given_up(self, strike, **how):
        def in_the_queue(proxy):
            self.states = [session["state"] for session in self.sessions()]
            strike(proxy)

        self.crash("steps", self.QUEUED, in_the_queue, **how)
        self.assertEqual(self.states, ["queued"])
        self.assert_nothing_left()

    def lost(self, proxy, **how):
        """The client would reconnect for minutes, for its place with a restarted server; this server does not have that
        place any more."""
        proxy.cut(**how)
        wait_until(lambda: not self.sessions(), RUN_LIMIT_SECONDS, "the place is given up")
        self.kill_client(proxy)

    def test_a_connection_that_is_reset_while_it_waits(self):
        self.assert_the_place_is_given_up(lambda proxy: self.lost(proxy, reset=True), fails=False)

    def test_a_connection_that_closes_while_it_waits(self):
        self.assert_the_place_is_given_up(self.lost, fails=False)

    def test_a_client_that_is_killed_while_it_waits(self):
        self.assert_the_place_is_given_up(self.kill_client, fails=False)


if __name__ == "__main__":
    unittest.main(verbosity=2)
