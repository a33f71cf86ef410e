"""A program's view of libnvidia-ml.so.1, with the software device behind a real server."""

import os
import re
import socket
import struct
import subprocess
import sys
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "end_to_end"))
from support import (
    FRAME,
    PREFACE,
    RUN_LIMIT_SECONDS,
    Server,
    ServerCase,
    BUILD,
    MAGIC,
    nobody_listens,
    one_line_naming,
    read_exactly,
    run,
    start,
    wait_until,
)  # noqa: E402
import control_messages  # noqa: E402, in the folder that support names

PROGRAM = os.path.join(HERE, "library_program.py")
MANAGEMENT = 1  # wire::kPrefaceManagement
QUERY = 90      # wire::SessionOrdinal::management_query
REPLY_KIND = 4
HELLO, LOGIN, LOGIN_ANSWER = 1, 4, 5


def frame(kind, ordinal, sequence, payload):
    return FRAME.pack(kind, 0, 0x5747, ordinal, sequence, len(payload) // 8, 0, 0) + payload


class Meddler:
    """A proxy between a client and a server that replaces values in the replies of management queries."""

    def __init__(self, server, values, status=0):
        self.server, self.values, self.status = server.rsplit(":", 1), values, status
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            server = socket.create_connection((self.server[0], int(self.server[1])))
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()
            threading.Thread(target=self._meddle, args=(server, client), daemon=True).start()

    @staticmethod
    def _pass_on(source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def _meddle(self, source, sink):
        try:
            sink.sendall(read_exactly(source, PREFACE.size))
            while True:
                header = read_exactly(source, FRAME.size)
                fields = list(FRAME.unpack(header))
                payload = read_exactly(source, 8 * fields[5])
                if fields[0] == REPLY_KIND:
                    payload = control_messages.management_reply(self.status, self.values)
                    fields[5] = len(payload) // 8
                sink.sendall(FRAME.pack(*fields) + payload)
        except (EOFError, OSError):
            sink.close()


class Library(ServerCase):
    server_arguments = ("--software-devices", "2")

    def program(self, what, address=None, **extra):
        return run(address or self.server.address, sys.executable, PROGRAM, what, **extra)

    def test_a_program_finds_what_it_expects(self):
        self.assert_passed(self.program("all"))

    def test_no_cuda_visible_devices_hides_devices_from_nvml(self):
        self.assert_passed(self.program("all", env={**os.environ, "CUDA_VISIBLE_DEVICES": "0"}))

    def test_without_a_server_the_driver_is_not_loaded_and_one_line_says_why(self):
        address = self.enterContext(nobody_listens())
        ran = self.program("no_server", address)
        self.assert_passed(ran)
        self.assertTrue(one_line_naming(ran.stderr, address), ran.stderr)

    def test_replies_that_cannot_be_are_errors(self):
        for values in (b"", b"\1", b"\xff" * 4, b"\xff\xff\xff\x7f", struct.pack("<I", 7) + b"sixsix",
                       struct.pack("<I", 30) + b"x" * 30, b"\0" * 5000):
            with self.subTest(values[:8]):
                meddler = Meddler(self.server.address, values)
                self.assert_passed(self.program("bad_replies", meddler.address))
                meddler.socket.close()

    def test_a_lost_server_is_a_lost_device(self):
        with Server(BUILD, ["--device", "software"]) as server:
            ran = start(server.address, sys.executable, PROGRAM, "lost")
            self.assertEqual(ran.stdout.readline(), "ready\n")
            server.process.kill()
            server.process.wait()
            out, error = ran.communicate("\n", timeout=RUN_LIMIT_SECONDS)
            self.assertEqual(ran.returncode, 0, out + error)

    def session(self):
        host, port = self.server.address.rsplit(":", 1)
        link = socket.create_connection((host, int(port)), timeout=RUN_LIMIT_SECONDS)
        link.sendall(PREFACE.pack(MAGIC, 2, 0, 0, 0, MANAGEMENT, b"0.0.0-test", b""))
        self.assertEqual(PREFACE.unpack(read_exactly(link, PREFACE.size))[3], 0)
        link.sendall(frame(1, LOGIN, 0, b""))
        self.assertEqual(self.receive(link)[0][3], LOGIN_ANSWER)
        link.sendall(frame(1, HELLO, 0, control_messages.hello()))
        self.receive(link)
        return link

    def receive(self, link):
        fields = FRAME.unpack(read_exactly(link, FRAME.size))
        return fields, read_exactly(link, 8 * fields[5])

    def test_wrong_queries_end_their_session_alone(self):
        neighbour = start(
            self.server.address,
            sys.executable,
            "-c",
            (
                "import ctypes, sys; n = ctypes.CDLL('libnvidia-ml.so.1'); c = ctypes.c_uint(); assert n.nvmlInit_v2()"
                " == 0; print('ready', flush=True);sys.stdin.readline(); b = ctypes.create_string_buffer(90); assert"
                " n.nvmlSystemGetDriverVersion(b, 90) == 0; print('PASSED')"
            ),
        )
        self.assertEqual(neighbour.stdout.readline(), "ready\n")
        name = 6  # nvmlDeviceGetName
        for arguments in (b"", struct.pack("<I", 0), struct.pack("<II", 9,
                                                                 64), struct.pack("<III", 0, 64,
                                                                                  0), b"\xff" * 8, b"x" * 100_000):
            with self.subTest(arguments[:12]), self.session() as link:
                link.sendall(frame(3, QUERY, 1, control_messages.management_query(name, arguments)))
                fields, _ = self.receive(link)
                self.assertEqual((fields[0], fields[3]), (5, 6), "an Ending notice")
        # A management session does not know the calls of a program's session, and the other way round.
        with self.session() as link:
            link.sendall(frame(3, 1000, 1, control_messages.management_query(0, b"")))
            self.assertEqual(self.receive(link)[0][0], 5)
        with self.session() as link:  # an ordinal of a newer client
            link.sendall(frame(3, QUERY, 1, control_messages.management_query(100_000, b"")))
            fields, payload = self.receive(link)
            self.assertEqual((fields[0], struct.unpack_from("<i", payload, 16)[0]), (REPLY_KIND, 13))
        out, error = neighbour.communicate("\n", timeout=RUN_LIMIT_SECONDS)
        self.assertEqual(out, "PASSED\n", error)

    def test_management_sessions_take_no_context_and_one_spare_process(self):
        self.assert_passed(self.program("all"))
        wait_until(lambda: len(self.worker_ids()) == 2, RUN_LIMIT_SECONDS,
                   "a prewarmed worker for programs, and one for management")
        commands = []
        for process in self.worker_ids():
            with open(f"/proc/{process}/cmdline", encoding="ascii") as file:
                commands.append("--management" in file.read().split("\0"))
        self.assertEqual(sorted(commands), [False, True])


if __name__ == "__main__":
    unittest.main(verbosity=2)
