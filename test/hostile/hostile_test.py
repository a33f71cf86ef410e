"""Attacks on a whole server on the software device, beside victims whose connections and calls are counted.

usage: hostile_test.py [--hours N] [unittest's arguments]
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

import attackers
from support import (
    BUILD,
    CLIENT_BUILD,
    LONG,
    RDMA_PLUGIN,
    RUN_LIMIT_SECONDS,
    UCX,
    Server,
    children,
    command,
    wait_until,
)

GPUWIRE = os.path.join(CLIENT_BUILD, "bin", "gpuwire")
SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20260101"))
TENANTS = ("greedy", "anna", "ben")
ROUND_TRIPS = 50
VICTIMS = 8
LOGIN_PROCESSES_KILLED = 4
ROUNDS = 12
END_SECONDS = 10  # then a program that should end is killed; its duration proves nothing
HALF_LOGINS = 128  # as many as one address may have
HALF_LOGINS_BETWEEN = 32  # fewer than displace connections of the same age
DESCRIPTORS = 1024
HOST_MIB, MAPPED_MIB = 256, 32  # what the attacker may have of the server's own memory; what it asks for at a time
IMAGE_MIB = 8  # of program text; a compiler takes a multiple of that while it loads
ATTEMPTS_TO_SHARE = 500  # a session gets an eighth of the descriptors at most
NEVER_GREETED = 3  # of each kind
CONFIGURATION = """
[server]
sessions_max = 16
open_tenant = "open"
{server}
[tls]
directory = "{identity}"
[tenants.open]
[tenants.greedy]
sessions_max = 1
queued_max = 1000
management_max = 1000
host_memory = "256MiB"
[tenants.anna]
class = "interactive"
memory = {{ guaranteed = "256MiB" }}
[tenants.ben]
"""


class Hostile(unittest.TestCase):
    ROAD = "tcp"  # victims', as `gpuwire info` says it
    SERVER_WORDS = ""  # of [server]

    @classmethod
    def setUpClass(cls):
        cls.roads = set()
        cls.folder = tempfile.TemporaryDirectory(prefix="gpuwire-hostile-")
        identity = os.path.join(cls.folder.name, "identity")
        cls.admin(identity, "init", "--host", "127.0.0.1")
        for name in TENANTS:
            cls.admin(identity, "add-tenant", name, "--token", "--out", cls.token_file(name), "--ca-out",
                      os.path.join(cls.folder.name, name + "-ca.pem"))
        file = os.path.join(cls.folder.name, "server.toml")
        with open(file, "w", encoding="utf-8") as configuration:
            configuration.write(CONFIGURATION.format(identity=identity, server=cls.SERVER_WORDS))
        few = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"]
        cls.server = Server(BUILD, ["--config", file, "--device", "software", "--listen",
                                    cls.local_address()], prefix=few).__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()
        cls.folder.cleanup()
        if cls.ROAD not in cls.roads:
            raise AssertionError(f"victims came by {sorted(cls.roads)} and never by {cls.ROAD}")

    @staticmethod
    def admin(identity, *arguments):
        subprocess.run([GPUWIRE, "admin", "--directory", identity, *arguments], check=True, capture_output=True,
                       timeout=RUN_LIMIT_SECONDS)

    @classmethod
    def local_address(cls):
        return "unix:" + os.path.join(cls.folder.name, "gpuwire.sock")

    @classmethod
    def token_file(cls, tenant):
        return os.path.join(cls.folder.name, tenant + ".token")

    @classmethod
    def token(cls, tenant):
        with open(cls.token_file(tenant), "rb") as file:
            return file.read().splitlines()[-1]

    def victim(self, tenant="ben"):
        """One whole session: it begins, its calls are answered. The failure's words, or nothing."""
        ran = subprocess.run([
            GPUWIRE, "info", "--server", self.server.address, "--json", "--round-trips",
            str(ROUND_TRIPS), "--megabytes", "1"
        ], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                             env={**os.environ, "GPUWIRE_TOKEN_FILE": self.token_file(tenant)})
        if ran.returncode != 0:
            return ran.stderr.strip() or f"exit status {ran.returncode}"
        facts = json.loads(ran.stdout)
        self.roads.add(facts["transport"])
        return None if facts["devices"] and facts["round_trip_us"] > 0 else ran.stdout

    def assert_served(self, *tenants):
        """Runs this many victims one after the other; each gets its session and its answers."""
        failures = []
        for tenant in tenants:
            failure = self.victim(tenant)
            if failure:
                failures.append(failure)
            # The server may detect the end of a session after its client's process has ended.
            wait_until(lambda: not self.admitted_still(tenant), RUN_LIMIT_SECONDS, f"{tenant}'s session to end")
        self.assertEqual((len(failures), failures), (0, []), "".join(self.server.log[-10:]))

    def program(self, tenant, *words, **environment):
        """Starts a victim that runs until its standard input closes, at the end of the test."""
        started = subprocess.Popen(command(self.server.address, *words), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "GPUWIRE_TOKEN_FILE": self.token_file(tenant), **environment})
        self.addCleanup(self.end, started)
        return started

    @staticmethod
    def end(program):
        """A program that has been told to end and does not, as one whose kernel never ends, is killed."""
        program.stdin.close()
        try:
            program.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()
        program.stdout.close()
        program.stderr.close()

    def assert_works(self, program, rounds):
        """Sends this many lines; the program answers each after this many checked rounds of work."""
        for done in range(rounds):
            program.stdin.write("go\n")
            program.stdin.flush()
            self.assertEqual(program.stdout.readline(), "done\n", f"after {done} of {rounds}")

    def admitted_still(self, tenant):
        """Returns the tenant's sessions that the server has admitted and whose end it has not reported."""
        sessions = set()
        for line in list(self.server.log):
            event = re.search(r'audit: (\w+) .*?"session":(\d+),"tenant":"%s"' % tenant, line)
            if event and event[1] == "admitted":
                sessions.add(event[2])
            elif event and event[1] in ("ended", "refused"):
                sessions.discard(event[2])
        return sessions

    def keep(self, link):
        self.addCleanup(link.close)
        return link

    def test_a_tenant_that_fills_the_queue_keeps_nobody_out(self):
        answers = []
        for management in (False, True):
            for _ in range(24):
                link, word, _ = attackers.log_in(self.server.address, self.token("greedy"), management)
                answers.append(word)
                if link:
                    self.keep(link)
        self.assertGreater(answers.count(attackers.QUEUED), 4)
        self.assertGreater(answers.count(attackers.REFUSED), 8)
        self.assert_served("anna", "ben", "anna", "ben")

    def test_a_session_that_shares_all_it_may_leaves_descriptors_to_others(self):
        hoarder = self.program("greedy", "share_hoarder", str(ATTEMPTS_TO_SHARE))
        shared = hoarder.stdout.readline().split()
        self.assertEqual(shared[:1], ["shared"], shared)
        self.assertGreater(int(shared[1]), 0)
        # Far below the limit of its own process.
        self.assertLess(int(shared[1]), ATTEMPTS_TO_SHARE)
        self.assert_served(*["ben"] * 4)

    def test_silent_connections_from_the_victims_own_address_keep_nobody_out(self):
        stop = threading.Event()
        made = []

        def flood():
            links = []
            while not stop.is_set():
                try:
                    links.append(attackers.connect(self.server.address))
                    if len(links) % 2:
                        links[-1].sendall(attackers.preface())
                except OSError:
                    pass
                made.append(1)
                if len(links) > 300:
                    links.pop(0).close()
                    stop.wait(0.001)
            for link in links:
                link.close()

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            wait_until(lambda: len(made) > 300, RUN_LIMIT_SECONDS, "a flood")
            self.assert_served(*["ben"] * VICTIMS)
        finally:
            stop.set()
            thread.join()

    def test_half_logins_from_the_victims_own_address_keep_out_nobody_who_is_about_to_log_in(self):
        def half_log_in():
            link = attackers.greeted(self.server.address, bytes([attackers.CONTROL]))
            self.assertIsNotNone(link)
            self.keep(link)

        for _ in range(HALF_LOGINS):
            half_log_in()
        answers = []
        for _ in range(VICTIMS):
            with attackers.greeted(self.server.address) as link:
                # These connections arrive between the server's preface and the client's login.
                for _ in range(HALF_LOGINS_BETWEEN):
                    half_log_in()
                try:
                    answers.append(attackers.ask(link, self.token("ben"))[0])
                except (EOFError, OSError):
                    answers.append("dropped")
            wait_until(lambda: not self.admitted_still("ben"), RUN_LIMIT_SECONDS, "ben's session to end")
        self.assertEqual(answers, [attackers.ADMITTED] * VICTIMS)
        self.assert_served("ben")

    def test_a_hello_that_comes_byte_by_byte_gains_no_time(self):
        link, word, _ = attackers.log_in(self.server.address)
        self.keep(link)
        self.assertEqual(word, attackers.ADMITTED)
        link.settimeout(0.05)
        sent, closed = 0, False
        hello = attackers.hello_bytes()
        while not closed and sent < len(hello):
            try:
                link.sendall(hello[sent:sent + 1])
                sent += 1
                closed = self.has_ended(link)
            except OSError:
                closed = True
        self.assertTrue(closed, f"{sent} of {len(hello)} bytes were taken")
        self.assert_served("ben")

    @staticmethod
    def has_ended(link):
        """Reads the available data; true at the end of the connection."""
        try:
            while link.recv(4096):
                pass
            return True
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def test_a_login_process_that_dies_again_and_again_costs_nobody_a_connection(self):
        # Each login process is killed as soon as it exists, while victims connect; but not so often that the server's
        # delay between two processes exceeds a client's wait.
        def kill():
            killed = set()
            while len(killed) < LOGIN_PROCESSES_KILLED and not over.is_set():
                for process in set(children(self.server.process.pid, "gpuwire-login")) - killed:
                    os.kill(process, signal.SIGKILL)
                    killed.add(process)
                    died.set()
                over.wait(0.01)

        died, over = threading.Event(), threading.Event()
        thread = threading.Thread(target=kill)
        thread.start()
        try:
            self.assertTrue(died.wait(RUN_LIMIT_SECONDS), "no login process")
            self.assert_served(*["ben"] * VICTIMS)
        finally:
            over.set()
            thread.join()

    def test_work_that_never_drains_takes_the_gpu_from_nobody(self):
        attacker = self.program("greedy", "saturate", "hostile")
        self.assertEqual(attacker.stdout.readline(), "working\n")
        for tenant in ("anna", "ben"):
            victim = self.program(tenant, "rounds")
            self.assertEqual(victim.stdout.readline(), "ready\n")
            self.assert_works(victim, ROUNDS)
        self.assertIsNone(attacker.poll(), "the attacker has ended")

    def test_a_kernel_that_never_ends_takes_the_gpu_from_nobody(self):
        attacker = self.program("greedy", "saturate", "endless")
        self.assertEqual(attacker.stdout.readline(), "working\n")
        victims = [self.program(tenant, "rounds") for tenant in ("anna", "ben")]
        for victim in victims:
            self.assertEqual(victim.stdout.readline(), "ready\n")
        for _ in range(ROUNDS):
            for victim in victims:
                self.assert_works(victim, 1)

    def test_a_tenant_that_takes_all_the_memory_leaves_the_guarantees_of_others(self):
        hoarder = self.program("greedy", "takes_memory")
        self.assertEqual(hoarder.stdout.readline(), "ready\n")
        victim = self.program("anna", "takes_memory")
        self.assertEqual(victim.stdout.readline(), "ready\n")
        hoarder.stdin.write("all\n")
        hoarder.stdin.flush()
        self.assertEqual(hoarder.stdout.readline(), "taken\n")
        # The guaranteed memory also contains the program's context.
        victim.stdin.write("take 128\n")
        victim.stdin.flush()
        self.assertEqual(victim.stdout.readline(), "taken\n")

    def test_a_tenant_that_makes_the_server_take_host_memory_is_refused_at_its_bound_and_goes_on(self):
        # Over shared memory the pages would be the client's own.
        hoarder = self.program("greedy", "takes_memory", GPUWIRE_TRANSPORT="tcp")
        self.assertEqual(hoarder.stdout.readline(), "ready\n")
        # The server mirrors memory that the device uses, so a message of a few bytes allocates much memory there.
        answers = []
        for _ in range(2 * HOST_MIB // MAPPED_MIB):
            hoarder.stdin.write(f"map {MAPPED_MIB}\n")
            hoarder.stdin.flush()
            answers.append(hoarder.stdout.readline())
        taken = answers.count("taken\n")
        self.assertGreater(taken, 0)
        self.assertLessEqual(taken * MAPPED_MIB, HOST_MIB)
        # After the first refusal no further allocation succeeds.
        self.assertEqual(answers[:taken], ["taken\n"] * taken)
        # The error of a driver without memory, which programs can handle.
        refused = answers[taken:]
        self.assertEqual(refused, ["cudaErrorMemoryAllocation\n"] * len(refused))
        self.assertGreater(len(refused), 0)
        victim = self.program("ben", "rounds")
        self.assertEqual(victim.stdout.readline(), "ready\n")
        self.assert_works(victim, ROUNDS)
        self.assert_served("anna")
        self.assertIsNone(hoarder.poll(), "the attacker's session has ended")

    def test_a_tenant_that_loads_ever_more_large_images_is_refused_at_its_bound_and_goes_on(self):
        hoarder = self.program("greedy", "takes_memory", GPUWIRE_TRANSPORT="tcp")
        self.assertEqual(hoarder.stdout.readline(), "ready\n")
        answers = []
        for _ in range(2 * HOST_MIB // IMAGE_MIB):
            hoarder.stdin.write(f"load {IMAGE_MIB}\n")
            hoarder.stdin.flush()
            answers.append(hoarder.stdout.readline())
            if answers[-1] != "taken\n":
                break
        self.assertGreater(answers.count("taken\n"), 0)
        self.assertLessEqual(answers.count("taken\n") * IMAGE_MIB, HOST_MIB)
        self.assertEqual(answers[-1], "CUDA_ERROR_OUT_OF_MEMORY\n")
        victim = self.program("ben", "rounds")
        self.assertEqual(victim.stdout.readline(), "ready\n")
        self.assert_works(victim, ROUNDS)
        self.assert_served("anna")
        # The refused client still has its session, with room for smaller allocations.
        hoarder.stdin.write("take 1\n")
        hoarder.stdin.flush()
        self.assertEqual(hoarder.stdout.readline(), "taken\n")

    def test_an_interactive_tenant_that_only_synchronises_leaves_batch_its_part(self):
        loop = self.program("anna", "saturate", "until", "1")
        self.assertEqual(loop.stdout.readline(), "working\n")
        victim = self.program("ben", "rounds")
        self.assertEqual(victim.stdout.readline(), "ready\n")
        self.assert_works(victim, ROUNDS)
        self.assertIsNone(loop.poll(), "the loop has ended")

    def test_copies_without_end_keep_nobody_s_calls_from_being_answered(self):
        attacker = self.program("greedy", "endless_copies")
        self.assertEqual(attacker.stdout.readline(), "copying\n")
        victim = self.program("ben", "rounds")
        self.assertEqual(victim.stdout.readline(), "ready\n")
        self.assert_works(victim, ROUNDS)
        self.assert_served("anna", "anna")

    def test_a_token_with_something_behind_a_nul_is_refused(self):
        for behind in (b"\0", b"\0more"):
            link, word, message = attackers.log_in(self.server.address, self.token("ben") + behind)
            self.keep(link)
            self.assertEqual(word, attackers.REFUSED)
            self.assertIn(b"does not know the token", message)
        self.assert_served("ben")


class OfARoad(Hostile):
    """The attacks on the connection; the other attacks are the same on each transport."""

    test_a_kernel_that_never_ends_takes_the_gpu_from_nobody = None
    test_a_session_that_shares_all_it_may_leaves_descriptors_to_others = None
    test_a_token_with_something_behind_a_nul_is_refused = None
    test_an_interactive_tenant_that_only_synchronises_leaves_batch_its_part = None
    test_a_tenant_that_loads_ever_more_large_images_is_refused_at_its_bound_and_goes_on = None
    test_a_tenant_that_makes_the_server_take_host_memory_is_refused_at_its_bound_and_goes_on = None
    test_a_tenant_that_takes_all_the_memory_leaves_the_guarantees_of_others = None
    test_work_that_never_drains_takes_the_gpu_from_nobody = None
    if not LONG:
        # The broker and the login process answer them, before a session has its transport.
        test_a_hello_that_comes_byte_by_byte_gains_no_time = None
        test_a_login_process_that_dies_again_and_again_costs_nobody_a_connection = None
        test_a_tenant_that_fills_the_queue_keeps_nobody_out = None
        test_half_logins_from_the_victims_own_address_keep_out_nobody_who_is_about_to_log_in = None


class InsideTls(OfARoad):
    """Victims, and attackers that are programs, are inside TLS."""

    ROAD = "tls"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        environment = unittest.mock.patch.dict(os.environ, {"GPUWIRE_CA": os.path.join(cls.folder.name, "ben-ca.pem")})
        environment.start()
        cls.addClassCleanup(environment.stop)


class InSharedMemory(OfARoad):
    """All clients use the Unix socket."""

    ROAD = "shm"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.server.address = cls.local_address()


@unittest.skipUnless(os.path.exists(RDMA_PLUGIN), f"there is no {RDMA_PLUGIN}; it is built where libucx-dev is")
class ByRdma(OfARoad):
    """Victims, and attackers that are programs, use RDMA. On a slow machine the negotiation may time out; a victim then
    uses TCP, and is served, too."""

    ROAD, SERVER_WORDS = "rdma", 'rdma = "trusted"'

    @classmethod
    def setUpClass(cls):
        environment = unittest.mock.patch.dict(os.environ, {**UCX, "GPUWIRE_TRANSPORT": "rdma"})
        environment.start()
        cls.addClassCleanup(environment.stop)
        super().setUpClass()

    def asks_for_rdma(self, words):
        """Opens a session of the open tenant whose client has sent the beginning of the negotiation, and then this."""
        link, word, _ = attackers.log_in(self.server.address)
        self.keep(link)
        self.assertEqual(word, attackers.ADMITTED)
        for said in words:
            link.sendall(said)
        return link

    def test_clients_that_ask_for_rdma_and_never_greet_keep_nobody_from_it(self):
        random_bytes = random.Random(SEED).randbytes
        asks = attackers.rdma_end(random_bytes(200), random_bytes(16))
        attacks = ([asks],  # waits for an answer over the fabric, and sends nothing more
                   [asks, attackers.rdma_use()],  # has not greeted
                   [asks[:20]],  # half a word
                   [attackers.rdma_end(random_bytes(9000), random_bytes(16))])  # longer than addresses are
        links = [self.asks_for_rdma(words) for words in attacks for _ in range(NEVER_GREETED)]
        self.roads.discard("rdma")
        for tenant in ("ben", "anna") * (VICTIMS // 2):
            self.assert_served(tenant)
            if "rdma" in self.roads:
                break
        self.assertIn("rdma", self.roads, "nobody got RDMA beside them")
        # Each is let go of, also by who waits for it.
        for link in links:
            self.assertTrue(self.has_ended(link))


del OfARoad  # no separate suite


def for_hours(hours):
    """Repeats all attacks, in an order given by the seed."""
    order = random.Random(SEED)
    end = time.monotonic() + 3600 * hours
    rounds = 0
    while time.monotonic() < end:
        tests = list(unittest.defaultTestLoader.loadTestsFromTestCase(Hostile))
        order.shuffle(tests)
        rounds += 1
        print(f"round {rounds}", flush=True)
        if not unittest.TextTestRunner(failfast=True).run(unittest.TestSuite(tests)).wasSuccessful():
            return 1
    return 0


if __name__ == "__main__":
    print(f"seed {SEED}", flush=True)
    if "--hours" in sys.argv:
        sys.exit(for_hours(float(sys.argv[sys.argv.index("--hours") + 1])))
    unittest.main()
