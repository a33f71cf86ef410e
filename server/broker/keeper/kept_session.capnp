@0xb7c64d2f1ae09583;
# The entry of a session that has a worker or waits for one: a broker stores it with the keeper for its successor.
# Fields are only ever added.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::server::kept");

struct Session {
  build @0 :Text;               # the layout of messages and pages (kept_build())
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
  stopReason @16 :Text;         # not empty: the session was told to end
  arrivedNs @17 :Int64;         # since the epoch
  begunNs @18 :Int64;
  detachedUntilNs @19 :Int64;
  resumeGraceMs @20 :UInt32;
  ledgerSlot @21 :UInt32;
  hostBeforeBytes @22 :UInt64;  # host memory of its process before it had the session
  pageBeganNs @23 :Int64;       # CLOCK_MONOTONIC, when its page was made
  queued @24 :Bool;             # the session waits in the queue, and has no worker
  gpus @25 :UInt32;             # the number that its client asked for
  lanes @26 :UInt32;            # the session's share of its tenant's lanes
  queueRound @27 :UInt64;       # while queued: of its tenant's turns
  stopKind @28 :UInt8;          # with stopReason: StopKind
  gpuType @29 :Text;            # while queued: a part of the name that its GPUs must have
  user @30 :Text;               # of the tenant; or none
  suspension @31 :UInt8;        # SuspensionPhase
  suspendedBytes @32 :UInt64;   # of device memory with the host
  suspendedSinceNs @33 :Int64;  # since the epoch; 0: it is not suspended
  returnedNs @34 :Int64;        # CLOCK_MONOTONIC, when its memory was last back on the GPU; 0: it has not returned
  returnTookNs @35 :Int64;      # the duration of that return

  struct Device {
    index @0 :UInt32;           # of the server
    uuid @1 :Text;
  }
}
