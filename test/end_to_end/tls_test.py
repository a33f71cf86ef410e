"""Sessions inside TLS: whole programs, and the faults and ends of the other roads, of raw peers too; and the parts of
TLS alone: the handshake, damaged records."""

import os
import shutil
import socket
import subprocess
import tempfile
import unittest
import unittest.mock

import crashes_test
import faults_test
import resume_test
from cutting_proxy import RECORDS, Point, RecordCuttingProxy
from stages import CutsAtStages, EndsAtStages
from support import BUILD, FRAME, LONG, PREFACE_TLS, RUN_LIMIT_SECONDS, ServerCase, run
from tls_peer import TlsPeer
from unreliable_way import UnreliableWay

# The bytes of a resuming connection, before it carries the session.
SET_UP_BYTES = (100, 4000)
# The number of records of each side for the handshake, the login and the first frames of a session.
FIRST_RECORDS = 8


class TlsCase(ServerCase):
    """One tenant, whose certificate every program has; the server requires one."""

    ROAD, GRACE = "tls", "60s"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(prefix="gpuwire-tls-")
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        identity, cls.certificate = os.path.join(folder, "identity"), os.path.join(folder, "anna.pem")
        for words in (("init",), ("add-tenant", "anna", "--out", cls.certificate)):
            subprocess.run([os.path.join(BUILD, "bin", "gpuwire"), "admin", "--directory", identity, *words],
                           check=True, capture_output=True, timeout=RUN_LIMIT_SECONDS)
        configuration = os.path.join(folder, "gpuwire.toml")
        with open(configuration, "w", encoding="ascii") as out:
            out.write(f'[server]\nresume_grace = "{cls.GRACE}"\nhang_up_grace = "{cls.GRACE}"\n'
                      f'[tls]\ndirectory = "{identity}"\n[tenants.anna]\n')
        environment = unittest.mock.patch.dict(os.environ, {"GPUWIRE_IDENTITY": cls.certificate})
        environment.start()
        cls.addClassCleanup(environment.stop)
        arguments = cls.server_arguments
        cls.server_arguments = ("--config", configuration, *arguments)
        super().setUpClass()
        cls.server_arguments = arguments

    def way(self, cuts, seed):
        return UnreliableWay(self.server.address, cuts, seed, SET_UP_BYTES)


class Programs(TlsCase):
    def test_programs_run_as_over_any_other_road(self):
        for program in ("threads", "callbacks", "forks", "copies", "host_memory", "mapped_memory", "pinned_pointers",
                        "managed_memory", "graph_copies", "events", "stream_ordered", "batch_copies", "graph_capture"):
            with self.subTest(program=program):
                ran = run(self.server.address, program, env={**os.environ, "GPUWIRE_STATS": "1"})
                self.assert_passed(ran)
                self.assertIn(f"server: {self.server.address} over tls, release", ran.stderr)


class Faults(faults_test.Faults, TlsCase):
    """Raw peers whose frames go through TLS."""

    PREFACE_FLAGS = PREFACE_TLS
    # server_login_test covers silent peers before, in and after the handshake.
    test_a_connection_that_says_nothing_is_closed = None

    def channel(self, link):
        return TlsPeer(link, self.certificate)

    def frame(self, link):
        """Returns the records of a valid frame, a Hello with empty fields."""
        return link.records(FRAME.pack(1, 0, 0x5747, 1, 0, 8, 0, 0) + b"\0" * 64)

    def test_a_record_that_was_changed_on_its_way(self):
        # Its type, its length, its first encrypted byte and the last byte of its authentication tag.
        for place in (0, 3, 5, -1):
            with self.subTest(place=place):
                link = self.greeted()
                record = bytearray(self.frame(link))
                record[place] ^= 0x40
                link.link.sendall(record)
                link.link.shutdown(socket.SHUT_WR)
                self.read_to_end(link)

    def test_a_record_that_comes_twice_or_not_at_all(self):
        link = self.greeted()
        link.link.sendall(self.frame(link) * 2)
        self.read_to_end(link)
        link = self.greeted()
        self.frame(link)
        link.sendall(b"\0" * 64)
        self.read_to_end(link)

    def test_a_record_cut_in_the_middle(self):
        for keep in (1, 4, 5, 60):
            with self.subTest(keep=keep):
                link = self.greeted()
                link.link.sendall(self.frame(link)[:keep])
                link.link.shutdown(socket.SHUT_WR)
                self.read_to_end(link)

    def test_plain_frames_behind_a_login_inside_tls(self):
        link = self.greeted()
        link.link.sendall(FRAME.pack(1, 0, 0x5747, 1, 0, 8, 0, 0) + b"\0" * 64)
        self.read_to_end(link)

    def test_tls_that_ends_with_a_frame_half_said(self):
        link = self.greeted()
        link.sendall(FRAME.pack(1, 0, 0x5747, 1, 0, 8, 0, 0)[:20])
        link.link.sendall(link.last_word())
        self.read_to_end(link)


class Ends(EndsAtStages, crashes_test.BesideANeighbour, TlsCase):
    GRACE = "300ms"


class EndsAtRecords(crashes_test.EndsAtPoints, crashes_test.BesideANeighbour, TlsCase):
    """In the middle of and after each of the first records: handshake, login, Hello."""

    GRACE = "300ms"
    proxy = RecordCuttingProxy
    POINTS = {f"{part} of the {sender}'s record {number}": ("steps", Point(sender, part, RECORDS, number))
              for sender in ("client", "server") for number in range(FIRST_RECORDS) for part in ("message", "whole")}

    # The server sees all of these at the same places, so half of them suffice, and without the long form a quarter: in
    # the middle of a record and after it, for both sides.
    RESETS, CLOSES, KILLED = ((slice(None), slice(None, None, 2), slice(1, None, 2)) if LONG else
                              (slice(0, None, 3), slice(1, None, 6), slice(2, None, 6)))


class Resume(CutsAtStages, TlsCase):
    def test_a_session_that_is_cut_at_its_stages_goes_on_inside_tls(self):
        rounds, cuts = (8, 50) if LONG else (4, 25)
        self.assertGreaterEqual(self.cut_at_stages(rounds=rounds, cuts=cuts, seed=resume_test.SEED), cuts - 1)

    def test_connections_that_are_cut_while_they_carry_it_on_count_for_nothing(self):
        self.assertGreaterEqual(self.cut_at_stages(rounds=4, cuts=10, seed=resume_test.SEED, more=8), 12)


if __name__ == "__main__":
    unittest.main(verbosity=2)
