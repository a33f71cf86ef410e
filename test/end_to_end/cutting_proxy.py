"""A proxy between a client and a server that knows the protocol, and acts at a certain point of a connection."""

import dataclasses
import itertools
import socket
import struct
import threading

from support import FRAME, PREFACE, read_exactly

LINGER_NONE = struct.pack("ii", 1, 0)  # a close that resets
PIECE_BYTES = 65536
CONTROL, POSTED, CALLED, REPLY, NOTICE = 1, 2, 3, 4, 5
# Longer bulk is split into parts if the session may have lanes; this proxy serves one connection, so no part uses a
# lane.
WHOLE_BULK_BYTES_MAX = 256 << 10
PART = struct.Struct("<HBBIQ")
PART_MAGIC, PART_HERE = 0x5047, 1
RECORD = struct.Struct(">BHH")  # of TLS: type, version, bytes
RECORDS = -1


@dataclasses.dataclass(frozen=True)
class Point:
    """`sender`: "client" or "server"; `part`: "preface", "header", "message" or "bulk", of which half has been passed
    on, or "whole": the frame
    (or, without a kind, the preface). kind and ordinal None: of any frame."""

    sender: str
    part: str
    kind: int = None
    ordinal: int = None

    def matches(self, sender, part, kind, ordinal):
        return (self.sender == sender and self.part == part and self.kind in (None, kind)
                and self.ordinal in (None, ordinal)
                and (kind is not None or self.kind is None and self.ordinal is None))


class CuttingProxy:
    """Serves one connection. It calls `strike(proxy)` once, at the first match of `point`, and then sets `reached`; the
    other direction may continue meanwhile."""

    def __init__(self, server_address, point, strike):
        self.point, self.strike = point, strike
        self.reached = threading.Event()
        self._struck = threading.Lock()
        self._cut = False  # set once, by the thread that cuts
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listening.getsockname()[1]
        host, port = server_address.rsplit(":", 1)
        self.server = socket.create_connection((host, int(port)))
        self.client = None
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def close(self):
        for link in (self._listening, self.server, self.client):
            if link:
                try:
                    link.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
                link.close()

    # --- functions for a strike
    def cut(self, reset=False):
        """Ends both connections: with a reset, or in an orderly way."""
        self._cut = True
        for link in (self.server, self.client):
            try:
                if reset:
                    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)
                # A reading thread holds the connection open; this wakes it, without a FIN to the other side before a
                # reset.
                link.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
                link.close()
            except OSError:
                pass

    # --- passing on
    def _serve(self):
        try:
            self.client, _ = self._listening.accept()
            self._listening.close()  # a reconnection is refused at once
        except OSError:
            return
        back = threading.Thread(target=self._pass_on, args=("server", self.server, self.client), daemon=True)
        back.start()
        self._pass_on("client", self.client, self.server)

    def _pass_on(self, sender, source, target):
        try:
            self._part(source, target, PREFACE.size, sender, "preface", None, None)
            self._at(sender, "whole", None, None)
            self._pass_on_what_follows(sender, source, target)
        except (OSError, EOFError):
            pass
        # The end of one side ends the other.
        if self._cut:
            return
        for link in (source, target):
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _pass_on_what_follows(self, sender, source, target):
        while True:
            header = read_exactly(source, FRAME.size)
            kind, _, _, ordinal, _, words, _, bulk = FRAME.unpack(header)
            self._write(target, header, sender, "header", kind, ordinal)
            self._part(source, target, words * 8, sender, "message", kind, ordinal)
            self._bulk(source, target, bulk, sender, "bulk", kind, ordinal)
            self._at(sender, "whole", kind, ordinal)

    def _write(self, target, data, *where):
        half = len(data) // 2
        target.sendall(data[:half])
        self._at(where[0], *where[1:])
        target.sendall(data[half:])

    def _part(self, source, target, size, *where):
        if size == 0:
            return
        half = size // 2
        self._copy(source, target, half)
        self._at(where[0], *where[1:])
        self._copy(source, target, size - half)

    def _bulk(self, source, target, size, *where):
        left, in_parts = size, size > WHOLE_BULK_BYTES_MAX
        first = True
        while left:
            here = left
            if in_parts:
                header = read_exactly(source, PART.size)
                target.sendall(header)
                magic, way, _, _, part_bytes = PART.unpack(header)
                in_parts = magic == PART_MAGIC and way == PART_HERE
                if in_parts:
                    here = part_bytes
                else:  # a session without lanes: these were the first bulk bytes
                    here = left = left - PART.size
            if first:
                self._part(source, target, here, *where)
            else:
                self._copy(source, target, here)
            left -= here
            first = False

    @staticmethod
    def _copy(source, target, size):
        while size:
            piece = read_exactly(source, min(size, PIECE_BYTES))
            target.sendall(piece)
            size -= len(piece)

    def _at(self, sender, part, kind, ordinal):
        if not self.point.matches(sender, part, kind, ordinal):
            return
        with self._struck:
            if self.reached.is_set():
                return
            self.reached.set()
        self.strike(self)


class RecordCuttingProxy(CuttingProxy):
    """Inside TLS frames are not visible: a point's kind is RECORDS, and its ordinal the number of the sender's
    record."""

    def _pass_on_what_follows(self, sender, source, target):
        for number in itertools.count():
            header = read_exactly(source, RECORD.size)
            self._write(target, header, sender, "header", RECORDS, number)
            self._part(source, target, RECORD.unpack(header)[2], sender, "message", RECORDS, number)
            self._at(sender, "whole", RECORDS, number)
