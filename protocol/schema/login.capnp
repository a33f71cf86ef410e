@0xd1a7c1f0a5e2b303;
# The messages between both prefaces and Hello, in which the client authenticates and says what it requests. Carried in frames of FrameKind::control, inside TLS if
# the preface asked for it (wire/frame.hpp, kPrefaceTls).

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::schema");

struct Login {
  # Client to server, ordinal 4.
  token @0 :Text;               # a bearer token; empty: a certificate, the Unix socket's peer credentials or the open tenant identify the client
  gpus @1 :UInt32;              # 0: the tenant's usual number
  memoryBytes @2 :UInt64;       # required free memory on each GPU; 0: not specified
  program @3 :Text;
  host @4 :Text;
  processId @5 :UInt32;
  release @6 :Text;
  resume @7 :Data;              # 16 bytes: the session that this connection is to resume; empty: a new one
  ticket @8 :Data;              # 16 bytes: the ticket of the client's place in the queue when it lost its connection; empty: it had none
  query @9 :Text;               # not empty: the client requests an answer instead of a session. Words separated by spaces; further words are ignored:
                                # - "queue", "top", "usage" or "me", then "text", "json" or "csv"; optionally the columns of the terminal (0: none); optionally how
                                #   "top" sorts ("gpu", "memory", "link", "tenant", "id"), or whether "usage" is by "tenant" or "user"
                                # - "usage-since", the format, a day such as 2026-11-23, and optionally "tenant" or "user"
                                # - "usage-by-user", the format, and optionally a day
                                # - "check text": would a program with these gpus and memoryBytes start now?
                                # - "end text", "suspend text" or "resume text" and at most 32 numbers of sessions of the tenant, which are to end or to move
                                # docs/wire_protocol.md specifies the answers of the last four
  tokenName @10 :Text;          # instead of a token, without TLS: the first 16 hexadecimal digits of the token's SHA-256. The server answers with a challenge
  tokenNonce @11 :Data;         # with tokenName: 32 random bytes
  sealedToken @12 :Data;        # in a second Login, which answers the challenge and has no other field: the sealed token (docs/wire_protocol.md)
  gpuType @13 :Text;            # text that the name of each GPU of the session must contain, ignoring case; empty: any GPU
}

struct LoginAnswer {
  # Server to client, ordinal 5: `queued` any number of times, then one of the others; after a query `told` or `refused`.
  union {
    admitted @0 :Void;          # over TLS both sides now begin a second handshake over the same TCP connection (protocol/tls/README.md); Hello follows
    queued @1 :Queued;
    refused @2 :Text;           # one line; the connection closes
    challenge @4 :Challenge;    # the first answer to a tokenName
    told @3 :Told;              # answers a query, any number of times until `last`; then the connection closes
  }
  identityEndsUnixS @5 :Int64;  # with `admitted`: when the client's credentials expire; 0: they do not expire
  struct Told {
    text @0 :Text;
    last @1 :Bool;
  }
  struct Challenge {
    nonce @0 :Data;             # 32 random bytes
    proof @1 :Data;             # HMAC-SHA256 keyed with the token's SHA-256; docs/wire_protocol.md specifies its input
  }
  struct Queued {
    place @0 :UInt32;
    waiting @1 :UInt32;
    why @2 :Text;
    ticket @3 :Data;            # sent again after the connection is lost: a restarted server keeps the place for a while
  }
}
