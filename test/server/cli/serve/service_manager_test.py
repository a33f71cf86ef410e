"""The messages of `gpuwire serve` to the service manager that started it. usage: service_manager_test.py
BUILD_DIRECTORY"""

import os
import signal
import socket
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "..", "..", folder) for folder in ("support", "end_to_end")]
BUILD = os.path.abspath(sys.argv.pop(1))
from gpuwire_server import Server  # noqa: E402
from support import children, wait_until  # noqa: E402

LIMIT_SECONDS = 300


class Manager:
    """The end of a service manager: takes datagrams."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(LIMIT_SECONDS)

    def hears(self, word):
        """Returns the first message that has this line, and drops earlier ones."""
        while True:
            message = self.socket.recv(4096).decode()
            if word in message.splitlines():
                return message


class ServiceManager(unittest.TestCase):
    def serve(self, address, name, **variables):
        self.manager = Manager(address)
        self.addCleanup(self.manager.socket.close)
        server = Server(BUILD, ["--device", "software"], environment={**os.environ, "NOTIFY_SOCKET": name, **variables})
        self.addCleanup(server.stop)
        return server.__enter__()

    def test_it_hears_of_the_start_of_life_and_of_the_end(self):
        with tempfile.TemporaryDirectory() as folder:
            address = os.path.join(folder, "notify")
            server = self.serve(address, address, WATCHDOG_USEC="100000")
            self.assertIn("STATUS=1 x", self.manager.hears("READY=1"))
            for _ in range(3):
                self.manager.hears("WATCHDOG=1")
            server.process.send_signal(signal.SIGTERM)
            self.manager.hears("STOPPING=1")
            self.assertEqual(server.stop(), 0)

    def test_repeated_signals_do_not_end_the_server_otherwise(self):
        with tempfile.TemporaryDirectory() as folder:
            address = os.path.join(folder, "notify")
            server = self.serve(address, address)
            self.manager.hears("READY=1")
            # Up to its last moment, when it has no signal handler any more.
            while server.process.poll() is None:
                server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.returncode, 0, "".join(server.log))

    def test_the_socket_may_be_a_name_that_is_no_file(self):
        name = f"gpuwire-test-{os.getpid()}"
        self.serve("\0" + name, "@" + name)
        self.manager.hears("READY=1")

    def test_a_child_of_the_server_is_not_the_service(self):
        with tempfile.TemporaryDirectory() as folder:
            address = os.path.join(folder, "notify")
            server = self.serve(address, address)
            # By their names: a process just forked is still a copy of the service.
            for name in ("gpuwire-worker", "gpuwire-login"):
                wait_until(lambda name=name: children(server.process.pid, name), LIMIT_SECONDS, name)
                for process in children(server.process.pid, name):
                    try:
                        with open(f"/proc/{process}/environ", "rb") as file:
                            self.assertNotIn(b"NOTIFY_SOCKET", file.read())
                    except (PermissionError, FileNotFoundError, ProcessLookupError):
                        pass  # the login process cannot be inspected; a prewarmed worker may have ended


if __name__ == "__main__":
    unittest.main(verbosity=2)
