@0xb7c64d2f1ae09583;
# What a broker writes down of a session that has a worker, or waits for one, for the broker that comes after it: the text of its entry with the keeper. Fields are only ever added.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::server::kept");

struct Session {
  build @0 :Text;               # what the two ends share has this layout (kept_build())
  number @1 :UInt64;
  wireId @2 :Data;              # 16 bytes
  tenant @3 :Text;
  devices @4 :List(Device);
  memoryBytes @5 :UInt64;
  peer @6 :Text;
  security @7 :Text;
  credential @8 :Text;
  program @9 :Text;
  host @10 :Text;
  clientPid @11 :UInt32;
  workerPid @12 :UInt32;
  management @13 :Bool;
  begun @14 :Bool;              # its client has begun it
  detached @15 :Bool;
  stopReason @16 :Text;         # not empty: it was told to end
  arrivedNs @17 :Int64;         # since the epoch
  begunNs @18 :Int64;
  detachedUntilNs @19 :Int64;
  resumeGraceMs @20 :UInt32;
  ledgerSlot @21 :UInt32;
  hostBeforeBytes @22 :UInt64;  # what its process had of this machine's memory before it had the session
  pageBeganNs @23 :Int64;       # CLOCK_MONOTONIC, when its page was made
  queued @24 :Bool;             # it waits in the queue, and has no worker
  gpus @25 :UInt32;             # as its client has asked for
  lanes @26 :UInt32;            # that it may have, of its tenant's
  queueRound @27 :UInt64;       # while it waits: of its tenant's turns
  stopKind @28 :UInt8;          # with stopReason: StopKind
  gpuType @29 :Text;            # while it waits: what the names of its GPUs are to have in them
  user @30 :Text;               # who of the tenant; or none

  struct Device {
    index @0 :UInt32;           # of the server
    uuid @1 :Text;
  }
}
