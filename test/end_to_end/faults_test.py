"""Faults of one session: it ends with a reason, leaves nothing behind, and its neighbour does not notice."""

import os
import random
import re
import signal
import socket
import subprocess
import unittest

from support import (DEVICE, FRAME, PREFACE, RUN_LIMIT_SECONDS, ServerCase, preface, read_exactly, run, runs, start,
                     wait_until)

SEED = int(os.environ.get("GPUWIRE_TEST_SEED", "20251121"))


class Faults(ServerCase):
    def setUp(self):
        self.neighbour = start(self.server.address, "neighbour")
        self.assertEqual(self.neighbour.stdout.readline(), "working\n", self.neighbour.stderr)
        wait_until(lambda: len(self.worker_ids()) >= 2, RUN_LIMIT_SECONDS, "the neighbour's worker and a prewarmed one")

    def tearDown(self):
        out, err = self.neighbour.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), f"the neighbour noticed: {out}{err}")
        wait_until(lambda: len(self.worker_ids()) <= 1, RUN_LIMIT_SECONDS, "no worker but the prewarmed one")

    def connection(self):
        """Returns an unused connection."""
        host, port = self.server.address.rsplit(":", 1)
        link = socket.create_connection((host, int(port)), timeout=RUN_LIMIT_SECONDS)
        self.addCleanup(link.close)
        return link

    def worker_of(self, program, process_id):
        """Returns the worker of a process's session, by the server's log."""
        found = []

        def logged():
            text = self.server_log()
            sessions = re.findall(rf"session (\w+) from .+?: {program} \(process {process_id}\b", text)
            found[:] = re.findall(rf"session {sessions[-1]} from .+?: worker (\d+)", text) if sessions else []
            return found

        wait_until(logged, RUN_LIMIT_SECONDS, f"a session of {program} in the server's log")
        return int(found[0])

    PREFACE_FLAGS = 0

    def channel(self, link):
        """Returns the transport for the login and all later frames, on a connection after both prefaces."""
        return link

    def greeted(self):
        """Returns a raw session after its login: frames may follow."""
        link = self.connection()
        link.sendall(preface(flags=self.PREFACE_FLAGS))
        self.assertEqual(PREFACE.unpack(read_exactly(link, PREFACE.size))[3], 0)
        link = self.channel(link)
        link.sendall(FRAME.pack(1, 0, 0x5747, 4, 0, 0, 0, 0))
        header = FRAME.unpack(read_exactly(link, FRAME.size))
        self.assertEqual(header[3], 5)
        read_exactly(link, 8 * header[5])
        return link

    def read_to_end(self, link):
        """Reads until the server closes; fails if it does not."""
        received = b""
        try:
            while True:
                piece = link.recv(65536)
                if not piece:
                    return received
                received += piece
        except ConnectionResetError:
            return received

    def test_a_client_killed_in_the_middle_of_a_copy(self):
        before = self.worker_ids()
        copier = start(self.server.address, "endless_copies")
        self.assertEqual(copier.stdout.readline(), "copying\n")
        copier.kill()
        copier.communicate()
        wait_until(lambda: len(self.worker_ids()) <= len(before), RUN_LIMIT_SECONDS, "the dead client's worker")

    def test_a_killed_worker_ends_its_session_with_an_error(self):
        self.assert_worker_s_death_is_told()

    def test_a_worker_that_is_killed_while_copies_are_kept_for_it_ends_its_session_with_an_error(self):
        self.assert_worker_s_death_is_told("kept")

    def assert_worker_s_death_is_told(self, *arguments):
        copier = start(self.server.address, "endless_copies", *arguments)
        self.assertEqual(copier.stdout.readline(), "copying\n")
        self.addCleanup(copier.kill)
        os.kill(self.worker_of("endless_copies", copier.pid), signal.SIGKILL)
        out, err = copier.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(copier.returncode, 3, out + err)
        self.assertIn("cudaError", out)
        self.assertNotIn("succeeded after", out)
        self.assertIn("gpuwire", err)

    def test_a_killed_worker_s_program_is_told_by_its_stream_callbacks(self):
        waiter = start(self.server.address, "callbacks_fault", "lost")
        self.addCleanup(waiter.kill)
        self.assertEqual(waiter.stdout.readline(), "waiting\n")
        os.kill(self.worker_of("callbacks_fault", waiter.pid), signal.SIGKILL)
        out, err = waiter.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(waiter.returncode, 0, out + err)

    def test_a_peer_that_is_no_gpuwire_client(self):
        link = self.connection()
        link.sendall(b"GET / HTTP/1.1\r\nHost: example\r\n\r\n" + b" " * 64)
        self.read_to_end(link)

    def test_a_client_of_another_version_is_told_both(self):
        link = self.connection()
        link.sendall(preface(major=9, minor=1))
        answer = self.read_to_end(link)
        status, text_bytes = PREFACE.unpack(answer[:PREFACE.size])[3:5]
        self.assertEqual(status, 1)
        text = answer[PREFACE.size:PREFACE.size + text_bytes].decode()
        self.assertIn("9.1", text)
        self.assertIn("1.0", text)

    def test_a_frame_of_absurd_length(self):
        link = self.greeted()
        link.sendall(FRAME.pack(1, 0, 0x5747, 1, 1, 0xffffffff, 0, 0))
        self.read_to_end(link)
        link = self.greeted()
        link.sendall(FRAME.pack(2, 0, 0x5747, 11, 1, 4, 0, 1 << 60))
        self.read_to_end(link)

    def test_a_frame_of_unknown_ordinal_or_kind_or_magic(self):
        for header in (FRAME.pack(3, 0, 0x5747, 4000000000, 1, 0, 0,
                                  0), FRAME.pack(77, 0, 0x5747, 1, 1, 0, 0, 0), FRAME.pack(3, 0, 0x1111, 1, 1, 0, 0,
                                                                                           0)):
            link = self.greeted()
            link.sendall(header)
            self.read_to_end(link)

    def test_a_frame_cut_in_the_middle(self):
        for keep in (1, 16, 31, 40):
            link = self.greeted()
            link.sendall((FRAME.pack(1, 0, 0x5747, 1, 1, 8, 0, 0) + b"\0" * 64)[:keep])
            link.shutdown(socket.SHUT_WR)
            self.read_to_end(link)

    def test_a_connection_that_says_nothing_is_closed(self):
        link = self.connection()
        self.read_to_end(link)

    def test_random_bytes(self):
        random.seed(SEED)
        print(f"seed {SEED}")
        for _ in range(20):
            link = self.greeted()
            try:
                link.sendall(random.randbytes(random.randrange(1, 4000)))
                link.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            self.read_to_end(link)

    def test_frames_with_a_good_header_and_random_words(self):
        random.seed(SEED + 1)
        print(f"seed {SEED + 1}")
        for _ in range(20):
            link = self.greeted()
            words = random.randrange(1, 64)
            try:
                link.sendall(FRAME.pack(1, 0, 0x5747, 1, 0, words, 0, 0) + random.randbytes(8 * words))
                for sequence in range(1, 10):
                    words = random.randrange(0, 64)
                    ordinal = random.choice(
                        [1, 2, 3, 10, 11, 12, 20, 21, 22, 23, 24, 25, 30, 31, 40,
                         random.randrange(1000, 1600)])
                    link.sendall(
                        FRAME.pack(random.choice([2, 3]), 0, 0x5747, ordinal, sequence, words, 0, 0) +
                        random.randbytes(8 * words))
                link.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            self.read_to_end(link)

    def test_a_hundred_half_open_connections_do_not_stop_a_program(self):
        links = []
        for _ in range(100):
            try:
                links.append(self.connection())
            except OSError:
                break
        self.assert_passed(run(self.server.address, os.path.join(os.environ["GPUWIRE_BUILD"], "examples", "add_one")))


def used_mib():
    """Returns the used memory of the first GPU."""
    ran = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         capture_output=True, text=True, check=True)
    return int(ran.stdout.split()[0])


@unittest.skipUnless(DEVICE == "cuda", "the software device's memory is the worker's own, and goes with the process")
class DeviceMemory(ServerCase):
    # Without prewarmed workers only sessions hold memory of the GPU.
    server_arguments = ("--prewarmed-workers", "0")

    def test_device_memory_of_a_killed_client_comes_back(self):
        neighbour = start(self.server.address, "neighbour")
        self.assertEqual(neighbour.stdout.readline(), "working\n")
        before = used_mib()
        copier = start(self.server.address, "endless_copies")
        self.assertEqual(copier.stdout.readline(), "copying\n")
        self.assertGreater(used_mib(), before)
        copier.kill()
        copier.communicate()
        wait_until(lambda: used_mib() <= before, RUN_LIMIT_SECONDS, f"no more than the {before} MiB of before in use")
        out, err = neighbour.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)


class ServerEnds(ServerCase):
    resume_grace = "1s"

    def test_a_killed_server_ends_its_sessions_with_an_error_and_leaves_no_process(self):
        copier = start(self.server.address, "endless_copies")
        self.assertEqual(copier.stdout.readline(), "copying\n")
        workers = self.worker_ids()
        self.server.process.kill()
        out, err = copier.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(copier.returncode, 3, out + err)
        self.assertIn("cudaError", out)
        self.assertIn("gpuwire", err)
        wait_until(lambda: not any(runs(worker) for worker in workers), RUN_LIMIT_SECONDS,
                   f"workers {workers} of the killed server")

    @classmethod
    def tearDownClass(cls):
        cls.server.stop()


class ServerDrains(ServerCase):
    server_arguments = ("--drain-seconds", "3600")  # the server waits for slow sessions

    def test_a_terminated_server_lets_running_sessions_end(self):
        neighbour = start(self.server.address, "neighbour")
        self.assertEqual(neighbour.stdout.readline(), "working\n")
        self.server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: run(self.server.address, "first_error").returncode == 3, RUN_LIMIT_SECONDS,
                   "new sessions are refused")
        out, err = neighbour.communicate(timeout=RUN_LIMIT_SECONDS)
        self.assertTrue(out.rstrip().endswith("PASSED"), out + err)
        self.server.process.wait(RUN_LIMIT_SECONDS)


if __name__ == "__main__":
    unittest.main(verbosity=2)
