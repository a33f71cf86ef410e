"""Sessions by RDMA, over UCX's own TCP transport: whole programs, the reported road, and faults of both."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

from support import (
    BUILD,
    DEVICE,
    LONG,
    PROGRAMS,
    RDMA_PLUGIN,
    RUN_LIMIT_SECONDS,
    UCX,
    Server,
    ServerCase,
    one_line_naming,
    run,
    start,
    wait_until,
)
import crashes_test
import faults_test
import resume_test
from cutting_proxy import CONTROL, Point
from identity_test import TenantsCase
from stages import CutsAtStages, EndsAtStages
from unreliable_way import UnreliableWay

GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
RDMA = {**os.environ, **UCX, "GPUWIRE_TRANSPORT": "rdma", "GPUWIRE_STATS": "1"}
RDMA_ORDINAL = 12  # of protocol/wire/rdma.hpp
# The bytes of a resuming connection, before the fabric carries the session.
SET_UP_BYTES = (16, 900)
CUTS = 200 if LONG else 40
ROAD = re.compile(r"server: \S+ over (\w+), release")


def road_of(ran):
    found = ROAD.search(ran.stderr)
    return found and found[1]


class RdmaCase(ServerCase):
    WORD, GRACE = "trusted", "60s"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        configuration = os.path.join(cls.folder.name, "gpuwire.toml")
        with open(configuration, "w", encoding="ascii") as out:
            out.write('[server]\nopen_tenant = "open"\n'
                      f'resume_grace = "{cls.GRACE}"\nrdma = "{cls.WORD}"\n[tenants.open]\n')
        cls.server = Server(BUILD, ["--device", DEVICE, "--config", configuration], environment={**os.environ,
                                                                                                 **UCX}).__enter__()


class Programs(RdmaCase):
    def test_programs_run_as_over_any_other_road(self):
        for program in ("threads", "callbacks", "forks", "copies", "host_memory", "mapped_memory", "pinned_pointers",
                        "managed_memory", "graph_copies", "events", "stream_ordered", "batch_copies", "graph_capture"):
            with self.subTest(program=program):
                ran = run(self.server.address, program, env=RDMA)
                self.assert_passed(ran)
                self.assertEqual(road_of(ran), "rdma", ran.stderr)

    def test_an_example_prints_what_it_prints_over_tcp(self):
        example = os.path.join(BUILD, "examples", "add_one")
        by_rdma, by_tcp = run(self.server.address, example,
                              env=RDMA), run(self.server.address, example,
                                             env={**os.environ, "GPUWIRE_TRANSPORT": "tcp"})
        self.assertEqual(by_rdma.returncode, 0, by_rdma.stderr)
        self.assertEqual(by_rdma.stdout, by_tcp.stdout)

    def test_the_account_and_info_say_which_road_was_taken(self):
        for name, road in (("auto", "rdma"), ("rdma", "rdma"), ("tcp", "tcp")):
            with self.subTest(name=name):
                ran = run(self.server.address, "copies", env={**RDMA, "GPUWIRE_TRANSPORT": name})
                self.assert_passed(ran)
                self.assertEqual(road_of(ran), road, ran.stderr)
        info = subprocess.run([GPUWIRE, "info", "--server", self.server.address, "--transport", "rdma", "--quick"],
                              capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS, env={**os.environ, **UCX})
        self.assertRegex(info.stdout, r"(?m)^transport   rdma$")

    def test_a_client_without_the_plug_in_goes_by_tcp_and_says_so_if_it_was_asked(self):
        without = {**os.environ, "GPUWIRE_RDMA_PLUGIN": "/nowhere/libgpuwire_rdma.so"}
        ran = run(self.server.address, "copies", env={**without, "GPUWIRE_TRANSPORT": "rdma"})
        self.assert_passed(ran)
        self.assertTrue(
            one_line_naming(
                ran.stderr,
                "no RDMA with the server (there is no /nowhere/libgpuwire_rdma.so); the session goes over tcp"),
            ran.stderr)
        ran = run(self.server.address, "copies", env=without)
        self.assert_passed(ran)
        self.assertEqual(ran.stderr, "")

    def test_a_client_that_cannot_reach_the_server_over_the_fabric_goes_by_tcp_and_says_so(self):
        untold = {name: value for name, value in RDMA.items() if name != "UCX_TLS"}  # then UCX's TCP is not used
        for name, environment in (("shared memory", {**RDMA, "UCX_TLS": "posix"}), ("no cards", untold)):
            with self.subTest(name):
                ran = run(self.server.address, "copies", env={**environment, "GPUWIRE_STATS": ""})
                self.assert_passed(ran)
                self.assertTrue(one_line_naming(ran.stderr, "no RDMA with the server", "the session goes over tcp"),
                                ran.stderr)

    def test_rdma_with_a_server_on_a_unix_socket_is_refused_with_the_reason(self):
        ran = run("unix:/nowhere", "copies", env=RDMA)
        self.assertNotEqual(ran.returncode, 0)

    def test_a_program_writes_nothing_but_its_own(self):
        ran = run(self.server.address, "copies", env={**RDMA, "GPUWIRE_STATS": ""})
        self.assert_passed(ran)
        self.assertEqual(ran.stderr, "")
        self.assertEqual(ran.stdout,
                         run(self.server.address, "copies", env={**os.environ, "GPUWIRE_TRANSPORT": "tcp"}).stdout)


class ByRdma(RdmaCase):
    """For suites without a road of their own: all their programs use RDMA."""

    ROAD = "rdma"

    @classmethod
    def setUpClass(cls):
        environment = unittest.mock.patch.dict(os.environ, {**UCX, "GPUWIRE_TRANSPORT": "rdma"})
        environment.start()
        cls.addClassCleanup(environment.stop)
        super().setUpClass()

    def way(self, cuts, seed):
        return UnreliableWay(self.server.address, cuts, seed, SET_UP_BYTES)


class Faults(faults_test.Faults, ByRdma):
    """Raw peers beside programs with RDMA."""


class BeforeItCarries(crashes_test.EndsAtPoints, crashes_test.BesideANeighbour, ByRdma):
    """Ends during the setup over TCP."""

    GRACE = "300ms"
    # crashes_test has the same beginning over TCP.
    RESETS, CLOSES, KILLED = ((slice(None), slice(None), slice(None)) if LONG else
                              (slice(0, None, 2), slice(1, None, 4), slice(3, None, 4)))
    POINTS = {
        **{name: point for name, point in crashes_test.BEFORE_A_SESSION.items() if name != "mid-Hello"},
        "mid-header of the client's address": ("steps", Point("client", "header", CONTROL, RDMA_ORDINAL)),
        "mid-address of the client": ("steps", Point("client", "message", CONTROL, RDMA_ORDINAL)),
        "after the client's address": ("steps", Point("client", "whole", CONTROL, RDMA_ORDINAL)),
        "mid-address of the server": ("steps", Point("server", "message", CONTROL, RDMA_ORDINAL)),
        "after the server's address": ("steps", Point("server", "whole", CONTROL, RDMA_ORDINAL)),
    }
    # An assertion in UCX 1.13's transport over TCP, which stands in for a card here: if the other end closes while both
    # connect, UCX aborts its process now and then.
    UCX_ABORTS = re.compile(r"tcp_ep\.c:\d+ +Assertion")
    TRIES = 5

    def crash(self, where, point, strike, fails=True):
        for _ in range(self.TRIES):
            code, said = super().crash(where, point, strike, fails=False)
            if not self.UCX_ABORTS.search(said):
                break
        if fails:
            self.assertEqual(code, 3, said)
            self.assertIn("cudaError", said)
        return code, said


class Ends(EndsAtStages, crashes_test.BesideANeighbour, ByRdma):
    GRACE = "300ms"


class Resume(CutsAtStages, ByRdma):
    def test_a_session_that_is_cut_at_its_stages_goes_on_by_rdma_again(self):
        self.assertGreaterEqual(self.cut_at_stages(rounds=CUTS // 8, cuts=CUTS, seed=resume_test.SEED), CUTS - 1)

    def test_connections_that_are_cut_while_they_carry_it_on_count_for_nothing(self):
        self.assertGreaterEqual(self.cut_at_stages(rounds=4, cuts=10, seed=resume_test.SEED, more=20), 20)

    def test_a_session_that_loses_its_connection_comes_back_and_goes_by_rdma_again(self):
        way = UnreliableWay(self.server.address, 0, 1, (4_000, 60_000))
        self.addCleanup(way.close)
        running = start(way.address, "neighbour", env=RDMA)
        self.assertEqual(running.stdout.readline(), "working\n")
        made = way.made
        way.block()
        way.unblock()
        # The fabric carries the session until its ends notice the lost connection: a program that ended before would
        # have lost nothing.
        wait_until(lambda: way.made > made, RUN_LIMIT_SECONDS, "the client's next connection")
        out, error = running.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + error)
        self.assertEqual(ROAD.search(error)[1], "rdma", error)
        self.assertIn("connections lost: 1", error)


class NotOffered(RdmaCase):
    WORD = "off"

    def test_a_server_that_offers_none_is_used_by_tcp_and_a_line_tells(self):
        ran = run(self.server.address, "copies", env={**RDMA, "GPUWIRE_STATS": ""})
        self.assert_passed(ran)
        self.assertTrue(
            one_line_naming(ran.stderr, "no RDMA with the server (it offers none); the session goes over tcp"),
            ran.stderr)


class OverTls(TenantsCase):
    """The addresses and tokens are sent inside TLS, and the session is the tenant's."""

    SERVER_WORDS = 'rdma = "trusted"\n'
    server_environment = {**os.environ, **UCX}

    def test_a_tenant_with_a_certificate_goes_by_rdma(self):
        line = [
            GPUWIRE, "run", "--server", self.server.address, "--identity",
            self.path("anna.pem"), "--",
            os.path.join(PROGRAMS, "copies")
        ]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS,
                             env={**RDMA, "XDG_CONFIG_HOME": self.path("nothing")})
        self.assert_passed(ran)
        self.assertEqual(road_of(ran), "rdma", ran.stderr)
        self.assert_audited('"anna"', "tls certificate")


if __name__ == "__main__":
    if not os.path.exists(RDMA_PLUGIN):
        print(f"left out: there is no {RDMA_PLUGIN}; it is built where libucx-dev is")
        sys.exit(0)
    unittest.main(verbosity=2)
