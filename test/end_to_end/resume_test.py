"""A session outlives its connection: programs whose connection is cut again and again see nothing but time, and nobody else gets in."""

import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import unittest

from support import BUILD, DEVICE, FRAME, PREFACE, Server, preface, read_exactly, run, start, wait_until

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251122"))
CUTS = int(os.environ.get("GPUWIRE_TEST_CUTS", "40"))
PIECE_BYTES = 65536
# A connection is left in peace until it has carried so much: a login takes some hundred bytes, and each attempt gets further than the one before.
CUT_BYTES = (2_000, 300_000)


class UnreliableWay:
    """Passes connections on to a server, and cuts each after a number of bytes that a seed says, `cuts` times in all."""

    def __init__(self, server_address, cuts, seed):
        self.random = random.Random(seed)
        self.left, self.made = cuts, 0
        self._lock = threading.Lock()
        host, port = server_address.rsplit(":", 1)
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listening.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            with self._lock:
                # The first one has to come to a session: what has not begun is not resumed.
                until = self.random.randint(*CUT_BYTES) + (20_000 if self.made == 0 else 0) if self.left > 0 else None
                self.left -= 1
                self.made += 1
            budget = [until]
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target, budget, (client, server)), daemon=True).start()

    def _pass_on(self, source, target, budget, both):
        try:
            while True:
                piece = source.recv(PIECE_BYTES)
                if not piece:
                    break
                with self._lock:
                    if budget[0] is not None:
                        piece, cut = piece[:max(budget[0], 0)], len(piece) >= budget[0]
                        budget[0] -= len(piece)
                    else:
                        cut = False
                target.sendall(piece)
                if cut:
                    break
        except OSError:
            pass
        for link in both:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        with self._lock:
            budget.append(None)
            last = len(budget) == 3
        if last:  # both directions have ended
            for link in both:
                link.close()


CONTROL, RESUME_CHALLENGE, RESUME, RESUMED, LOGIN, LOGIN_ANSWER = 1, 7, 8, 9, 4, 5
PROGRAMS_TO_CUT = ("copies", "host_memory", "events", "stream_ordered", "callbacks", "graph_copies", "managed_memory", "threads")


def far_pointer(words):
    """A Cap'n Proto pointer to bytes that begin so many words behind it."""
    return words << 2 | 1


def control(ordinal, words):
    """A control frame with this segment of 64-bit words, or bytes whose length is a multiple of eight."""
    segment = b"".join(word if isinstance(word, bytes) else word.to_bytes(8, "little") for word in words)
    return FRAME.pack(CONTROL, 0, 0x5747, ordinal, 0, len(segment) // 8, 0, 0) + segment


def login_to_resume(session_id):
    """Login: gpus and processId (one word), memoryBytes; six pointers, of which the last is `resume`."""
    root = 2 << 32 | 6 << 48
    return control(LOGIN, [root, 0, 0, 0, 0, 0, 0, far_pointer(0) | 16 << 35 | 2 << 32, session_id])


def resume(attempt, proof, received):
    """Resume: attempt, received; one pointer, the proof."""
    return control(RESUME, [2 << 32 | 1 << 48, attempt, received, far_pointer(0) | 32 << 35 | 2 << 32, proof])


def read_frame(link):
    header = FRAME.unpack(read_exactly(link, FRAME.size))
    return header[3], read_exactly(link, header[5] * 8)


class ResumeCase(unittest.TestCase):
    GRACE = "30s"
    SERVER_WORDS = 'open_tenant = "open"\n'
    TENANTS = "[tenants.open]\n[tenants.other]\n"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.audit = os.path.join(cls.folder.name, "audit.jsonl")
        configuration = os.path.join(cls.folder.name, "gpuwire.toml")
        with open(configuration, "w", encoding="ascii") as out:
            out.write(f'[server]\nresume_grace = "{cls.GRACE}"\naudit_log = "{cls.audit}"\n{cls.SERVER_WORDS}\n{cls.TENANTS}')
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

    def way(self, cuts, seed):
        way = UnreliableWay(self.server.address, cuts, seed)
        self.addCleanup(way.close)
        return way

    def passes_when_cut(self, program, seed, **extra):
        """Connections that were lost."""
        way = self.way(CUTS // 4, seed)
        there = run(self.server.address, program, **extra)
        cut = run(way.address, program, **extra)
        self.assertEqual(there.returncode, 0, there.stderr)
        self.assertEqual(cut.returncode, 0, cut.stderr)
        self.assertEqual(cut.stdout, there.stdout)
        return way.made - 1


class Resume(ResumeCase):
    def test_programs_notice_nothing_of_connections_that_are_cut(self):
        cuts = 0
        for seed, program in enumerate(PROGRAMS_TO_CUT, SEED):
            with self.subTest(program=program, seed=seed):
                cuts += self.passes_when_cut(program, seed)
        self.assertGreater(cuts, len(PROGRAMS_TO_CUT))
        self.assertGreater(self.audited('"event":"attached"'), len(PROGRAMS_TO_CUT))

    def test_a_program_that_does_not_want_to_ends_with_its_connection(self):
        way = self.way(1, SEED)
        lost = run(way.address, "copies", env={**os.environ, "GPUWIRE_RESUME": "off"})
        self.assertNotEqual(lost.returncode, 0)
        self.assertIn("the connection to the server was lost", lost.stderr)
        self.assertEqual(way.made, 1)

    def test_who_cannot_prove_that_a_session_is_its_own_is_kept_out_and_the_session_goes_on(self):
        running = start(self.server.address, "neighbour")
        self.addCleanup(running.communicate, timeout=60)
        self.assertEqual(running.stdout.readline(), "working\n")
        # Session identities are random; what somebody who has none can say is any other.
        self.assertIn(b"the session has ended", self.try_to_resume(bytes(16)))
        self.assertEqual(self.audited('"why":"resume"'), 1)

    def try_to_resume(self, session_id):
        host, port = self.server.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20) as link:
            link.sendall(preface())
            read_exactly(link, PREFACE.size)
            link.sendall(login_to_resume(session_id))
            ordinal, answer = read_frame(link)
            self.assertEqual(ordinal, LOGIN_ANSWER)
            return answer


class ShortGrace(ResumeCase):
    GRACE = "1s"

    def test_a_session_whose_client_does_not_come_back_ends(self):
        copier = start(self.server.address, "endless_copies")
        self.assertEqual(copier.stdout.readline(), "copying\n")
        copier.kill()
        copier.communicate()
        wait_until(lambda: self.audited('"event":"ended"', '"cause":"resume_grace"') == 1, 20, "the end of the session")


class Encrypted(ResumeCase):
    SERVER_WORDS = ""

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            pass
        cls.identity = folder
        admin = [os.path.join(BUILD, "bin", "gpuwire"), "admin", "--directory", os.path.join(folder, "identity")]
        os.mkdir(folder)
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        subprocess.run([*admin, "init"], check=True, capture_output=True)
        subprocess.run([*admin, "add-tenant", "anna", "--out", os.path.join(folder, "anna.pem")], check=True, capture_output=True)
        cls.TENANTS = f'[tls]\ndirectory = "{folder}/identity"\n[tenants.anna]\n'
        super().setUpClass()

    def test_over_tls_programs_notice_nothing_either(self):
        environment = {**os.environ, "GPUWIRE_IDENTITY": os.path.join(self.identity, "anna.pem")}
        cuts = sum(self.passes_when_cut(program, seed, env=environment) for seed, program in enumerate(PROGRAMS_TO_CUT[:4], SEED))
        self.assertGreater(cuts, 4)


if __name__ == "__main__":
    unittest.main()
