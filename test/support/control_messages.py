"""Makes messages of clients, and replies, with the protocol's own schema (control_messages.cpp)."""

import atexit
import os
import subprocess
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
BUILD = os.path.abspath(os.environ.get("GPUWIRE_BUILD", os.path.join(HERE, "..", "..", "build")))


class _Writer:
    """One process makes all messages. It starts with the first message."""

    def __init__(self):
        self._lock, self._process = threading.Lock(), None

    def write(self, name, **fields):
        words = [name, *(f"{field}={value.hex() if isinstance(value, bytes) else value}"
                         for field, value in fields.items())]
        with self._lock:
            if not self._process:
                self._process = subprocess.Popen([os.path.join(BUILD, "test_bin", "control_messages")],
                                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                atexit.register(self._end)
            self._process.stdin.write(" ".join(words) + "\n")
            self._process.stdin.flush()
            return bytes.fromhex(self._process.stdout.readline())

    def _end(self):
        self._process.communicate()


_writer = _Writer()


def login(token=b"", resume=b""):
    """Login: a token, which may be any bytes, and the identity of the session that the connection resumes."""
    return _writer.write("login", token=token, resume=resume)


def resume_challenge():
    """ResumeChallenge, the client's."""
    return _writer.write("resume_challenge")


def resume(attempt, proof, received):
    return _writer.write("resume", attempt=attempt, proof=proof, received=received)


def hello():
    """Hello that says nothing."""
    return _writer.write("hello")


def management_query(function, arguments):
    return _writer.write("management_query", function=function, arguments=arguments)


def management_reply(status, values):
    return _writer.write("management_reply", status=status, values=values)


def rdma_end(version, address, token):
    """Rdma: the address that the client claims."""
    return _writer.write("rdma_end", version=version, address=address, token=token)


def rdma_use():
    """Rdma: both sides have sent their greetings."""
    return _writer.write("rdma_use")
