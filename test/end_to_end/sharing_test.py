"""Sessions that share a GPU: they take turns, none waits for ever, and an ended one leaves nothing behind."""

import os
import re
import signal
import subprocess
import tempfile
import unittest

from support import BUILD, RUN_LIMIT_SECONDS, ServerCase, audit_lines, children, command, run, start, wait_until

STEPS = 400


def count(program):
    """Returns the number of completed kernels, which count themselves."""
    program.stdin.write("?")
    program.stdin.flush()
    return int(re.fullmatch(r"count (\d+)\n", program.stdout.readline()).group(1))


class Sharing(ServerCase):
    def start(self, *arguments):
        program = start(self.server.address, "saturate", *arguments)
        self.addCleanup(program.kill)
        said = program.stdout.readline()
        self.assertEqual(said, "working\n", "" if said else program.communicate()[1] + self.server_log())
        return program

    def end(self, program):
        """Closes its input; returns the number of completed kernels that it prints."""
        out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)
        return int(re.search(r"done (\d+)", out).group(1))

    def test_two_that_always_have_work_take_turns(self):
        # The completed work also depends on the machine, and a delayed program requests no turns. So the test counts
        # only turns that the scheduler has granted, until each has had twenty beside the other.
        for _ in range(2):
            self.start("hostile")

        def leases():
            return [session["leases"] for session in self.status()["sessions"] if session["state"] == "running"]

        wait_until(lambda: len(leases()) == 2 and min(leases()) >= 20 and min(leases()) * 2 >= max(leases()),
                   RUN_LIMIT_SECONDS, "twenty turns of each, about as many of the one as of the other")

    def test_neighbours_of_work_that_does_not_end_come_to_their_turns(self):
        endless = self.start("endless")
        for _ in range(2):
            ran = run(self.server.address, "saturate", "steps", "200")
            self.assert_passed(ran)
            self.assertIn("done 200\n", ran.stdout)
        self.assertIsNone(endless.poll())

    def test_one_that_never_waits_takes_no_more_than_its_turns(self):
        hostile = self.start("hostile")
        first = run(self.server.address, "saturate", "steps", str(STEPS))
        hostile.kill()
        self.assert_passed(first)
        self.assertIn(f"done {STEPS}\n", first.stdout)

    def test_captures_and_graphs_beside_a_neighbour(self):
        neighbour = self.start("until")
        graphs = run(self.server.address, "saturate", "graph", "50")
        self.assertGreater(self.end(neighbour), 0)
        self.assert_passed(graphs)
        self.assertIn("done 200\n", graphs.stdout)

    def test_programs_that_wait_for_themselves_get_there_beside_a_neighbour(self):
        # Streams that wait for host functions, words and other streams; managed memory in host functions; captures.
        neighbour = self.start("until")
        for program in ("callbacks", "memory_operations", "graph_capture", "managed_memory", "graph_host_nodes",
                        "cooperation"):
            with self.subTest(program):
                self.assert_passed(run(self.server.address, program))
        self.assertGreater(self.end(neighbour), 0)

    def test_a_client_that_dies_at_the_gate_leaves_its_turn_to_others(self):
        neighbour = self.start("until")
        victim = self.start("until")
        for process in [victim.pid, *children(victim.pid)]:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_until(lambda: len(self.worker_ids()) <= 2, RUN_LIMIT_SECONDS,
                   "only the neighbour's worker and a prewarmed one are left")
        self.assert_passed(run(self.server.address, "saturate", "steps", "50"))
        self.assertGreater(self.end(neighbour), 0)

    def test_a_worker_that_is_killed_leaves_its_turn_to_others(self):
        before = self.worker_ids()
        victim = self.start("until")
        for worker in before:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                pass
        victim.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assert_passed(run(self.server.address, "saturate", "steps", "50"))

    def test_four_sessions_come_to_an_end(self):
        programs = [
            subprocess.Popen(command(self.server.address, "saturate", "steps", "100"), stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True) for _ in range(4)
        ]
        for program in programs:
            out, err = program.communicate(timeout=RUN_LIMIT_SECONDS)
            self.assertTrue(out.rstrip().endswith("done 100\nPASSED"), out + err)


class Weights(ServerCase):
    """Two tenants with weights of three to one."""

    TURNS = 20
    TURN_NS = 20_000_000

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        identity = os.path.join(folder.name, "identity")
        admin = [os.path.join(BUILD, "bin", "gpuwire"), "admin", "--directory", identity]
        subprocess.run([*admin, "init"], check=True, capture_output=True)
        for tenant in ("much", "little"):
            subprocess.run([*admin, "add-tenant", tenant, "--out",
                            os.path.join(folder.name, tenant)], check=True, capture_output=True)
        file = os.path.join(folder.name, "server.toml")
        with open(file, "w", encoding="utf-8") as configuration:
            configuration.write(f'[server]\nlisten = "127.0.0.1:0"\n[tls]\ndirectory = "{identity}"\n'
                                "[tenants.much]\nweight = 3\n[tenants.little]\nweight = 1\n")
        cls.server_arguments = ("--config", file)
        super().setUpClass()

    def start_as(self, tenant):
        line = command(self.server.address, "saturate", "hostile")
        line[2:2] = ["--identity", os.path.join(self.folder, tenant)]
        program = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(program.kill)
        said = program.stdout.readline()
        self.assertEqual(said, "working\n", "" if said else program.communicate()[1] + self.server_log())
        return program

    def test_tenants_that_always_have_work_are_granted_turns_by_their_weights(self):
        self.start_as("much")
        self.start_as("little")

        def granted():
            of = {
                tenant["name"]: tenant["devices"][0]["granted_ns"] for tenant in self.status()["tenants"]
                if tenant["devices"]
            }
            return of.get("much", 0), of.get("little", 0)

        # Granted turns count while the other tenant wants the device. A busy machine that delays one of the two changes
        # the ratio for a while; without weights the sums would never reach this ratio.
        def by_weights():
            much, little = granted()
            return little >= self.TURNS * self.TURN_NS and 1.5 * little < much < 6 * little

        wait_until(by_weights, RUN_LIMIT_SECONDS, "turns by weights")


class RunawayCase(ServerCase):
    """A session exceeds its tenant's limit. Limits are so long that other sessions stay below them on a busy machine,
    too."""

    LIMIT = None  # of the tenant's configuration

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        file = os.path.join(folder.name, "server.toml")
        with open(file, "w", encoding="utf-8") as configuration:
            configuration.write(f'[server]\nopen_tenant = "open"\n[tenants.open]\n{cls.LIMIT}\n')
        cls.server_arguments = ("--config", file)
        super().setUpClass()

    def assert_audited(self, word):
        """Waits for a warning and an end with the reason, of the same session."""

        def there():
            lines = audit_lines(self.server.log)
            warned = {line["session"] for line in lines if line["event"] == "warned" and word in line["warning"]}
            return [line for line in lines if line["event"] == "ended" and line["session"] in warned]

        wait_until(there, RUN_LIMIT_SECONDS, f"the audit lines of a limit of {word}")
        for ended in there():
            self.assertEqual(ended["cause"], "stopped")
            self.assertIn(word, ended["reason"])
            self.assertIn("limit", ended["reason"])


class EndlessKernels(RunawayCase):
    LIMIT = 'kernel_time_max = "10s"'

    def test_a_kernel_that_never_ends_is_ended_with_the_reason_and_a_session_whose_kernels_end_is_left_alone(self):
        busy = start(self.server.address, "saturate", "until")
        self.addCleanup(busy.kill)
        ran = run(self.server.address, "saturate", "endless")
        self.assertNotEqual(ran.returncode, 0)
        # cudaErrorLaunchTimeout, as with a driver's watchdog for kernels.
        self.assertIn("the launch timed out and was terminated", ran.stderr)
        lines = [line for line in ran.stderr.splitlines() if line.startswith("gpuwire")]
        self.assertEqual(
            len([line for line in lines if "a kernel has been running" in line and "limit of 10 s" in line]), 1,
            ran.stderr)
        self.assertEqual(len([line for line in lines if "the server ended the session" in line and "kernel" in line]),
                         1, ran.stderr)
        self.assert_audited("kernel")
        self.assert_passed(run(self.server.address, "saturate", "steps", "10"))
        out, err = busy.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)


class IdleSessions(RunawayCase):
    LIMIT = 'idle_time_max = "10s"'

    def test_a_session_that_does_nothing_is_warned_and_ended_with_the_reason_and_one_that_works_is_left_alone(self):
        busy = start(self.server.address, "saturate", "until")
        self.addCleanup(busy.kill)
        idle = start(self.server.address, "saturate", "idle")
        self.addCleanup(idle.kill)
        first = idle.stderr.readline()
        self.assertIn("the session has been idle", first)
        second = idle.stderr.readline()
        self.assertIn("the server ended the session", second)
        self.assertIn("idle", second)
        idle.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assert_audited("idle")
        out, err = busy.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
