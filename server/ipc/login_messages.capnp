@0xd1a7c1f0a5e2b320;
# What the broker and the login process tell each other: the texts of LoginKind messages (messages.hpp).

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::server::login_text");

struct Arrival {
  peer @0 :Text;            # for logs
  address @1 :Text;         # what connections are counted by
  tls @2 :Bool;             # the client asked for it
  unixTenant @3 :Text;      # whom the caller's user stands for, on a Unix socket
  openTenant @4 :Text;      # who it is when it does not say
  management @5 :Bool;      # comes back with the request
}

struct Request {
  tenant @0 :Text;
  security @1 :Text;
  credential @2 :Text;      # a serial or a token's id
  gpus @3 :UInt32;
  memoryBytes @4 :UInt64;
  program @5 :Text;
  host @6 :Text;
  processId @7 :UInt32;
  peer @8 :Text;
  management @9 :Bool;
  resume @10 :Data;         # 16 bytes, or none
  ticket @11 :Data;         # 16 bytes, or none
}

struct Queued {
  place @0 :UInt32;
  waiting @1 :UInt32;
  why @2 :Text;
  ticket @3 :Data;
}

struct Refusal {
  peer @0 :Text;
  kind @1 :Text;            # RefusalKind, as a word
  reason @2 :Text;
  tenant @3 :Text;          # as far as it was known
  credential @4 :Text;
}
