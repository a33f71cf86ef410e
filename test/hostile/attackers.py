"""Raw clients of a gpuwire server that mean harm, as far as they need its protocol."""

import os
import socket
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "end_to_end"))
from support import FRAME, PREFACE, RUN_LIMIT_SECONDS, preface, read_exactly  # noqa: E402

PREFACE_MANAGEMENT = 1
CONTROL, HELLO, LOGIN = 1, 1, 4
MAGIC = 0x5747
ADMITTED, QUEUED, REFUSED = "admitted", "queued", "refused"


def login_message(token):
    """A Login (protocol/schema/login.capnp) that holds a token alone: bytes, which may be any."""
    data_words, pointers = 2, 4
    words = struct.pack("<II", 0, data_words | pointers << 16) + bytes(8 * data_words)
    if not token:
        return words + bytes(8 * pointers)
    to_text = pointers - 1  # words between the pointer and what it points to
    words += struct.pack("<II", 1 | to_text << 2, 2 | (len(token) + 1) << 3) + bytes(8 * (pointers - 1))
    return words + token + bytes(8 - len(token) % 8)


def connect(address):
    """A connection on which nothing has been said."""
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
    """The next answer to a login: its word, and what a refusal says."""
    header = FRAME.unpack(read_exactly(link, FRAME.size))
    message = read_exactly(link, 8 * header[5])
    which = struct.unpack_from("<H", message, 8)[0]
    return (ADMITTED, QUEUED, REFUSED)[which], message


def greeted(address, more=b"", management=False):
    """A connection on which both prefaces have been said, and behind the client's so many bytes more; nothing: it was
    refused."""
    link = connect(address)
    link.sendall(preface(flags=PREFACE_MANAGEMENT if management else 0) + more)
    status = PREFACE.unpack(read_exactly(link, PREFACE.size))[3]
    if status != 0:
        link.close()
        return None
    return link


def ask(link, token=b""):
    """Asks for a session; the first answer."""
    message = login_message(token)
    link.sendall(FRAME.pack(CONTROL, 0, MAGIC, LOGIN, 0, len(message) // 8, 0, 0) + message)
    return answer(link)


def log_in(address, token=b"", management=False):
    """A connection that has asked for a session, and the first answer that it got."""
    link = greeted(address, management=management)
    if not link:
        return None, REFUSED, b""
    word, text = ask(link, token)
    return link, word, text


def hello_bytes():
    """The beginning of a Hello that is as long as one may be."""
    words = 64
    return FRAME.pack(CONTROL, 0, MAGIC, HELLO, 0, words, 0, 0) + bytes(8 * words)
