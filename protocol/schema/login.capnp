@0xd1a7c1f0a5e2b303;
# Between both prefaces and Hello: who the client is and what it asks for. Carried in frames of FrameKind::control, inside TLS where the preface asked
# for it (wire/frame.hpp, kPrefaceTls).

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::schema");

struct Login {
  # Client to server, ordinal 4.
  token @0 :Text;               # a bearer token, or empty: a certificate, the Unix socket's peer, or the open tenant
  gpus @1 :UInt32;              # 0: as many as the tenant usually gets
  memoryBytes @2 :UInt64;       # to be free on each GPU; 0: not said
  program @3 :Text;
  host @4 :Text;
  processId @5 :UInt32;
  release @6 :Text;
  resume @7 :Data;              # 16 bytes: the session that this connection is to carry on; empty: a new one
  ticket @8 :Data;              # 16 bytes: of the place in the queue that the client had when it lost its connection; empty: it had none
  query @9 :Text;               # not empty: no session is wanted, but an answer: "queue", "top", "usage" or "me", and "text", "json" or "csv"; then, or not, the columns of the terminal (0: none), and how "top" sorts: "gpu", "memory", "link", "tenant", "id", or whether "usage" is by "tenant" or "user". Between these words are spaces; further ones are ignored. Or "usage-since", the format, a day, 2026-11-23, and "tenant" or "user", or not. Or "usage-by-user", the format, and a day, or not. Or "check text": would a program with these gpus and memoryBytes start now? Or "end text" and numbers of sessions, 32 at most: the tenant's own that are to end. docs/wire_protocol.md says what these two are answered
  tokenName @10 :Text;          # in the place of a token, without TLS: the first 16 hexadecimal digits of its SHA-256. The server answers with a challenge
  tokenNonce @11 :Data;         # with tokenName: 32 random bytes
  sealedToken @12 :Data;        # of a second Login, which answers the challenge and has nothing else: the token, as docs/wire_protocol.md says
  gpuType @13 :Text;            # what the name of each GPU of the session has in it, whatever the case of its letters; empty: anything
}

struct LoginAnswer {
  # Server to client, ordinal 5; `queued` any number of times, then one of the others; after a query `told` or `refused`.
  union {
    admitted @0 :Void;          # over TLS both sides now begin a second handshake on the bare connection (protocol/tls/README.md); then Hello
    queued @1 :Queued;
    refused @2 :Text;           # one line; the connection closes
    challenge @4 :Challenge;    # to a tokenName, first of all
    told @3 :Told;              # to a query, any number of times until `last`; the connection closes
  }
  identityEndsUnixS @5 :Int64;  # with `admitted`: when what the client has shown does not count any more; 0: it has shown nothing that ends by itself
  struct Told {
    text @0 :Text;
    last @1 :Bool;
  }
  struct Challenge {
    nonce @0 :Data;             # 32 random bytes
    proof @1 :Data;             # HMAC-SHA256 under the token's SHA-256, docs/wire_protocol.md says of what
  }
  struct Queued {
    place @0 :UInt32;
    waiting @1 :UInt32;
    why @2 :Text;
    ticket @3 :Data;            # shown again if the connection is lost: a server that was started again has kept the place for a while
  }
}
