"""Idle sessions give the GPU's memory back: suspended by an administrator, they go on with their programs' next
call."""

import os
import random
import re
import signal
import subprocess
import tempfile
import unittest

from support import (BUILD, RUN_LIMIT_SECONDS, ServerCase, audit_lines, children, runs, start, wait_for_answer,
                     wait_until)
import restart_test  # noqa: E402

GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20261130"))
ROUNDS = 40
TURNS = 24
DEVICE_MIB = 256


class Program:
    """A client of a test program that executes the lines of its standard input."""

    def __init__(self, case, address, name, options=()):
        self.case = case
        self.process = start(address, name, options=options)
        case.addCleanup(self.process.wait)
        case.addCleanup(self.process.communicate)
        case.addCleanup(self.process.kill)
        self.hear("ready")

    def hear(self, expected):
        heard = self.process.stdout.readline().strip()
        self.case.assertEqual(heard, expected, self.process.stderr.read() if not heard else "")

    def say(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def ask(self, what):
        self.say(what)
        return self.process.stdout.readline().strip()

    def end(self):
        out, err = self.process.communicate(timeout=RUN_LIMIT_SECONDS)
        self.case.assertEqual((self.process.returncode, out), (0, "PASSED\n"), err)


class SuspensionCase(ServerCase):
    """One software device."""

    server_arguments = ("--software-memory", f"{DEVICE_MIB}MiB")

    def begin(self, name="works_again", options=()):
        before = {one["id"] for one in self.status()["sessions"]}
        program = Program(self, self.server.address, name, options)
        program.session = next(one["id"] for one in self.status()["sessions"] if one["id"] not in before)
        return program

    def control(self):
        folder = "/run/gpuwire" if os.geteuid() == 0 else f"/tmp/gpuwire-{os.geteuid()}"
        return f"{folder}/{self.server.process.pid}.sock"

    def admin(self, *words):
        return subprocess.run([GPUWIRE, "admin", *words, "--control", self.control()], capture_output=True, text=True,
                              timeout=RUN_LIMIT_SECONDS)

    def suspend(self, program):
        """Suspends the program's session. A program's last call may still be ending, so that it is not idle yet."""
        said = []

        def suspended():
            ran = self.admin("suspend", str(program.session))
            said[:] = [ran.stdout + ran.stderr]
            return ran.returncode == 0

        try:
            wait_until(suspended, RUN_LIMIT_SECONDS, "a suspension")
        except AssertionError as late:
            raise AssertionError(f"{late}: {said}") from None
        return said[0]

    def await_refusal(self, program, reason):
        """The reason may be another one until the program's last call has ended."""
        said = []

        def refused():
            ran = self.admin("suspend", str(program.session))
            self.assertEqual(ran.returncode, 1, ran.stdout + ran.stderr)
            said[:] = [ran.stdout]
            return reason in ran.stdout

        try:
            wait_until(refused, RUN_LIMIT_SECONDS, reason)
        except AssertionError as late:
            raise AssertionError(f"{late}: {said}") from None

    def figures(self, program):
        return next(one for one in self.status()["sessions"] if one["id"] == program.session)


class Suspending(SuspensionCase):
    """An administrator suspends sessions."""

    def test_a_program_goes_on_with_right_results_after_each_of_many_suspensions(self):
        print("seed", SEED)
        seeded = random.Random(SEED)
        program = self.begin()
        self.assertEqual(program.ask("work 1"), "right")
        for number in range(ROUNDS):
            self.assertIn("suspended, ", self.suspend(program))
            if seeded.random() < 0.3:  # it is back before the program needs it
                ran = self.admin("resume", str(program.session))
                self.assertEqual((ran.returncode, ran.stdout), (0, f"session {program.session}: resumed\n"), ran.stderr)
            for _ in range(seeded.randrange(1, 3)):
                self.assertEqual(program.ask(f"work {seeded.randrange(1 << 31)}"), "right", f"suspension {number}")
        program.end()

    def test_another_program_has_the_memory_meanwhile_and_gives_it_back(self):
        sleeper, other = self.begin(), self.begin("takes_memory")
        self.assertEqual(sleeper.ask("work 1"), "right")
        size = f"take {(int(other.ask('free')) >> 20) + 8}"
        self.assertEqual(other.ask(size), "cudaErrorMemoryAllocation")
        used = self.figures(sleeper)["devices"][0]["memory_used_bytes"]
        self.assertGreater(used, 12 << 20)
        self.suspend(sleeper)
        figures = self.figures(sleeper)
        self.assertEqual((figures["state"], figures["suspension"]), ("suspended", "suspended"))
        # The client may have returned a few bytes that it had cached.
        self.assertGreater(figures["suspended_bytes"], used - (1 << 20))
        self.assertLessEqual(figures["suspended_bytes"], used)
        self.assertGreater(figures["suspended_since_unix_s"], 0)
        self.assertEqual(figures["devices"][0]["memory_used_bytes"], 0)
        self.assertEqual(other.ask(size), "taken")
        # Its call waits for the memory, and nothing fails.
        sleeper.say("work 2")
        wait_for_answer(lambda: self.figures(sleeper)["state"], "resuming", "a session that waits for memory")
        self.assertEqual(other.ask("give"), "given")
        sleeper.hear("right")
        self.assertEqual(self.figures(sleeper)["state"], "running")
        self.assertEqual(self.figures(sleeper)["suspended_bytes"], 0)
        sleeper.end()
        other.end()
        events = [line["event"] for line in audit_lines(self.server.log) if line.get("session") == sleeper.session]
        self.assertIn("suspended", events)
        self.assertIn("resumed", events)
        self.assertIn("suspend_asked", events)

    def test_a_session_that_is_not_idle_stays_and_the_administrator_hears_why(self):
        program = self.begin()
        self.assertEqual(program.ask("stand"), "done")
        self.await_refusal(program, "its program has work on the GPU")
        self.assertEqual(program.ask("go"), "done")
        self.assertEqual(program.ask("capture"), "done")
        self.await_refusal(program, "its program is capturing a stream")
        self.assertEqual(program.ask("captured"), "done")
        self.suspend(program)
        self.assertIn("already suspended", self.admin("suspend", str(program.session)).stdout)
        self.assertEqual(program.ask("work 1"), "right")
        self.assertEqual(program.ask("managed"), "done")
        self.await_refusal(program, "the driver cannot move a session with managed memory")
        self.assertEqual(program.ask("work 2"), "right")
        self.assertEqual(self.figures(program)["state"], "running")
        self.assertIn("it is not suspended", self.admin("resume", str(program.session)).stdout)
        self.assertIn("there is no session 999", self.admin("suspend", "999").stdout)
        program.end()

    def test_a_worker_that_is_killed_while_it_is_suspended_ends_its_session_alone(self):
        victim, other = self.begin(), self.begin()
        for program in (victim, other):
            self.assertEqual(program.ask("work 1"), "right")
            self.suspend(program)
        os.kill(self.figures(victim)["worker_pid"], signal.SIGKILL)
        wait_until(lambda: victim.session not in [one["id"] for one in self.status()["sessions"]], RUN_LIMIT_SECONDS,
                   "the end of the session")
        victim.say("work 2")
        _, err = victim.process.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertNotEqual(victim.process.returncode, 0)
        self.assertTrue(err)
        self.assertEqual(other.ask("work 2"), "right")
        other.end()

    def test_a_suspended_session_ends_with_its_program_and_by_an_administrator(self):
        leaving, told = self.begin(), self.begin()
        for program in (leaving, told):
            self.assertEqual(program.ask("work 1"), "right")
            self.suspend(program)
        ran = self.admin("end", str(told.session), "--reason", "maintenance")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        wait_for_answer(lambda: [one["id"] for one in self.status()["sessions"]], [leaving.session], "one session")
        _, err = told.process.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertIn("maintenance", err)
        leaving.process.kill()
        wait_for_answer(lambda: self.status()["sessions"], [], "no session")
        device = self.status()["devices"][0]
        self.assertEqual((device["memory_used_bytes"], device["memory_held_bytes"]), (0, 0))

    def test_the_suspender_is_started_again_and_all_sessions_of_a_tenant_are_suspended(self):
        programs = [self.begin(), self.begin()]
        for program in programs:
            self.assertEqual(program.ask("work 1"), "right")
        suspender = children(self.server.process.pid, "gpuwire-suspend")
        self.assertEqual(len(suspender), 1)
        tenant = self.figures(programs[0])["tenant"]
        wait_until(lambda: self.admin("suspend", "--tenant", tenant).returncode == 0, RUN_LIMIT_SECONDS, "suspensions")
        os.kill(suspender[0], signal.SIGKILL)
        for program in programs:
            self.assertEqual(program.ask("work 2"), "right")
            program.end()
        self.assertFalse(runs(suspender[0]))


class ConfiguredCase(SuspensionCase):
    """One software device, and a tenant with settings of its own."""

    SETTINGS = ""  # of every test
    KEPT = ""  # stays also if a test changes the settings

    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as file:
            cls.config = file.name
        cls.addClassCleanup(os.unlink, cls.config)
        cls.write(cls.SETTINGS)
        cls.server_arguments = (*SuspensionCase.server_arguments, "--config", cls.config)
        super().setUpClass()

    @classmethod
    def write(cls, settings):
        with open(cls.config, "w", encoding="utf-8") as file:
            file.write(f'[server]\nopen_tenant = "open"\n[tenants.open]\n{cls.KEPT}{settings}')


def bytes_with_the_host(process_id):
    """The bytes that a worker has copied from the device: its only mappings that are anonymous and shared."""
    total = 0
    with open(f"/proc/{process_id}/maps", encoding="ascii", errors="replace") as maps:
        for line in maps:
            if line.rstrip().endswith("/dev/zero (deleted)"):
                begin, end = line.split()[0].split("-")
                total += int(end, 16) - int(begin, 16)
    return total


class SuspendingWithEviction(ConfiguredCase, Suspending):
    """The same where the worker moves the large blocks itself. Two of the program's arrays are such blocks."""

    SETTINGS = "suspend_eviction = true\n"

    def test_the_blocks_of_a_suspended_session_are_in_its_workers_memory_and_leave_it_with_the_return(self):
        program = self.begin()
        self.assertEqual(program.ask("hold 16"), "held")
        self.assertEqual(program.ask("work 1"), "right")
        worker = self.figures(program)["worker_pid"]
        self.assertEqual(bytes_with_the_host(worker), 0)
        self.suspend(program)
        # The client may have cached further blocks.
        self.assertGreaterEqual(bytes_with_the_host(worker), (4 + 4 + 16) << 20)
        self.assertEqual(program.ask("work 2"), "right")
        self.assertEqual(bytes_with_the_host(worker), 0)
        program.end()

    def test_a_session_with_managed_memory_has_its_blocks_back_when_the_driver_refuses(self):
        program = self.begin()
        self.assertEqual(program.ask("managed"), "done")
        self.await_refusal(program, "the driver cannot move a session with managed memory")
        self.assertEqual(bytes_with_the_host(self.figures(program)["worker_pid"]), 0)
        self.assertEqual(program.ask("work 1"), "right")
        program.end()


class Automatic(ConfiguredCase):
    """A tenant whose sessions are suspended as soon as they are idle and others want their memory."""

    SETTINGS = 'suspend = "pressure"\nsuspend_after = "0s"\n'

    def configure(self, settings):
        """Loads these settings. Afterwards the log has every audit line from before."""
        reloads = len(self.reloads())
        self.write(settings)
        ran = self.admin("reload")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        wait_for_answer(lambda: len(self.reloads()), reloads + 1, "the audit line of the reload")

    def setUp(self):
        wait_for_answer(lambda: self.status()["sessions"], [], "no session of an earlier test")
        self.configure(self.SETTINGS)
        self.lines_before = len(audit_lines(self.server.log))

    def reloads(self):
        return [line for line in audit_lines(self.server.log) if line["event"] == "reload"]

    def events(self, name):
        """Returns the audit lines that are in the log already: the server writes them later than clients get their
        answers."""
        return [line for line in audit_lines(self.server.log)[self.lines_before:] if line["event"] == name]

    def await_sessions(self, event, *programs):
        """Waits until the log has this event for these programs' sessions, in this order and for no other."""
        wait_for_answer(lambda: [line["session"] for line in self.events(event)],
                        [program.session for program in programs], f"audit lines {event}")

    def await_state(self, program, state):
        wait_for_answer(lambda: self.figures(program)["state"], state, f"a session that is {state}")

    def test_three_programs_that_each_hold_much_of_the_device_work_in_turns(self):
        print("seed", SEED)
        seeded = random.Random(SEED)
        programs = []
        for _ in range(3):
            programs.append(self.begin())
            # With what it has already, 45 % of the device.
            self.assertEqual(programs[-1].ask(f"hold {DEVICE_MIB * 45 // 100 - 13}"), "held")
        for number in range(TURNS):
            program = programs[number % 3] if number < 6 else seeded.choice(programs)
            self.assertEqual(program.ask(f"work {seeded.randrange(1 << 31)}"), "right", f"turn {number}")
        for program in programs:
            program.end()
        wait_until(lambda: len(self.events("suspended")) >= 4, RUN_LIMIT_SECONDS, "audit lines of four suspensions")
        self.assertEqual({line["for"].rsplit(" ", 1)[0] for line in self.events("suspended")}, {"memory for session"})
        self.assertEqual(self.events("suspend_asked"), [])

    def test_a_program_that_is_started_while_the_device_is_full_waits_for_an_idle_session_and_not_for_its_end(self):
        first = self.begin()
        self.assertEqual(first.ask(f"hold {DEVICE_MIB * 3 // 4}"), "held")
        with_memory = ("--memory", f"{DEVICE_MIB // 2}MiB")
        second = self.begin(options=with_memory)
        self.assertEqual(self.figures(first)["state"], "suspended")
        self.await_sessions("queued", second)
        self.assertEqual(second.ask("work 1"), "right")
        self.assertEqual(first.ask("work 1"), "right")
        self.assertEqual(self.figures(second)["state"], "suspended")
        self.assertEqual(second.ask("work 2"), "right")
        first.end()
        second.end()

    def test_a_session_that_works_is_not_suspended_and_an_allocation_fails_as_without_suspensions(self):
        busy, other = self.begin(), self.begin("takes_memory")
        self.assertEqual(busy.ask("work 1"), "right")
        size = f"take {(int(other.ask('free')) >> 20) + 8}"
        self.assertEqual(busy.ask("stand"), "done")
        self.assertEqual(other.ask(size), "cudaErrorMemoryAllocation")
        self.assertEqual(self.events("suspended"), [])
        self.assertEqual(busy.ask("go"), "done")
        # The server sees a little later than the program that the work has ended.
        wait_for_answer(lambda: other.ask(size), "taken", "an allocation")
        self.await_sessions("suspended", busy)
        self.assertEqual(other.ask("give"), "given")
        self.assertEqual(busy.ask("work 2"), "right")
        busy.end()
        other.end()

    def test_the_sessions_of_a_tenant_are_suspended_when_they_are_idle_until_a_reload_forbids_it(self):
        self.configure('suspend = "idle"\nsuspend_after = "0s"\n')
        program = self.begin()
        self.assertEqual(program.ask("work 1"), "right")
        self.await_state(program, "suspended")
        wait_until(lambda: self.events("suspended"), RUN_LIMIT_SECONDS, "the audit line of a suspension")
        self.assertEqual(self.events("suspended")[0]["for"], "its idle time")
        self.assertEqual(program.ask("work 2"), "right")
        self.await_state(program, "suspended")
        self.configure("")
        suspensions = len(self.events("suspended"))
        for number in range(3):
            self.assertEqual(program.ask(f"work {number}"), "right")
        other = self.begin("takes_memory")
        size = f"take {(int(other.ask('free')) >> 20) + 8}"
        self.assertEqual(other.ask(size), "cudaErrorMemoryAllocation")
        self.assertEqual(len(self.events("suspended")), suspensions)
        # An administrator's suspension needs no setting; its memory has a bound.
        self.suspend(program)
        self.assertEqual(program.ask("work 4"), "right")
        program.end()
        other.end()

    def test_a_tenants_suspended_sessions_have_no_more_than_its_part_of_the_servers_memory(self):
        self.configure(self.SETTINGS + 'suspend_memory = "20MiB"\n')
        first, second, other = self.begin(), self.begin(), self.begin("takes_memory")
        for program in (first, second):
            self.assertEqual(program.ask("work 1"), "right")
        self.suspend(first)
        self.await_refusal(second, "the tenant's suspend_memory is too small: ")
        # No victim for an allocation, either.
        size = f"take {(int(other.ask('free')) >> 20) + 8}"
        self.assertEqual(other.ask(size), "cudaErrorMemoryAllocation")
        self.await_sessions("suspended", first)
        self.configure(self.SETTINGS + 'suspend_memory = "100MiB"\n')
        wait_for_answer(lambda: other.ask(size), "taken", "an allocation")
        self.assertEqual(other.ask("give"), "given")
        for program in (first, second):
            self.assertEqual(program.ask("work 2"), "right")
            program.end()
        other.end()

    def test_a_call_that_waits_for_its_memory_says_so_in_one_line(self):
        self.configure("")
        sleeper, other = self.begin(), self.begin("takes_memory")
        self.assertEqual(sleeper.ask("work 1"), "right")
        self.suspend(sleeper)
        self.assertEqual(other.ask("all"), "taken")
        sleeper.say("work 2")
        self.assertRegex(sleeper.process.stderr.readline(), r"^gpuwire: resuming: \d+ MiB, others have the GPU\n$")
        self.assertEqual(other.ask("give"), "given")
        sleeper.hear("right")
        other.end()
        out, err = sleeper.process.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((sleeper.process.returncode, out, err), (0, "PASSED\n", ""))


class AutomaticWithEviction(Automatic):
    """The same where the workers move the large blocks themselves."""

    KEPT = "suspend_eviction = true\n"


class NextServer(restart_test.RestartCase):
    """A suspended session goes on under the next server."""

    def test_a_suspended_session_returns_under_the_next_server(self):
        for number in (signal.SIGKILL, signal.SIGUSR2):
            self.start()
            program = Program(self, self.address, "works_again")
            self.assertEqual(program.ask("work 1"), "right")
            listed = subprocess.run([GPUWIRE, "admin", "sessions", "--json", "--control", self.control],
                                    capture_output=True, text=True, check=True, timeout=RUN_LIMIT_SECONDS)
            session = re.search(r'"id": (\d+)', listed.stdout)[1]

            def suspended(session=session):
                return subprocess.run([GPUWIRE, "admin", "suspend", session, "--control", self.control],
                                      capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS).returncode == 0

            wait_until(suspended, RUN_LIMIT_SECONDS, "a suspension")
            self.end(number)
            self.start()
            status = subprocess.run([GPUWIRE, "status", "--json", "--control", self.control], capture_output=True,
                                    text=True, check=True, timeout=RUN_LIMIT_SECONDS)
            self.assertIn('"suspended"', status.stdout)
            self.assertEqual(program.ask("work 2"), "right")
            wait_until(suspended, RUN_LIMIT_SECONDS, "another suspension")
            self.assertEqual(program.ask("work 3"), "right")
            program.end()
            self.end(signal.SIGTERM)


class Drain(restart_test.RestartCase):
    """A GPU is taken out of use, over a restart of the server, and into use again."""

    MORE = ("--software-memory", f"{DEVICE_MIB}MiB")

    def gpuwire(self, *words):
        return subprocess.run([GPUWIRE, *words], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                              env={**os.environ, "GPUWIRE_QUEUE": "off"})

    def admin(self, *words):
        return self.gpuwire("admin", *words, "--control", self.control)

    def gpu(self):
        return self.status()["devices"][0]

    def session_states(self):
        return {one["id"]: one["state"] for one in self.status()["sessions"]}

    def begin_program(self):
        before = set(self.session_states())
        program = Program(self, self.address, "works_again")
        program.session, = set(self.session_states()) - before
        return program

    def test_a_drained_gpu_has_no_sessions_memory_and_gets_no_session_until_it_is_undrained(self):
        self.configure(["open"], budget_file=f'"{self.folder}/budgets"')
        self.start()
        idle, busy = self.begin_program(), self.begin_program()
        self.assertEqual(busy.ask("stand"), "done")
        ran = self.admin("drain", "0", "--timeout", "0s")
        self.assertEqual(ran.returncode, 1, ran.stdout)
        self.assertIn("GPU 0 is drained: no session begins on it or returns to it before gpuwire admin undrain 0\n",
                      ran.stdout)
        self.assertIn(f"session {busy.session}: stays: ", ran.stdout)
        self.assertIn("GPU 0 is still drained", ran.stderr)
        wait_for_answer(lambda: self.session_states()[idle.session], "suspended", "the idle session's suspension")
        self.assertEqual(self.gpu()["drain"], "draining")
        # A program is not refused, but waits.
        waiting = start(self.address, "works_again")
        self.addCleanup(waiting.communicate)
        self.addCleanup(waiting.kill)
        self.assertRegex(waiting.stderr.readline(), r"place 1 of 1 \(GPU 0 is drained\)")
        self.assertIn("GPU 0 is drained", self.gpuwire("run", "--check", "--server", self.address).stdout)
        # The next server knows it.
        self.end(signal.SIGKILL)
        self.start()
        self.assertIn("GPU 0 is drained since an earlier server", self.log())
        self.assertEqual(self.gpu()["drain"], "draining")
        self.assertEqual(self.session_states()[idle.session], "suspended")
        idle.say("work 1")
        self.assertRegex(idle.process.stderr.readline(), r"^gpuwire: resuming: \d+ MiB, GPU 0 is drained\n$")
        follows = subprocess.Popen([GPUWIRE, "admin", "drain", "0", "--control", self.control], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(follows.kill)
        self.assertIn("GPU 0 is drained already: ", follows.stdout.readline())
        self.assertEqual(busy.ask("go"), "done")
        out, err = follows.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((follows.returncode, err), (0, ""), out)
        self.assertRegex(out, rf"session {busy.session}: suspended, \d+ MiB\n")
        self.assertTrue(out.endswith("no session has memory on GPU 0\n"), out)
        wait_for_answer(lambda: (self.gpu()["drain"], self.gpu()["prewarmed_workers"]), ("drained", 0), "a drained GPU")
        self.assertRegex(self.gpuwire("status", "--control", self.control).stdout, r"\n +0 .* drained +")
        self.assertIn("GPU 0 is drained", self.gpuwire("info", "--quick", "--server", self.address).stderr)
        self.assertEqual(self.session_states()[idle.session], "resuming")
        ran = self.admin("resume", str(idle.session))
        self.assertEqual(ran.stdout, f"session {idle.session}: waits: GPU 0 is drained\n")
        ran = self.admin("undrain", "0")
        self.assertEqual((ran.returncode, ran.stdout), (0, "GPU 0 is in use again\n"), ran.stderr)
        idle.hear("right")
        self.assertEqual(waiting.stdout.readline(), "ready\n")
        out, err = waiting.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual((waiting.returncode, out), (0, "PASSED\n"), err)
        self.assertEqual(busy.ask("work 1"), "right")
        idle.end()
        busy.end()
        self.assertEqual(self.gpu()["drain"], "")
        self.assertEqual(self.admin("undrain", "0").stdout, "GPU 0 was not drained\n")
        self.assertIn("there is no GPU 7", self.admin("drain", "7").stderr)
        self.assertEqual([self.audited(f'"{event}_asked"') for event in ("drain", "undrain")], [1, 1])
        self.end(signal.SIGTERM)
        self.start()
        self.assertEqual(self.gpu()["drain"], "")


class NextServerWithEviction(NextServer):
    """The same where the worker moves the large blocks itself."""

    def configure(self, tenants, **words):
        super().configure(tenants, **words)
        with open(self.configuration, "a", encoding="ascii") as out:
            out.write("suspend_eviction = true\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
