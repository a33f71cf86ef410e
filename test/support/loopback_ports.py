"""Provides loopback ports for daemons that need a fixed port: Slurm's daemons read theirs from a file before they
start.

A port that the kernel picks for `bind(0)` is of the range from which it also picks those of outgoing connections, so
that it may be taken again before the daemon binds it. These ports are outside that range, and a lock keeps other tests
that run at the same time away from them."""

import fcntl
import os
import socket
import tempfile

import time_limit  # noqa: F401, no test waits for a daemon without end

FIRST, LAST = 20000, 65535
LOCKS = os.path.join(tempfile.gettempdir(), f"gpuwire-test-ports-{os.geteuid()}")


def outgoing_range():
    """The first and the last port that the kernel gives to outgoing connections."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first, last = map(int, file.read().split())
    return first, last


def candidates(outgoing):
    """Returns all ports that no outgoing connection gets; if that would be none, all ports."""
    ports = range(FIRST, LAST + 1)
    return [port for port in ports if not outgoing[0] <= port <= outgoing[1]] or list(ports)


class LoopbackPorts:
    """Ports that are this object's until close() or the end of the process."""

    def __init__(self, outgoing=None):
        self._candidates = iter(candidates(outgoing or outgoing_range()))
        self._locks = []
        os.makedirs(LOCKS, mode=0o700, exist_ok=True)

    def take(self):
        for port in self._candidates:
            lock = os.open(os.path.join(LOCKS, str(port)), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            except OSError:
                os.close(lock)
                continue
            self._locks.append(lock)
            return port
        raise OSError("no port of loopback is left for a test")

    def close(self):
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
