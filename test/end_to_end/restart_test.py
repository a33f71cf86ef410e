"""Sessions outlive their server: it is killed, stopped, upgraded and started again, and programs notice nothing but
time."""

import contextlib
import ctypes
import json
import os
import random
import re
import signal
import socket
import subprocess
import tempfile
import threading
import unittest

from support import BUILD, DEVICE, RUN_LIMIT_SECONDS, children, command, run, runs, wait_until

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251122"))
KILLS = int(os.environ.get("GPUWIRE_TEST_KILLS", "20"))
SESSIONS = 8
PR_SET_CHILD_SUBREAPER = 36
GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def descendants():
    """Processes of servers, which become children of this process when their server dies; those that have ended are
    reaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
    return [
        child for name in ("gpuwire-serve", "gpuwire-worker", "gpuwire-keeper", "gpuwire-login")
        for child in children(os.getpid(), name)
    ]


def memory_files(process_id):
    """Shared memory that a process holds open, by name; but for tenants' chunk stores, which outlive their sessions."""
    folder, found = f"/proc/{process_id}/fd", []
    for entry in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(os.readlink(f"{folder}/{entry}"))
    return [
        link for link in found
        if link.startswith("/memfd:gpuwire") and not link.startswith("/memfd:gpuwire chunks")
    ]


class Way:
    """Passes connections on to a port of this machine, and cuts them all when it is told to."""

    def __init__(self, port):
        self._port, self._lock, self._links = port, threading.Lock(), []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                client.close()
                continue
            with self._lock:
                self._links += [client, server]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source, target):
        try:
            while piece := source.recv(65536):
                target.sendall(piece)
        except OSError:
            pass
        self._end((source, target))
        source.close()

    @staticmethod
    def _end(links):
        for link in links:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def cut(self):
        with self._lock:
            self._end(self._links)
            self._links.clear()

    def close(self):
        self._end([self._listening])
        self._listening.close()
        self.cut()


class RestartCase(unittest.TestCase):
    """Servers that follow each other at one address. What they log is in one file: workers keep it open, so a pipe
    would not end with a server."""

    GRACE = "5min"

    @classmethod
    def setUpClass(cls):
        # What a killed server leaves comes to this process, which can say at the end that nothing is left.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.port = folder.name, free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.control = os.path.join(self.folder, "control.sock")
        self.runtime = os.path.join(self.folder, "runtime")
        self.audit = os.path.join(self.folder, "audit.jsonl")
        self.log_path = os.path.join(self.folder, "log")
        self.configuration = os.path.join(self.folder, "server.toml")
        self.configure(["open"])
        self.server = None
        self.addCleanup(self.nothing_is_left)

    def configure(self, tenants, **words):
        """`words`: more of [server]."""
        with open(self.configuration, "w", encoding="ascii") as out:
            out.write(
                f'[server]\nlisten = ["{self.address}"]\nopen_tenant = "{tenants[0]}"\nresume_grace ='
                f' "60s"\nadopt_grace = "{self.GRACE}"\nruntime_directory = "{self.runtime}"\ncontrol_socket ='
                f' "{self.control}"\naudit_log = "{self.audit}"\n'
            )
            out.writelines(f"{name} = {value}\n" for name, value in words.items())
            out.writelines(f"[tenants.{tenant}]\n" for tenant in tenants)

    def begin(self):
        """Starts a server, and does not wait for it."""
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.server = subprocess.Popen([GPUWIRE, "serve", "--config", self.configuration, "--device", DEVICE],
                                           stdout=subprocess.PIPE, stderr=log, text=True)
        return self.server

    def start(self):
        line = self.begin().stdout.readline()
        self.assertIn("listening on", line, self.log())

    def end(self, number=signal.SIGKILL):
        """The server's exit status."""
        self.server.send_signal(number)
        status = self.server.wait(RUN_LIMIT_SECONDS)
        self.server.stdout.close()
        return status

    def owner(self):
        """The process that has the runtime directory, or had it last."""
        with open(os.path.join(self.runtime, "lock"), encoding="ascii") as lock:
            return int(lock.read().strip() or 0)

    def log(self):
        with open(self.log_path, encoding="utf-8") as log:
            return log.read()

    def audited(self, *words):
        with open(self.audit, encoding="utf-8") as lines:
            return sum(all(word in line for word in words) for line in lines)

    def status(self):
        ran = subprocess.run([GPUWIRE, "status", "--json", "--control", self.control], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    def program(self, at=None):
        program = subprocess.Popen(command(at or self.address, "rounds"), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(program.communicate)
        self.addCleanup(program.kill)
        return program

    def ask(self, program):
        program.stdin.write("go\n")
        program.stdin.flush()

    def hear(self, program, word):
        line = program.stdout.readline()
        if line != word + "\n":
            program.kill()
            self.fail(f"{line!r} instead of {word}: {program.communicate()[1]}\n{self.log()[-6000:]}")

    def work(self, program):
        self.ask(program)
        self.hear(program, "done")

    def passes(self, program):
        out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((program.returncode, out), (0, "PASSED\n"), err + self.log()[-6000:])

    def who(self):
        """Every session with what must not change: its number, worker, device and tenant."""
        return {(one["id"], one["worker_pid"], tuple(device["device"] for device in one["devices"]), one["tenant"])
                for one in self.status()["sessions"]}

    def nothing_is_left(self):
        if self.server and self.server.poll() is None:
            self.end(signal.SIGTERM)
        wait_until(lambda: not descendants(), RUN_LIMIT_SECONDS, "the end of every process of the servers")


class Killed(RestartCase):
    def test_eight_sessions_outlive_twenty_servers(self):
        chance = random.Random(SEED)
        print(f"seed {SEED}")
        self.start()
        programs = [self.program() for _ in range(SESSIONS)]
        for program in programs:
            self.hear(program, "ready")
        sessions = self.who()
        self.assertEqual(len(sessions), SESSIONS)
        for kill in range(KILLS):
            for program in programs:
                self.ask(program)
            self.end()
            # Every now and then one dies while it takes over.
            if chance.random() < 0.4:
                process = self.begin()
                wait_until(lambda: self.owner() == process.pid, RUN_LIMIT_SECONDS, "the folder's new owner")
                self.end()
            self.start()
            for program in programs:
                self.hear(program, "done")
            self.assertEqual(self.who(), sessions, f"after kill {kill} of seed {SEED}")
        self.places_and_memory_are_right(programs)

    def places_and_memory_are_right(self, programs):
        before = self.status()
        self.assertEqual(before["devices"][0]["sessions"], SESSIONS)
        self.assertEqual(sum(session["devices"][0]["memory_used_bytes"] for session in before["sessions"]),
                         before["tenants"][0]["devices"][0]["memory_used_bytes"])
        self.assertTrue(
            all(session["bytes_in"] > 0 and session["since_unix_s"] < before["server"]["started_unix_s"]
                for session in before["sessions"]))
        for program in programs:
            self.passes(program)
        wait_until(lambda: not self.status()["sessions"], RUN_LIMIT_SECONDS, "the end of the sessions")
        after = self.status()
        self.assertEqual(after["devices"][0]["sessions"], 0)
        self.assertEqual(after["tenants"][0]["devices"][0]["memory_used_bytes"], 0)
        self.assertEqual(self.audited('"event":"begun"'), SESSIONS)
        self.assertEqual(self.audited('"event":"ended"', '"cause":"finished"'), SESSIONS)
        self.assertGreaterEqual(self.audited('"event":"adopted"'), SESSIONS * KILLS)
        wait_until(lambda: not memory_files(self.server.pid), RUN_LIMIT_SECONDS, "the server has none of their memory")
        keepers = children(os.getpid(), "gpuwire-keeper") + children(self.server.pid, "gpuwire-keeper")
        self.assertEqual(len(keepers), 1)
        wait_until(lambda: not memory_files(keepers[0]), RUN_LIMIT_SECONDS, "the keeper's last entry")
        self.assertEqual(self.end(signal.SIGTERM), 0, self.log())
        wait_until(lambda: not runs(keepers[0]), RUN_LIMIT_SECONDS, "the keeper's end")
        self.assertEqual(os.listdir(self.runtime), [])
        # A number is never given twice.
        self.start()
        self.assertEqual(run(self.address, "rounds", input="go\n").returncode, 0)

    def test_a_session_that_ends_while_there_is_no_server_is_accounted_for_by_the_next(self):
        self.start()
        ends, stays = self.program(), self.program()
        for program in (ends, stays):
            self.hear(program, "ready")
        self.end()
        self.passes(ends)
        self.start()
        self.work(stays)
        wait_until(lambda: len(self.who()) == 1, RUN_LIMIT_SECONDS, "the end of the session whose program has ended")
        self.assertEqual(self.audited('"event":"ended"', '"cause":"finished"'), 1)
        self.passes(stays)

    def test_a_client_whose_connection_is_lost_together_with_the_server_comes_back_to_the_next(self):
        self.start()
        way = Way(self.port)
        self.addCleanup(way.close)
        program = self.program(at=way.address)
        self.hear(program, "ready")
        self.end()
        way.cut()
        self.ask(program)
        self.start()
        self.hear(program, "done")
        wait_until(lambda: self.audited('"event":"attached"') == 1, RUN_LIMIT_SECONDS, "the client's return")
        self.passes(program)


class Left(RestartCase):
    def test_a_server_that_is_told_to_leave_ends_no_session(self):
        self.start()
        program = self.program()
        self.hear(program, "ready")
        sessions = self.who()
        self.assertEqual(self.end(signal.SIGUSR2), 0)
        self.work(program)
        self.start()
        self.assertEqual(self.who(), sessions)
        self.passes(program)

    def test_a_server_that_is_told_to_stop_ends_adopted_sessions_as_any_other(self):
        self.start()
        program = self.program()
        self.hear(program, "ready")
        self.end()
        self.start()
        self.server.send_signal(signal.SIGTERM)
        wait_until(lambda: "shutting down" in self.log(), RUN_LIMIT_SECONDS, "the first signal")
        self.assertEqual(self.end(signal.SIGTERM), 0)
        self.ask(program)
        self.assertIn("the server is shutting down", program.communicate(timeout=RUN_LIMIT_SECONDS)[1])

    def test_two_servers_do_not_share_a_folder(self):
        self.start()
        first = self.server
        try:
            self.port = free_port()
            second = subprocess.run(
                [GPUWIRE, "serve", "--config", self.configuration, "--listen", "127.0.0.1:0", "--device", DEVICE],
                capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, check=False)
            self.assertEqual(second.returncode, 1)
            self.assertIn(f"{self.runtime} is in use by another server (process {first.pid})", second.stderr)
        finally:
            self.assertEqual(self.end(signal.SIGTERM), 0)


class Changed(RestartCase):
    def test_the_session_of_a_tenant_that_is_gone_ends_with_the_reason(self):
        self.configure(["open", "other"])
        self.start()
        program = self.program()
        self.hear(program, "ready")
        self.end()
        self.configure(["other"])
        self.start()
        self.ask(program)
        _, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertIn('this server has no tenant "open" any more', err)
        wait_until(lambda: self.audited('"event":"ended"', '"cause":"stopped"') == 1, RUN_LIMIT_SECONDS,
                   "the end of the session")

    @unittest.skipUnless(DEVICE == "software", "takes a GPU away")
    def test_a_session_of_a_gpu_that_is_gone_ends_with_the_reason(self):
        self.configure(["open"], gpus="[1]")
        self.start_with("--software-devices", "2")
        program = self.program()
        self.hear(program, "ready")
        self.end()
        self.configure(["open"])
        self.start()
        self.ask(program)
        self.assertIn("its GPU 1 is not the one that the session has",
                      program.communicate(timeout=RUN_LIMIT_SECONDS)[1])

    def start_with(self, *arguments):
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.server = subprocess.Popen(
                [GPUWIRE, "serve", "--config", self.configuration, "--device", DEVICE, *arguments],
                stdout=subprocess.PIPE, stderr=log, text=True)
        self.assertIn("listening on", self.server.stdout.readline(), self.log())


class NobodyComes(RestartCase):
    GRACE = "1s"

    def test_without_another_server_the_session_ends_with_the_reason(self):
        self.start()
        program = self.program()
        self.hear(program, "ready")
        self.end()
        wait_until(lambda: not descendants(), RUN_LIMIT_SECONDS, "the end of the worker and the keeper")
        self.ask(program)
        self.assertTrue(re.search("the server has gone", program.communicate(timeout=RUN_LIMIT_SECONDS)[1]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
