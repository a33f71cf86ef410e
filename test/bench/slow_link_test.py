"""Tests that `build/bench/slow_link` forwards all bytes, delayed and within its rate, and forwards the end of a
connection."""

import os
import random
import socket
import subprocess
import threading
import time
import unittest

from support import BUILD

PROGRAM = os.path.join(BUILD, "bench", "slow_link")
LIMIT_SECONDS = 300


def receive_all(connection):
    data = bytearray()
    while piece := connection.recv(1 << 16):
        data += piece
    return bytes(data)


class SlowLink(unittest.TestCase):
    def setUp(self):
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.listening.close)

    def way(self, *arguments):
        """Returns both ends of a connection over the link."""
        link = subprocess.Popen(
            [PROGRAM, "--server", "127.0.0.1:%d" % self.listening.getsockname()[1], *arguments],
            stdout=subprocess.PIPE, text=True)
        self.addCleanup(link.stdout.close)
        self.addCleanup(link.wait)
        self.addCleanup(link.kill)
        host, port = link.stdout.readline().split()[-1].split(":")
        client = socket.create_connection((host, int(port)))
        server, _ = self.listening.accept()
        for end in (client, server):
            end.settimeout(LIMIT_SECONDS)
            self.addCleanup(end.close)
        return client, server

    def assert_carries(self, source, target, data):
        got = []
        reader = threading.Thread(target=lambda: got.append(receive_all(target)))
        reader.start()
        source.sendall(data)
        source.shutdown(socket.SHUT_WR)
        reader.join(LIMIT_SECONDS)
        self.assertEqual(got, [data])

    def test_bytes_arrive_as_they_were_in_both_directions_and_then_the_end(self):
        data = random.Random(5).randbytes(20_000_000)
        client, server = self.way("--round-trip-ms", "2", "--gbit", "40")
        self.assert_carries(client, server, data)
        # The other direction is still open.
        self.assert_carries(server, client, data[::-1])

    def test_a_round_trip_takes_no_less_than_it_should(self):
        client, server = self.way("--round-trip-ms", "50")
        started = time.monotonic()
        client.sendall(b"there")
        self.assertEqual(server.recv(16), b"there")
        server.sendall(b"back")
        self.assertEqual(client.recv(16), b"back")
        self.assertGreaterEqual(time.monotonic() - started, 0.05)

    def test_bytes_come_no_faster_than_the_link_carries(self):
        client, server = self.way("--gbit", "0.1")
        started = time.monotonic()
        self.assert_carries(client, server, bytes(2_500_000))
        self.assertGreaterEqual(time.monotonic() - started, 0.2)

    def test_a_connection_that_is_gone_is_gone_at_the_other_end(self):
        client, server = self.way("--round-trip-ms", "1")
        client.close()
        self.assertEqual(server.recv(16), b"")

    def test_a_server_that_is_not_there_ends_the_connection(self):
        client, server = self.way()
        server.close()
        self.listening.close()
        again = socket.create_connection(client.getpeername())
        self.addCleanup(again.close)
        again.settimeout(LIMIT_SECONDS)
        self.assertEqual(again.recv(16), b"")

    def test_an_address_that_is_none_is_said(self):
        ran = subprocess.run([PROGRAM, "--server", "nowhere"], capture_output=True, text=True, timeout=LIMIT_SECONDS)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("--server", ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
