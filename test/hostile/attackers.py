"""Raw hostile clients of a gpuwire server, with the part of the protocol that they need."""

import os
import re
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "end_to_end"))
from support import FRAME, PREFACE, RUN_LIMIT_SECONDS, preface, read_exactly  # noqa: E402
import control_messages  # noqa: E402, in the folder that support names

PREFACE_MANAGEMENT = 1
CONTROL, HELLO, LOGIN, RDMA = 1, 1, 4, 12
RDMA_MESSAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "protocol", "transport",
                             "rdma_message.hpp")
MAGIC = 0x5747
ADMITTED, QUEUED, REFUSED = "admitted", "queued", "refused"


def connect(address):
    """Returns a connection without any data."""
    if address.startswith("unix:"):
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(RUN_LIMIT_SECONDS)
        try:
            link.connect(address.removeprefix("unix:"))
        except OSError:
            link.close()
            raise
        return link
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=RUN_LIMIT_SECONDS)


def answer(link):
    """Returns the next answer to a login: its kind, and the text of a refusal."""
    header = FRAME.unpack(read_exactly(link, FRAME.size))
    message = read_exactly(link, 8 * header[5])
    which = struct.unpack_from("<H", message, 8)[0]
    return (ADMITTED, QUEUED, REFUSED)[which], message


def greeted(address, more=b"", management=False):
    """Returns a connection after both prefaces, and this many bytes more from the client; nothing: it was refused."""
    link = connect(address)
    link.sendall(preface(flags=PREFACE_MANAGEMENT if management else 0) + more)
    status = PREFACE.unpack(read_exactly(link, PREFACE.size))[3]
    if status != 0:
        link.close()
        return None
    return link


def ask(link, token=b""):
    """Requests a session. Returns the first answer."""
    link.sendall(control(LOGIN, control_messages.login(token)))
    return answer(link)


def log_in(address, token=b"", management=False):
    """Returns a connection that has requested a session, and its first answer."""
    link = greeted(address, management=management)
    if not link:
        return None, REFUSED, b""
    word, text = ask(link, token)
    return link, word, text


def hello_bytes():
    """Returns the beginning of a Hello of the largest length."""
    return control(HELLO, bytes(8 * 64))


def control(ordinal, message):
    """A control frame, whole."""
    return FRAME.pack(CONTROL, 0, MAGIC, ordinal, 0, len(message) // 8, 0, 0) + message


def rdma_end(address, token):
    """Returns the client's first message about RDMA (Rdma of protocol/schema/handshake.capnp): the address that it
    claims."""
    with open(RDMA_MESSAGES, encoding="ascii") as source:
        version = int(re.search(r"kVersion = (\d+);", source.read())[1])
    return control(RDMA, control_messages.rdma_end(version, address, token))


def rdma_use():
    """Returns the client's last message about RDMA: both sides have sent their greetings."""
    return control(RDMA, control_messages.rdma_use())
