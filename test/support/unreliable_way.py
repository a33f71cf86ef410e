"""A way between clients and a server that breaks again and again: a proxy that ends each connection after so many bytes
as a seed says."""

import random
import socket
import struct
import threading

PIECE_BYTES = 1 << 18
LINGER_NONE = struct.pack("ii", 1, 0)  # a close that resets
# A login and a resumption take some thousand bytes; a session has to have begun before it can be resumed.
FIRST_BYTES = 20_000


class UnreliableWay:
    """Listens on `address`. Connections are cut after `cut_bytes` (least, most; both directions together), half of them
    with a reset, until `cuts` have been; those behind them last. One that ends by itself before leaves its cut to the
    next. `made` counts connections, `lost` those that were cut, `carried` the bytes of all. `block()` ends them all;
    `swallow()` ends none, and they lead nowhere. `recorded`: what clients have sent at the beginning of each
    connection, when `record_bytes` says how much of it is wanted."""

    def __init__(self, server_address, cuts, seed, cut_bytes, record_bytes=0):
        self.cut_bytes, self.record_bytes = cut_bytes, record_bytes
        self.made = self.lost = self.carried = 0
        self.recorded = []
        self._random, self._left = random.Random(seed), cuts
        self._lock = threading.Lock()
        self._blocked, self._open = False, set()
        self._swallows, self._held = False, []
        host, port = server_address.rsplit(":", 1)
        self._server = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = "127.0.0.1:%d" % self._listening.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self):
        self._listening.close()

    def block(self):
        """Ends all connections, and each that comes at once."""
        with self._lock:
            self._blocked, there = True, list(self._open)
        for connection in there:
            connection.end()

    def unblock(self):
        self._blocked = False

    def swallow(self):
        """What either end sends over the connections that there are is taken and never passed on, nor is either end's
        leaving. Others are accepted, and stand still until pass_on()."""
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
                server = self._connect(client)
            except OSError:
                client.close()
                continue
            for link in (client, server):
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._begin(_Connection(self, client, server))

    def _begin(self, connection):
        with self._lock:
            self._open.add(connection)
            if self._swallows:
                self._held.append(connection)
                return
            blocked = self._blocked
        if blocked:
            connection.end()
        connection.start()

    def not_cut(self):
        """A connection that was to be cut has ended by itself."""
        with self._lock:
            self._left += 1

    def _connect(self, client):
        """A connection to the server whose own end has another number than the client's: by that a server would take it
        for the client's."""
        while True:
            server = socket.create_connection(self._server)
            if server.getsockname()[1] != client.getpeername()[1]:
                return server
            server.close()

    def planned(self):
        """After how many bytes the next connection is to be cut, and whether with a reset; None: never."""
        with self._lock:
            self.made += 1
            if self._left <= 0:
                return None, False
            self._left -= 1
            least, most = self.cut_bytes
            return self._random.randint(least,
                                        most) + (FIRST_BYTES if self.made == 1 else 0), self._random.random() < 0.5


class _Connection:
    def __init__(self, way, client, server):
        self.way, self.links = way, (client, server)
        self.left, self.reset = way.planned()
        self.lock = threading.Lock()
        self.running = 2
        self.swallows = False  # written under the way's lock
        self.start_bytes = bytearray()
        way.recorded.append(self.start_bytes)

    def start(self):
        client, server = self.links
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, target, source is client), daemon=True).start()

    def _pass_on(self, source, target, from_client):
        buffer = memoryview(bytearray(PIECE_BYTES))
        try:
            while size := source.recv_into(buffer):
                if self.swallows:
                    continue
                if from_client and len(self.start_bytes) < self.way.record_bytes:
                    self.start_bytes += buffer[:size]
                with self.lock:
                    cut = self.left is not None and size >= self.left
                    if self.left is not None:
                        size = min(size, max(self.left, 0))
                        self.left -= size
                    self.way.carried += size
                target.sendall(buffer[:size])
                if cut:
                    self._cut()
                    break
        except OSError:
            pass
        self._pass_on_is_over()

    def _cut(self):
        with self.lock:
            if self.left is None or self.left < 0:
                return
            self.left = -1
        with self.way._lock:
            self.way.lost += 1
        if self.reset:
            for link in self.links:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_NONE)

    def end(self):
        for link in self.links:
            try:
                # Without a word to the other side if that is to be a reset; a thread that reads is woken by either.
                link.shutdown(socket.SHUT_RD if self.reset and self.left == -1 else socket.SHUT_RDWR)
            except OSError:
                pass

    def _pass_on_is_over(self):
        if not self.swallows:
            self.end()
        with self.lock:
            self.running -= 1
            last = self.running == 0
        if last:
            if self.left is not None and self.left >= 0:
                self.way.not_cut()
            with self.way._lock:
                self.way._open.discard(self)
            for link in self.links:
                link.close()
