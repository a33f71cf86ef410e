@0xd1a7c1f0a5e2b310;
# What the broker tells a worker about the session that it is to serve: the text of a IpcMessageKind::session message. And what a worker tells when it is
# ready: the text of a IpcMessageKind::ready message.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::server::order");

struct SessionSpec {
  number @0 :UInt64;            # scheduler::SessionId
  peer @1 :Text;                # for logs
  tenant @2 :Text;              # name
  devices @3 :List(Device);     # as the worker's driver counts them
  tlsKey @4 :Data;              # 32 bytes: the pre-shared key of the connection's second handshake; empty: plain
  hostMemoryBytes @5 :UInt64;   # of the server's own memory, that the tenant may hold; 0: no bound
  ledgerSlot @6 :UInt32;        # which slot of the tenant's page is the session's
  resumeGraceMs @8 :UInt32;     # how long the session stays without a connection; 0: it ends with its connection
  hangUpGraceMs @9 :UInt32;     # the same where the connection was ended and not lost, by the program's end or by something between
  lanesMax @10 :UInt32;         # further connections for bulk; below 2: none
  identified @7 :Bool;         # the client has shown that it is the tenant

  struct Device {
    index @0 :UInt32;           # of the server: which column of the tenant's page
    limitBytes @1 :UInt64;      # what the session is shown as the device's memory; 0: all of it
  }
}

struct Inventory {
  summary @0 :Text;             # "1 x NVIDIA H200, NVIDIA 580.159.04, CUDA 13.0"
  devices @1 :List(Device);     # as the worker's driver counts them

  struct Device {
    name @0 :Text;
    uuid @1 :Text;              # "GPU-..."
    bytes @2 :UInt64;           # of memory in all
    takenBytes @3 :UInt64;      # of it, when the worker has just made its context there; 0: it has made none
  }
}
