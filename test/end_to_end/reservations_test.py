"""Memory that a program reserves by --memory is its own from its admission to its end."""

import json
import os
import re
import subprocess
import unittest
import urllib.request

from support import BUILD, RUN_LIMIT_SECONDS, command, wait_for_answer, wait_until
from unreliable_way import UnreliableWay  # noqa: E402, in the folder that support names
import restart_test
import tenants_test
from tenants_test import DEVICE_BYTES, GPUWIRE

MIB = 1 << 20


class Program:
    """A client of `takes_memory`."""

    def __init__(self, case, address, environment, memory_mib=0, expected="ready"):
        options = ["--memory", f"{memory_mib}MiB"] if memory_mib else []
        line = command(address, "takes_memory")
        at = line.index("--")
        self.case = case
        self.process = subprocess.Popen([*line[:at], *options, *line[at:]], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        case.addCleanup(self.process.wait)
        case.addCleanup(self.process.communicate)
        case.addCleanup(self.process.kill)
        if expected:
            self.hear(expected)

    def hear(self, word):
        heard = self.process.stdout.readline().strip()
        self.case.assertEqual(heard, word, self.process.stderr.read() if not heard else "")

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def free_mib(self):
        return int(self.ask("free")) / MIB

    def end(self):
        out, err = self.process.communicate(timeout=RUN_LIMIT_SECONDS)
        self.case.assertEqual((self.process.returncode, out), (0, "PASSED\n"), err)


class Beside(tenants_test.Tenants):
    """Two software devices of 1 GiB each; every session has the first one."""

    server_keys = "gpus = [0]"
    tenant_keys = {"anna": "", "ben": "", "carl": 'memory.limit = "800MiB"', "dora": 'memory.guaranteed = "200MiB"',
                   "emil": 'class = "interactive"\nmemory.limit = "800MiB"'}

    def begin(self, tenant, memory_mib=0, **more):
        return Program(self, self.server.address, self.environment(tenant), memory_mib, **more)

    def control(self):
        folder = "/run/gpuwire" if os.geteuid() == 0 else f"/tmp/gpuwire-{os.geteuid()}"
        return f"{folder}/{self.server.process.pid}.sock"

    def ask_server(self, command, *options):
        ran = subprocess.run([GPUWIRE, command, "--control", self.control(), *options], capture_output=True, text=True,
                             timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def status(self, *options):
        return self.ask_server("status", *options)

    def metrics(self):
        """Scrapes once; returns the value of each metric with its labels."""
        with subprocess.Popen([GPUWIRE, "metrics", "--listen", "127.0.0.1:0", "--control", self.control()],
                              stderr=subprocess.PIPE, text=True) as exporter:
            try:
                url = re.search(r"http\S+", exporter.stderr.readline())[0]
                with urllib.request.urlopen(url, timeout=RUN_LIMIT_SECONDS) as answer:
                    lines = answer.read().decode().splitlines()
            finally:
                exporter.kill()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    def test_nobody_takes_what_is_reserved_and_nobody_is_promised_it(self):
        owner = self.begin("anna", 500)
        stranger, colleague = self.begin("ben"), self.begin("anna")
        room = DEVICE_BYTES / MIB - 500 - 200  # dora's guarantee
        for other in (stranger, colleague):
            self.assertLessEqual(other.free_mib(), room)
            self.assertGreater(other.free_mib(), room - 64)
        self.assertEqual(stranger.ask("take 400"), "cudaErrorMemoryAllocation")
        self.assertEqual(stranger.ask("all"), "taken")
        self.assertEqual(colleague.ask("take 64"), "cudaErrorMemoryAllocation")
        self.assertLess(colleague.free_mib(), 1)
        promised = owner.free_mib()
        self.assertGreater(promised, 500 - 64)
        self.assertLessEqual(promised, 500)
        self.assertEqual(owner.ask("all"), "taken")
        self.assertEqual(owner.ask("take 1"), "cudaErrorMemoryAllocation")
        # Memory that its session frees stays its own, too.
        self.assertEqual(owner.ask("give"), "given")
        self.assertEqual(colleague.ask("take 64"), "cudaErrorMemoryAllocation")
        self.assertEqual(owner.ask("all"), "taken")
        owner.end()
        wait_until(lambda: colleague.ask("take 400") == "taken", RUN_LIMIT_SECONDS, "the memory of the one that ended")
        colleague.end()
        stranger.end()

    def test_guarantees_and_limits_mean_what_they_meant(self):
        owner = self.begin("anna", 800)
        guaranteed = self.begin("dora")
        self.assertEqual(guaranteed.ask("take 150"), "taken")
        limited = self.begin("carl", expected="ready")
        self.assertLess(limited.free_mib(), 64)
        owner.end()
        wait_until(lambda: limited.ask("take 600") == "taken", RUN_LIMIT_SECONDS, "the memory of the one that ended")
        beside = self.begin("carl", 150)  # 750 of 800 MiB
        self.assertEqual(limited.ask("take 100"), "cudaErrorMemoryAllocation")
        self.assertEqual(beside.ask("take 140"), "taken")
        for program in (beside, limited, guaranteed):
            program.end()

    def test_a_reservation_is_shown_and_is_the_reason_why_the_next_program_waits(self):
        owner = self.begin("anna", 600)
        waits = self.begin("ben", 300, expected=None)
        self.assertIn("300 MiB of 1 GiB are not free on 1 GPU now; 200 MiB are guaranteed to other tenants; "
                      "600 MiB are reserved by programs that run",
                      waits.process.stderr.readline())
        shown = json.loads(self.status("--json"))
        device, session = shown["devices"][0], shown["sessions"][0]
        tenant = next(one for one in shown["tenants"] if one["name"] == "anna")["devices"][0]
        for figures in (device, session["devices"][0], tenant):
            self.assertEqual(figures["memory_reserved_bytes"], 600 * MIB)
        for figures in (device, tenant):
            self.assertEqual(figures["memory_held_bytes"], 600 * MIB)
            self.assertLess(figures["memory_used_bytes"], 64 * MIB)
        self.assertRegex(self.status(), r"RESERVED\n.*600 MiB\n")
        self.assertIn("600 MiB are reserved", self.status())
        self.assertRegex(self.ask_server("top", "--once", "--interval", "0.2"), r"RESERVED\n.*600 MiB\n")
        metrics = self.metrics()
        for metric in ('gpuwire_device_memory_reserved_bytes{gpu="0"}', 'gpuwire_device_memory_held_bytes{gpu="0"}',
                       'gpuwire_memory_reserved_bytes{tenant="anna",gpu="0"}'):
            self.assertEqual(metrics[metric], 600 * MIB, metric)
        owner.end()
        waits.hear("ready")
        self.assertEqual(waits.ask("take 280"), "taken")
        waits.end()
        wait_until(lambda: not json.loads(self.status("--json"))["devices"][0]["memory_reserved_bytes"],
                   RUN_LIMIT_SECONDS, "the end of the reservation")

    def test_a_program_that_waits_for_memory_of_its_own_user_keeps_nobody_out(self):
        # With a reservation, and without.
        for reserved in (True, False):
            has = self.begin("emil", 500 if reserved else 0)
            if not reserved:
                self.assertEqual(has.ask("take 500"), "taken")
            waits = self.begin("emil", 500, expected=None)
            self.assertIn(" are not free on 1 GPU now", waits.process.stderr.readline())
            others = [self.begin("anna"), self.begin("ben", 100), self.begin("dora", 100)]
            for other in others:
                other.end()
            has.end()
            waits.hear("ready")
            self.assertEqual(waits.ask("take 450"), "taken")
            waits.end()

    def test_a_program_that_leaves_the_queue_or_dies_holds_nothing(self):
        owner = self.begin("anna", 600)
        waits = self.begin("ben", 300, expected=None)
        waits.process.stderr.readline()
        waits.process.kill()
        owner.process.kill()
        next_one = self.begin("carl", 700)
        self.assertEqual(next_one.ask("take 650"), "taken")
        next_one.end()


class Kept(restart_test.RestartCase):
    """The server's only tenant has sessions with and without a reservation; the software device has 4 GiB."""

    def begin_program(self, memory_mib=0, at=None):
        return Program(self, at or self.address, None, memory_mib)

    def test_a_reservation_outlives_its_server(self):
        self.start()
        card_mib = self.status()["devices"][0]["memory_bytes"] // MIB
        owner, other = self.begin_program(card_mib - 500), self.begin_program()
        self.assertEqual(owner.ask("take 100"), "taken")
        for _ in range(2):
            self.assertEqual(other.ask("take 600"), "cudaErrorMemoryAllocation")
            self.end()
            self.start()
            wait_for_answer(lambda: self.status()["devices"][0]["memory_reserved_bytes"], (card_mib - 500) * MIB,
                            "the reservation")
        self.assertEqual(other.ask("take 600"), "cudaErrorMemoryAllocation")
        self.assertEqual(other.ask("take 400"), "taken")
        self.assertEqual(owner.ask(f"take {card_mib - 500 - 150}"), "taken")
        owner.end()
        wait_until(lambda: other.ask("take 600") == "taken", RUN_LIMIT_SECONDS, "the end of the reservation")
        other.end()

    def test_a_reservation_outlives_its_connection(self):
        self.configure(["open"], hang_up_grace='"60s"')
        self.start()
        card_mib = self.status()["devices"][0]["memory_bytes"] // MIB
        way = UnreliableWay(f"127.0.0.1:{self.port}", 0, 0, (1, 1))  # which is cut below
        self.addCleanup(way.close)
        owner, other = self.begin_program(card_mib - 500, at=way.address), self.begin_program()
        # The proxy passes no connection while the session is detached.
        way.swallow()
        way.block()
        way.unblock()
        wait_until(lambda: [one["state"] for one in self.status()["sessions"]] == ["detached", "running"],
                   RUN_LIMIT_SECONDS, "the loss of the connection")
        self.assertEqual(other.ask("take 600"), "cudaErrorMemoryAllocation")
        way.pass_on()
        self.assertEqual(owner.ask(f"take {card_mib - 550}"), "taken")
        owner.end()
        wait_until(lambda: other.ask("take 600") == "taken", RUN_LIMIT_SECONDS, "the end of the reservation")
        other.end()

if __name__ == "__main__":
    unittest.main()
