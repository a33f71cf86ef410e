"""A raw client inside TLS: what it sends is encrypted, whatever that is, and its records may be spoilt on their way."""

import ssl

PIECE_BYTES = 65536


class TlsPeer:
    """As much of a socket as raw peers use. `link`: a connected socket on which both prefaces have been said and TLS is
    next. `identity`: a file with a certificate and its key. Who the server is does not matter to it."""

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
        """The encrypted records of the next bytes; they count as sent."""
        self._tls.write(data)
        return self._outgoing.read()

    def last_word(self):
        """The record by which TLS says that nothing follows."""
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # the other end has not said so yet
        return self._outgoing.read()

    def sendall(self, data):
        self.link.sendall(self.records(data))

    def shutdown(self, how):
        """Ends the connection's direction without a word in TLS."""
        self.link.shutdown(how)

    def close(self):
        self.link.close()

    def recv(self, most):
        """What the server has said; nothing: it has ended the connection, not only TLS."""
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
