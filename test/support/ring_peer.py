"""A raw client at the other end of shared memory (protocol/transport/shared_memory_layout.hpp), which sends arbitrary
bytes through the ring."""

import mmap
import os
import select
import socket
import struct
import time

KIND_CONTROL, MAGIC, SHARED_MEMORY, VERSION = 1, 0x5747, 11, 1
FRAME = struct.Struct("<BBHIQIIQ")
HEADER = struct.Struct("<QII")
FILE_MAGIC = 0x314D_4853_5755_5047
INDICES, INDICES_BYTES, DATA = 128, 512, 4096
WRITTEN, FINISHED, READ, READER_SLEEPS, WRITER_SLEEPS = 0, 8, 128, 256, 384
BELL = b"\1"
LIMIT_SECONDS = 300


class RingPeer:
    """Has the methods of a socket that raw peers use. `link`: a connected Unix socket after the login."""

    def __init__(self, link):
        self.link = link
        link.settimeout(LIMIT_SECONDS)
        link.sendall(FRAME.pack(KIND_CONTROL, 0, MAGIC, SHARED_MEMORY, VERSION, 0, 0, 0))
        answer, descriptors = b"", []
        while len(answer) < FRAME.size:
            piece, came, _, _ = socket.recv_fds(link, FRAME.size - len(answer), 1)
            if not piece:
                raise EOFError("no answer")
            answer, descriptors = answer + piece, descriptors + came
        if FRAME.unpack(answer)[4] != VERSION:
            raise RuntimeError("the server gives no shared memory")
        size = os.fstat(descriptors[0]).st_size
        self.memory = mmap.mmap(descriptors[0], size)
        os.close(descriptors[0])
        magic, version, self.ring_bytes = HEADER.unpack_from(self.memory, 0)
        if (magic, version, size) != (FILE_MAGIC, VERSION, DATA + 2 * self.ring_bytes):
            raise RuntimeError("this is no shared memory of a server's")
        self.written = self.read = 0
        self.to_server, self.to_client = INDICES, INDICES + INDICES_BYTES

    def index(self, ring, which):
        return struct.unpack_from("<Q", self.memory, ring + which)[0]

    def set_index(self, ring, which, value):
        struct.pack_into("<Q", self.memory, ring + which, value)

    def bell(self):
        try:
            self.link.send(BELL, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            pass  # it has bells that it has not heard, or has ended: what it has said before is in the ring

    def sendall(self, data):
        if len(data) > self.ring_bytes - self.written:
            raise ValueError("more than the ring takes at its first turn")
        at = DATA + self.written
        self.memory[at:at + len(data)] = data
        self.written += len(data)
        self.set_index(self.to_server, WRITTEN, self.written)
        self.bell()

    def shutdown(self, how):
        struct.pack_into("<I", self.memory, self.to_server + FINISHED, 1)
        self.bell()

    def close(self):
        self.link.close()

    def _available(self):
        return self.index(self.to_client, WRITTEN) - self.read

    def recv(self, most):
        """Returns the server's data; nothing: the server has ended."""
        end = time.monotonic() + LIMIT_SECONDS
        ended = False
        while time.monotonic() < end:
            finished, = struct.unpack_from("<I", self.memory, self.to_client + FINISHED)
            size = min(self._available(), most, self.ring_bytes - self.read % self.ring_bytes)
            if size:
                at = DATA + self.ring_bytes + self.read % self.ring_bytes
                data = self.memory[at:at + size]
                self.read += size
                self.set_index(self.to_client, READ, self.read)
                self.bell()
                return data
            if finished or ended:
                return b""
            struct.pack_into("<I", self.memory, self.to_client + READER_SLEEPS, 1)
            if self._available():
                continue
            if select.select([self.link], [], [], max(end - time.monotonic(), 0))[0]:
                try:
                    ended = not self.link.recv(4096)
                except ConnectionResetError:
                    ended = True
        raise TimeoutError("the server neither says anything nor ends")
