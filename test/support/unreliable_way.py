"""Ways between clients and a server that break again and again: proxies that end each connection at a place that a seed
says, by what has passed and not by time. UnreliableWay is one of TCP, UnixWay one of a Unix socket."""

import os
import random
import socket
import struct
import threading

PIECE_BYTES = 1 << 18
LINGER_NONE = struct.pack("ii", 1, 0)  # a close that resets
# A login and a resumption take some thousand bytes; a session has to have begun before it can be resumed.
FIRST_BYTES = 20_000

# Over a Unix socket, before shared memory, a connection carries a login and, at a resumption, the proof.
SET_UP_BYTES = (1, 500)
# After that it carries only bells, each of one byte, and sometimes a descriptor.
BELLS = (1, 40)
# For the connections after the first one, which has to begin a session.
CUT_IN_SET_UP = 0.3


class _Way:
    """Listens on `address`. Connections are cut until `cuts` have been; those behind them last. One that ends by itself
    before leaves its cut to the next. `made` counts connections, `lost` those that were cut, `carried` the bytes of
    all. `block()` ends them all; `swallow()` ends none, and they lead nowhere. `recorded`: what clients have sent at
    the beginning of each connection, when `record_bytes` says how much of it is wanted.

    Of a kind of way: `_to_server(client)`, the socket that goes on from there; `_cut()`, where the next connection is
    cut; and how a piece, with descriptors, is taken and given."""

    def __init__(self, listening, address, cuts, seed, record_bytes=0):
        self.address, self.record_bytes = address, record_bytes
        self.made = self.lost = self.carried = 0
        self.recorded = []
        self._random, self._left = random.Random(seed), cuts
        self._lock = threading.Lock()
        self._blocked, self._open = False, set()
        self._swallows, self._held = False, []
        self._listening = listening
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listening.close()

    def block(self):
        """Ends all connections, and each new one at once."""
        with self._lock:
            self._blocked, there = True, list(self._open)
        for connection in there:
            connection.end()

    def unblock(self):
        self._blocked = False

    def swallow(self):
        """Reads and discards all data of the present connections, and does not forward either end's closing. Accepts
        further connections, which are blocked until pass_on()."""
        with self._lock:
            self._swallows = True
            for connection in self._open:
                connection.swallows = True

    def pass_on(self):
        """Connections made from now on, and those that stand still, are as they were before swallow()."""
        with self._lock:
            self._swallows, held, self._held = False, self._held, []
        for connection in held:
            connection.start()

    def _serve(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                if self._blocked:
                    raise ConnectionRefusedError
                server = self._to_server(client)
            except OSError:
                client.close()
                continue
            self._begin(client, server)

    def _begin(self, client, server):
        with self._lock:
            self.made += 1
            cut = None
            if self._left > 0:
                self._left -= 1
                cut = self._cut()
            connection = _Connection(self, client, server, cut)
            self.recorded.append(connection.start_bytes)
            self._open.add(connection)
            if self._swallows:
                self._held.append(connection)
                return
            blocked = self._blocked
        if blocked:
            connection.end()
        connection.start()

    def was_cut(self):
        with self._lock:
            self.lost += 1

    def ended(self, connection):
        with self._lock:
            self._open.discard(connection)
            if connection.cut and not connection.cut.made:
                self._left += 1


class UnreliableWay(_Way):
    """Connections are cut after `cut_bytes` (least, most; both directions together), half of them with a reset."""

    def __init__(self, server_address, cuts, seed, cut_bytes, record_bytes=0):
        self.cut_bytes = cut_bytes
        host, port = server_address.rsplit(":", 1)
        self._server = (host, int(port))
        listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        super().__init__(listening, "127.0.0.1:%d" % listening.getsockname()[1], cuts, seed, record_bytes)

    def _to_server(self, client):
        """Makes a connection to the server from another port number than the client's: with the same number a server
        would consider it the client's."""
        while True:
            server = socket.create_connection(self._server)
            if server.getsockname()[1] != client.getpeername()[1]:
                break
            server.close()
        for link in (client, server):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return server

    def _cut(self):
        first = FIRST_BYTES if self.made == 1 else 0
        return _BytesCut(self._random.randint(*self.cut_bytes) + first, self._random.random() < 0.5)

    @staticmethod
    def take(source, buffer):
        return source.recv_into(buffer), ()

    @staticmethod
    def give(target, piece, descriptors):
        target.sendall(piece)


class UnixWay(_Way):
    """Passes on descriptors, too. Connections are cut while shared memory is being set up, or behind some bells."""

    def __init__(self, folder, server_path, cuts, seed):
        self._server_path = server_path
        path = os.path.join(folder, f"way-{seed}-{os.urandom(4).hex()}.sock")
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(path)
        listening.listen(128)
        super().__init__(listening, "unix:" + path, cuts, seed)

    def _to_server(self, client):
        server = socket.socket(socket.AF_UNIX)
        server.connect(self._server_path)
        return server

    def _cut(self):
        in_set_up = self.made > 1 and self._random.random() < CUT_IN_SET_UP
        return _BellsCut(self._random.randint(*SET_UP_BYTES) if in_set_up else None, self._random.randint(*BELLS))

    @staticmethod
    def take(source, buffer):
        piece, descriptors, _, _ = socket.recv_fds(source, len(buffer), 16)
        buffer[:len(piece)] = piece
        return len(piece), descriptors

    @staticmethod
    def give(target, piece, descriptors):
        if piece and descriptors:
            piece = piece[socket.send_fds(target, [piece], descriptors):]
        target.sendall(piece)


class _BytesCut:
    """Cuts after this many bytes. `here`: nothing more gets through; `made`: the connection was ended for that."""

    def __init__(self, left, reset):
        self.here = self.made = False
        self.reset, self._left = reset, left

    def admit(self, size, with_descriptor):
        """Returns the number of bytes that get through."""
        size = min(size, self._left)
        self._left -= size
        self.here = self._left == 0
        return size


class _BellsCut:
    """The same after this many bytes of the set-up or, if these are None, after this many bells."""

    reset = False

    def __init__(self, set_up_left, bells_left):
        self.here = self.made = False
        self._set_up = True
        self._set_up_left, self._bells_left = set_up_left, bells_left

    def admit(self, size, with_descriptor):
        if not self._set_up:
            size = min(size, self._bells_left)
            self._bells_left -= size
            self.here = self._bells_left == 0
            return size
        if self._set_up_left is not None:
            size = min(size, self._set_up_left)
            self._set_up_left -= size
            self.here = self._set_up_left == 0
        # The first descriptor is the shared memory's.
        self._set_up = not with_descriptor
        return size


class _Connection:
    def __init__(self, way, client, server, cut):
        self.way, self.links, self.cut = way, (client, server), cut
        self.lock = threading.Lock()
        self.running = 2
        self.swallows = False  # written under the way's lock
        self.start_bytes = bytearray()

    def start(self):
        client, server = self.links
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, target, source is client), daemon=True).start()

    def _admit(self, size, with_descriptor):
        """Returns the number of bytes that get through, and whether the connection is cut after them."""
        with self.lock:
            if self.cut:
                size = 0 if self.cut.here else self.cut.admit(size, with_descriptor)
            self.way.carried += size
            return size, bool(self.cut and self.cut.here)

    def _pass_on(self, source, target, from_client):
        buffer = memoryview(bytearray(PIECE_BYTES))
        try:
            while True:
                size, descriptors = self.way.take(source, buffer)
                if size == 0:
                    break
                try:
                    if self.swallows:
                        continue
                    if from_client and len(self.start_bytes) < self.way.record_bytes:
                        self.start_bytes += buffer[:size]
                    size, cut = self._admit(size, bool(descriptors))
                    self.way.give(target, buffer[:size], descriptors)
                finally:
                    for each in descriptors:
                        os.close(each)
                if cut:
                    self._make_cut()
                    break
        except OSError:
            pass
        self._pass_on_is_over()

    def _make_cut(self):
        with self.lock:
            if self.cut.made:
                return
            self.cut.made = True
        self.way.was_cut()
        if self.cut.reset:
            for link in self.links:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)

    def end(self):
        # Without a shutdown for a reset; both wake a reading thread.
        reset = self.cut and self.cut.made and self.cut.reset
        for link in self.links:
            try:
                link.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            except OSError:
                pass

    def _pass_on_is_over(self):
        if not self.swallows:
            self.end()
        with self.lock:
            self.running -= 1
            last = self.running == 0
        if last:
            self.way.ended(self)
            for link in self.links:
                link.close()
