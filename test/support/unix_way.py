"""A way between clients and a server's Unix socket that breaks again and again: a proxy that passes on bytes and
descriptors, and ends each connection at a place that a seed says, by what has passed and not by time."""

import os
import random
import socket
import threading

# Until there is shared memory a connection carries a login and, when it carries a session on, the proof.
SET_UP_BYTES = (1, 500)
# From then on nothing but bells, each of a byte, and now and then a descriptor.
BELLS = (1, 40)
# Of the connections behind the first, which has to bring a session.
CUT_IN_SET_UP = 0.3


class UnixWay:
    """Listens on `address`. Connections are cut until `cuts` have been; those behind them last. One that ends by itself
    before leaves its cut to the next. `made` counts connections, `lost` those that were cut."""

    def __init__(self, folder, server_path, cuts, seed):
        self.made = self.lost = 0
        self._random, self._left = random.Random(seed), cuts
        self._lock = threading.Lock()
        self._blocked, self._open = False, set()
        self._server_path = server_path
        path = os.path.join(folder, f"way-{seed}-{os.urandom(4).hex()}.sock")
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(128)
        self.address = "unix:" + path
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

    def _serve(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self._blocked:
                client.close()
                continue
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._server_path)
            except OSError:
                client.close()
                continue
            _Connection(self, client, server).start()

    def planned(self):
        """After how many bytes of the set-up, or how many behind it, the next connection is cut; None: never."""
        with self._lock:
            self.made += 1
            if self._left <= 0:
                return None, None
            self._left -= 1
            in_set_up = self.made > 1 and self._random.random() < CUT_IN_SET_UP
            return (self._random.randint(*SET_UP_BYTES) if in_set_up else None), self._random.randint(*BELLS)

    def ended(self, connection, was_cut):
        with self._lock:
            self._open.discard(connection)
            if was_cut:
                self.lost += 1
            elif connection.bells_left is not None:
                self._left += 1


class _Connection:
    def __init__(self, way, client, server):
        self.way, self.links = way, (client, server)
        self.bytes_left, self.bells_left = way.planned()
        self.set_up, self.was_cut = True, False
        self.lock = threading.Lock()
        self.running = 2
        with way._lock:
            way._open.add(self)

    def start(self):
        client, server = self.links
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _admit(self, size, with_descriptor):
        """How much of so many bytes gets through, and whether the connection is cut behind them."""
        with self.lock:
            if self.was_cut:
                return 0, True
            if self.set_up:
                if self.bytes_left is not None:
                    through = min(size, self.bytes_left)
                    self.bytes_left -= through
                    self.was_cut = self.bytes_left == 0
                    size = through
                # The first descriptor is the shared memory's.
                if with_descriptor and not self.was_cut:
                    self.set_up = False
            elif self.bells_left is not None:
                size = min(size, self.bells_left)
                self.bells_left -= size
                self.was_cut = self.bells_left == 0
            return size, self.was_cut

    def _pass_on(self, source, target):
        try:
            while True:
                piece, descriptors, _, _ = socket.recv_fds(source, 65536, 16)
                if not piece:
                    break
                size, cut = self._admit(len(piece), bool(descriptors))
                piece = piece[:size]
                try:
                    if piece and descriptors:
                        piece = piece[socket.send_fds(target, [piece], descriptors):]
                    target.sendall(piece)
                finally:
                    for each in descriptors:
                        os.close(each)
                if cut:
                    break
        except OSError:
            pass
        self.end()
        with self.lock:
            self.running -= 1
            last = self.running == 0
        if last:
            self.way.ended(self, self.was_cut)
            for link in self.links:
                link.close()

    def end(self):
        for link in self.links:
            try:
                link.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
