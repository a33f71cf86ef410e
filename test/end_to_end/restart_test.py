"""Sessions outlive their server: it is killed, stopped, upgraded and restarted, and programs only notice a delay."""

import contextlib
import ctypes
import json
import os
import random
import re
import signal
import subprocess
import tempfile
import unittest

from support import BUILD, DEVICE, LONG, RUN_LIMIT_SECONDS, children, command, run, runs, wait_for_answer, wait_until
from loopback_ports import LoopbackPorts  # noqa: E402, in the folder that support names
from unreliable_way import UnreliableWay  # noqa: E402

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251122"))
KILLS = int(os.environ.get("GPUWIRE_TEST_KILLS", "20" if LONG else "6"))
SESSIONS = 8
PR_SET_CHILD_SUBREAPER = 36
GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")


def descendants():
    """Returns the servers' processes, which become children of this process when their server dies; reaps ended
    ones."""
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
    """Returns the shared memory that a process holds open, by name, without tenants' chunk stores, which outlive their
    sessions."""
    folder, found = f"/proc/{process_id}/fd", []
    for entry in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            found.append(os.readlink(f"{folder}/{entry}"))
    return [
        link for link in found
        if link.startswith("/memfd:gpuwire") and not link.startswith("/memfd:gpuwire chunks")
    ]


class RestartCase(unittest.TestCase):
    """Successive servers at one address. They log to one file: workers keep it open, so a pipe would not end with a
    server."""

    GRACE = "5min"
    AS = ()  # a command in front of the server's
    GPUWIRE = GPUWIRE  # the server's program
    MORE = ()  # further arguments of the server

    @classmethod
    def setUpClass(cls):
        # Processes of a killed server become this process's children, which can check at the end that none is left.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        # While no server has the port, no connection of another test may get it.
        ports = LoopbackPorts()
        self.addCleanup(ports.close)
        self.folder, self.port = folder.name, ports.take()
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
        """`words`: further keys of [server]."""
        with open(self.configuration, "w", encoding="ascii") as out:
            out.write(
                f'[server]\nlisten = ["{self.address}"]\nopen_tenant = "{tenants[0]}"\nresume_grace ='
                f' "60s"\nadopt_grace = "{self.GRACE}"\nruntime_directory = "{self.runtime}"\ncontrol_socket ='
                f' "{self.control}"\naudit_log = "{self.audit}"\n'
            )
            out.writelines(f"{name} = {value}\n" for name, value in words.items())
            out.writelines(f"[tenants.{tenant}]\n" for tenant in tenants)

    def begin(self):
        """Starts a server without waiting for it."""
        with open(self.log_path, "a", encoding="utf-8") as log:
            self.server = subprocess.Popen([*self.AS, self.GPUWIRE, "serve", "--config", self.configuration, "--device",
                                            DEVICE, *self.MORE],
                                           stdout=subprocess.PIPE, stderr=log, text=True)
        return self.server

    def start(self):
        line = self.begin().stdout.readline()
        self.assertIn("listening on", line, self.log())

    def end(self, number=signal.SIGKILL):
        """Returns the server's exit status."""
        self.server.send_signal(number)
        status = self.server.wait(RUN_LIMIT_SECONDS)
        self.server.stdout.close()
        return status

    def owner(self):
        """Returns the process that has, or last had, the runtime directory."""
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
        """Returns each session's constant properties: number, worker, device and tenant."""
        return {(one["id"], one["worker_pid"], tuple(device["device"] for device in one["devices"]), one["tenant"])
                for one in self.status()["sessions"]}

    def nothing_is_left(self):
        if self.server and self.server.poll() is None:
            self.end(signal.SIGTERM)
        wait_until(lambda: not descendants(), RUN_LIMIT_SECONDS, "the end of every process of the servers")


class Killed(RestartCase):
    def test_a_program_that_starts_while_no_server_is_there_waits_for_it(self):
        program = subprocess.Popen(command(self.address, os.path.join(BUILD, "examples", "vector_add")),
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "GPUWIRE_CONNECT_PATIENCE": "5min"})
        self.addCleanup(program.kill)
        line = program.stderr.readline()
        self.assertRegex(line, "^gpuwire: .*connection refused.*; trying for 300 s$")
        self.start()
        out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((program.returncode, err), (0, ""), out)
        self.end(signal.SIGTERM)

    def test_eight_sessions_outlive_many_servers(self):
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
            # Sometimes a server dies during its adoption.
            if chance.random() < 0.4:
                process = self.begin()
                wait_until(lambda: self.owner() == process.pid, RUN_LIMIT_SECONDS, "the folder's new owner")
                self.end()
            self.start()
            for program in programs:
                self.hear(program, "done")
            wait_for_answer(self.who, sessions, f"the sessions after kill {kill} of seed {SEED}")
        self.places_and_memory_are_right(programs)

    def places_and_memory_are_right(self, programs):
        def memory(figures):
            return figures["tenants"][0]["devices"][0]["memory_used_bytes"]

        def right():
            figures = self.status()
            return (figures["devices"][0]["sessions"] == SESSIONS
                    and sum(one["devices"][0]["memory_used_bytes"] for one in figures["sessions"]) == memory(figures)
                    and all(one["bytes_in"] > 0 and one["since_unix_s"] < figures["server"]["started_unix_s"]
                            for one in figures["sessions"]))

        wait_until(right, RUN_LIMIT_SECONDS, "the figures of the sessions with the last server")
        for program in programs:
            self.passes(program)
        wait_until(lambda: not self.status()["sessions"], RUN_LIMIT_SECONDS, "the end of the sessions")
        self.assertEqual(self.status()["devices"][0]["sessions"], 0)
        wait_for_answer(lambda: memory(self.status()), 0, "their memory")
        wait_for_answer(lambda: self.audited('"event":"begun"'), SESSIONS, "the beginning of each session")
        wait_for_answer(lambda: self.audited('"event":"ended"', '"cause":"finished"'), SESSIONS,
                        "the end of each session")
        wait_until(lambda: self.audited('"event":"adopted"') >= SESSIONS * KILLS, RUN_LIMIT_SECONDS,
                   "each session with each server")
        wait_until(lambda: not memory_files(self.server.pid), RUN_LIMIT_SECONDS, "the server has none of their memory")
        keepers = children(os.getpid(), "gpuwire-keeper") + children(self.server.pid, "gpuwire-keeper")
        self.assertEqual(len(keepers), 1)
        wait_until(lambda: not memory_files(keepers[0]), RUN_LIMIT_SECONDS, "the keeper's last entry")
        self.assertEqual(self.end(signal.SIGTERM), 0, self.log())
        wait_until(lambda: not runs(keepers[0]), RUN_LIMIT_SECONDS, "the keeper's end")
        self.assertEqual(os.listdir(self.runtime), [])
        # A number is never used twice.
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
        wait_for_answer(lambda: self.audited('"event":"ended"', '"cause":"finished"'), 1,
                        "the end of the session whose program has ended")
        wait_for_answer(lambda: len(self.who()), 1, "the other session")
        self.passes(stays)

    def test_sessions_outlive_a_keeper_that_dies_and_then_their_server(self):
        self.start()
        program = self.program()
        self.hear(program, "ready")
        sessions = self.who()
        first, = children(self.server.pid, "gpuwire-keeper")
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: "another keeper has what" in self.log(), RUN_LIMIT_SECONDS, "another keeper")
        self.work(program)
        self.end()
        self.work(program)
        self.start()
        self.assertEqual(self.who(), sessions)
        self.passes(program)

    def test_a_client_whose_connection_is_lost_together_with_the_server_comes_back_to_the_next(self):
        self.start()
        way = UnreliableWay(f"127.0.0.1:{self.port}", 0, 0, (1, 1))  # which is cut below
        self.addCleanup(way.close)
        program = self.program(at=way.address)
        self.hear(program, "ready")
        self.end()
        way.block()
        way.unblock()
        self.ask(program)
        self.start()
        self.hear(program, "done")
        wait_until(lambda: self.audited('"event":"attached"') == 1, RUN_LIMIT_SECONDS, "the client's return")
        self.passes(program)


def users_of(process_id):
    """Returns the real, the effective and the saved user of a process."""
    with open(f"/proc/{process_id}/status", encoding="ascii") as lines:
        return [int(word) for line in lines if line.startswith("Uid:") for word in line.split()[1:4]]


def rights_of(process_id):
    """Returns the effective capabilities of a process."""
    with open(f"/proc/{process_id}/status", encoding="ascii") as lines:
        return next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))


@unittest.skipUnless(os.geteuid() == 0, "only root can start servers that give their workers users of their own")
class OwnUsers(RestartCase):
    FIRST, LAST = 1600000000, 1600000099
    SERVER_USER = 0

    def test_each_session_has_a_real_user_of_its_own_and_keeps_it_under_the_next_server(self):
        self.configure(["open"], worker_users=f'"{self.FIRST}-{self.LAST}"')
        self.start()
        programs = [self.program() for _ in range(3)]
        for program in programs:
            self.hear(program, "ready")
        workers = {one["worker_pid"] for one in self.status()["sessions"]}
        users = {worker: users_of(worker) for worker in workers}
        self.assertEqual(len({real for real, _, _ in users.values()}), 3, users)
        for real, effective, saved in users.values():
            self.assertTrue(self.FIRST <= real <= self.LAST, users)
            self.assertEqual((effective, saved), (self.SERVER_USER, self.SERVER_USER))
        self.end()
        self.start()
        programs.append(self.program())
        self.hear(programs[-1], "ready")
        for program in programs:
            self.work(program)
        now = {one["worker_pid"]: users_of(one["worker_pid"]) for one in self.status()["sessions"]}
        self.assertEqual({worker: now.get(worker) for worker in workers}, users)
        self.assertEqual(len({real for real, _, _ in now.values()}), 4, now)
        self.assertEqual({rights_of(worker) for worker in now}, {0})
        if self.SERVER_USER != 0:
            # The capability is effective neither in the server nor in its other processes.
            others = children(self.server.pid, "gpuwire-login") + children(self.server.pid, "gpuwire-keeper")
            self.assertEqual({rights_of(process) for process in (self.server.pid, *others)}, {0})
        for program in programs:
            self.passes(program)


class OwnUsersOfAService(OwnUsers):
    """The server as the packaged service with one more right: no root, CAP_SETUID."""

    SERVER_USER = 1600000100
    # Mounts the first folder on the second one, only for the rest of the command.
    MOUNTED = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"')

    def setUp(self):
        super().setUp()
        os.chown(self.folder, self.SERVER_USER, self.SERVER_USER)
        # The build may be in a folder without access for other users, such as /root.
        reached = os.path.join(self.folder, "build")
        os.mkdir(reached)
        self.GPUWIRE = os.path.join(reached, "bin", "gpuwire")
        self.mounted = (*self.MOUNTED, BUILD, reached)
        self.AS = (*self.mounted, "setpriv", f"--reuid={self.SERVER_USER}", f"--regid={self.SERVER_USER}",
                   "--clear-groups", "--inh-caps=-all,+setuid", "--ambient-caps=+setuid",
                   "--bounding-set=-all,+setuid", "env", f"HOME={self.folder}", f"XDG_RUNTIME_DIR={self.folder}")

    def test_a_range_that_the_server_may_not_use_is_an_error_that_says_what_it_needs(self):
        self.configure(["open"], worker_users=f'"{self.FIRST}-{self.LAST}"')
        os.chmod(self.configuration, 0o644)
        without = [*self.mounted, "setpriv", f"--reuid={self.SERVER_USER}", "--clear-groups", "--inh-caps=-all",
                   "--ambient-caps=-all"]
        for more in ((), ("--check-config",)):
            words = [*without, self.GPUWIRE, "serve", "--config", self.configuration, "--device", DEVICE, *more]
            ran = subprocess.run(words, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
            self.assertIn("worker_users: the server may not change users: it needs CAP_SETUID", ran.stderr)
            self.assertNotEqual(ran.returncode, 0)


class Left(RestartCase):
    def test_a_server_that_is_told_to_leave_ends_no_session(self):
        self.start()
        program = self.program()
        self.hear(program, "ready")
        sessions = self.who()
        self.assertEqual(self.end(signal.SIGUSR2), 0)
        self.work(program)
        self.start()
        wait_for_answer(self.who, sessions, "the session with the next server")
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

    def test_a_client_that_comes_back_as_another_tenant_is_told_that_its_own_is_gone(self):
        """The connection is lost before the reason is sent, and no credential is of the old tenant any more."""
        self.configure(["open", "other"])
        self.start()
        way = UnreliableWay(self.address, 0, 0, (1, 1))  # which is cut below
        self.addCleanup(way.close)
        program = self.program(at=way.address)
        self.hear(program, "ready")
        self.end()
        way.block()
        self.configure(["other"])
        self.start()
        wait_until(lambda: self.audited('"event":"ended"', '"cause":"stopped"') == 1, RUN_LIMIT_SECONDS,
                   "the end of the session")
        way.unblock()
        self.ask(program)
        _, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertIn('the session has ended: this server has no tenant "open" any more', err)

    @unittest.skipUnless(DEVICE == "software", "takes a GPU away")
    def test_a_session_of_a_gpu_that_is_gone_ends_with_the_reason(self):
        self.configure(["open"], gpus="[1]")
        self.start_with("--software-devices", "2")
        program = self.program()
        self.hear(program, "ready")
        self.end()
        self.configure(["open"])
        self.start_with("--gpu-return-ms", "1")
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
