"""Sessions of a client on the server's own machine: rings in shared memory, pinned memory in place, and both when
something goes wrong."""

import os
import random
import re
import socket
import subprocess
import tempfile
import threading
import unittest

from support import BUILD, DEVICE, PROGRAMS, RUN_LIMIT_SECONDS, Server, ServerCase, run, start, wait_until

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251122"))
GPUWIRE = os.path.join(BUILD, "bin", "gpuwire")
SENT = re.compile(r"sent ([\d.]+) (B|KiB|MiB|GiB) in \d+ writes, received ([\d.]+) (B|KiB|MiB|GiB)")
UNIT = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def account(program, *arguments, server, options=()):
    """Runs a program with --stats: its outcome and what the account says."""
    ran = subprocess.run(
        [GPUWIRE, "run", "--server", server, "--stats", *options, "--",
         os.path.join(PROGRAMS, program), *arguments], capture_output=True, text=True, timeout=RUN_LIMIT_SECONDS)
    return ran, ran.stderr


def travelled(text):
    """Bytes sent and received, of an account."""
    found = SENT.search(text)
    return float(found[1]) * UNIT[found[2]], float(found[3]) * UNIT[found[4]]


class LocalServer(ServerCase):
    """A server that listens on a Unix socket, too."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "gpuwire.sock")
        cls.address = "unix:" + cls.path
        cls.server = Server(BUILD, ["--device", DEVICE, "--listen", cls.address, *cls.server_arguments]).__enter__()

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        cls.folder.cleanup()


class Programs(LocalServer):
    def test_programs_run_as_over_any_other_road(self):
        for program in ("threads", "callbacks", "forks", "copies", "host_memory", "mapped_memory", "pinned_pointers",
                        "managed_memory", "graph_copies", "events", "stream_ordered", "batch_copies", "graph_capture"):
            with self.subTest(program=program):
                self.assert_passed(run(self.address, program))

    def test_the_account_and_info_say_which_road_was_taken(self):
        for options, road in (((), "shm"), (("--transport", "auto"), "shm"), (("--transport", "shm"), "shm"),
                              (("--transport", "tcp"), "unix")):
            with self.subTest(options=options):
                ran, text = account("copies", server=self.address, options=options)
                self.assert_passed(ran)
                self.assertIn(f"server: {self.address} over {road}, release", text)
        _, text = account("copies", server=self.server.address)
        self.assertIn(f"server: {self.server.address} over tcp, release", text)
        info = subprocess.run([GPUWIRE, "info", "--server", self.address, "--quick"], capture_output=True, text=True,
                              timeout=RUN_LIMIT_SECONDS)
        self.assertRegex(info.stdout, r"(?m)^transport   shm$")

    def test_the_environment_chooses_too(self):
        for name, road in (("tcp", "unix"), ("shm", "shm")):
            ran = run(self.address, "copies", env={**os.environ, "GPUWIRE_TRANSPORT": name, "GPUWIRE_STATS": "1"})
            self.assert_passed(ran)
            self.assertIn(f"over {road}, release", ran.stderr)
        ran = run(self.address, "copies", env={**os.environ, "GPUWIRE_TRANSPORT": "pigeon"})
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("GPUWIRE_TRANSPORT must be auto, tcp, shm or rdma, got pigeon", ran.stderr)

    def test_shared_memory_with_another_machine_is_refused_with_the_reason(self):
        ran = run(self.server.address, "copies", env={**os.environ, "GPUWIRE_TRANSPORT": "shm"})
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn("shared memory is for a server on this machine: --server unix:/PATH", ran.stderr)

    def test_pinned_memory_is_copied_where_it_is(self):
        ran, text = account("pinned_in_place", "small", server=self.address)
        self.assert_passed(ran)
        # Of 16 MiB that go to and fro five times only what comes into pageable memory travels.
        sent, received = travelled(text)
        self.assertLess(sent, 1 << 20)
        self.assertLess(received, 24 << 20)

    def test_pinned_memory_is_right_over_the_other_roads_too(self):
        self.assert_passed(run(self.address, "pinned_in_place", "small",
                               env={**os.environ, "GPUWIRE_TRANSPORT": "tcp"}))
        self.assert_passed(run(self.server.address, "pinned_in_place", "small"))


class Ends(LocalServer):
    def test_a_client_that_is_killed_in_the_middle_of_a_copy_ends_its_session_alone(self):
        neighbour = start(self.address, "neighbour")
        self.addCleanup(neighbour.communicate, timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(neighbour.stdout.readline(), "working\n")
        copier = start(self.address, "endless_copies")
        self.assertEqual(copier.stdout.readline(), "copying\n")
        copier.kill()
        copier.communicate()
        wait_until(lambda: any("the client" in line for line in self.server.log), RUN_LIMIT_SECONDS,
                   "word of the lost client")
        self.assertIsNone(neighbour.poll())

    def test_a_client_learns_of_a_worker_that_is_killed(self):
        copier = start(self.address, "endless_copies")
        self.assertEqual(copier.stdout.readline(), "copying\n")
        for worker in self.worker_ids():
            os.kill(worker, 9)
        out, error = copier.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(copier.returncode, 3, out + error)


class UnreliableWay:
    """Passes Unix connections on to a server, with the descriptors that come along, and cuts each after a time that a
    seed says, `cuts` times in all."""

    CUT_AFTER_S = (0.02, 0.2)

    def __init__(self, folder, server_path, cuts, seed):
        self.random = random.Random(seed)
        self.left, self.made = cuts, 0
        self._lock = threading.Lock()
        self._server_path = server_path
        path = os.path.join(folder, f"way-{seed}-{os.urandom(4).hex()}.sock")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen()
        self.address = "unix:" + path
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listening.close()

    def _serve(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server_path)
            with self._lock:
                self.made += 1
            ended = []
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, target, (client, server), ended),
                                 daemon=True).start()
            with self._lock:
                cut = self.left > 0
                self.left -= 1
                after = self.random.uniform(*self.CUT_AFTER_S)
            if cut:
                timer = threading.Timer(after, self._cut, [(client, server)])
                timer.daemon = True
                timer.start()

    @staticmethod
    def _cut(both):
        for link in both:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _pass_on(self, source, target, both, ended):
        try:
            while True:
                piece, descriptors, _, _ = socket.recv_fds(source, 65536, 16)
                if not piece:
                    break
                if descriptors:
                    socket.send_fds(target, [piece], descriptors)
                    for each in descriptors:
                        os.close(each)
                else:
                    target.sendall(piece)
        except OSError:
            pass
        self._cut(both)
        with self._lock:
            ended.append(source)
            last = len(ended) == 2
        if last:
            for link in both:
                link.close()


class Resume(unittest.TestCase):
    LOST_MIN, RUNS_MAX = 8, 100

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "gpuwire.sock")
        configuration = os.path.join(cls.folder.name, "gpuwire.toml")
        with open(configuration, "w", encoding="ascii") as out:
            out.write('[server]\nresume_grace = "30s"\nopen_tenant = "open"\n[tenants.open]\n')
        cls.server = Server(
            BUILD, ["--device", DEVICE, "--listen", "unix:" + cls.path, "--config", configuration]).__enter__()

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        cls.folder.cleanup()
        if code != 0:
            raise AssertionError(f"the server ended with {code}:\n" + "".join(cls.server.log))

    def test_a_session_whose_socket_is_cut_goes_on_in_new_shared_memory(self):
        # How far a program is when its socket is cut is the machine's to say: on a fast one some are over before.
        programs = (("copies",), ("host_memory",), ("pinned_in_place", "small"), ("managed_memory",),
                    ("stream_ordered",))
        lost, seed = 0, SEED
        while lost < self.LOST_MIN and seed < SEED + self.RUNS_MAX:
            program, *arguments = programs[seed % len(programs)]
            with self.subTest(program=program, seed=seed):
                lost += self.passes_when_cut(seed, program, *arguments)
            seed += 1
        self.assertGreaterEqual(lost, self.LOST_MIN)

    def passes_when_cut(self, seed, program, *arguments):
        """Connections that were lost."""
        way = UnreliableWay(self.folder.name, self.path, 6, seed)
        try:
            ran, text = account(program, *arguments, server=way.address)
        finally:
            way.close()
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr + "".join(self.server.log[-10:]))
        self.assertTrue(ran.stdout.rstrip().endswith("PASSED"), ran.stdout)
        self.assertIn("over shm, release", text)
        return way.made - 1


if __name__ == "__main__":
    unittest.main()
