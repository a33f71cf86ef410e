"""A raw client inside TLS: it encrypts arbitrary bytes, and a test can damage its records."""

import ssl

PIECE_BYTES = 65536


class TlsPeer:
    """Has the methods of a socket that raw peers use. `link`: a connected socket after both prefaces, on which TLS is
    next. `identity`: a file with a certificate and its key. The client does not check the server."""

    def __init__(self, link, identity):
        self.link = link
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(identity)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self.link.sendall(self._outgoing.read())
                piece = self.link.recv(PIECE_BYTES)
                if not piece:
                    raise EOFError("no TLS") from None
                self._incoming.write(piece)
        self.link.sendall(self._outgoing.read())

    def records(self, data):
        """Returns the encrypted records of the next bytes, which count as sent."""
        self._tls.write(data)
        return self._outgoing.read()

    def last_word(self):
        """Returns TLS's closing record."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the other end has not sent it yet
        return self._outgoing.read()

    def sendall(self, data):
        self.link.sendall(self.records(data))

    def shutdown(self, how):
        """Ends the connection's direction without a TLS alert."""
        self.link.shutdown(how)

    def close(self):
        self.link.close()

    def recv(self, most):
        """Returns the server's data; nothing: the server has ended the connection, and not only TLS."""
        while True:
            try:
                data = self._tls.read(most)
                if data:
                    return data
            except ssl.SSLWantReadError:
                piece = self.link.recv(PIECE_BYTES)
                if not piece:
                    return b""
                self._incoming.write(piece)
                continue
            except ssl.SSLError:
                pass  # an alert, or the last word
            while self.link.recv(PIECE_BYTES):
                pass
            return b""
