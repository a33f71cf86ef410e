@0xe3a1c5b7d2f94608;
# All messages between the server's processes. One message is one packet of a Unix socket pair (SOCK_SEQPACKET): the
# words of one segment, and beside them the descriptors that it refers to. message.hpp has the same in C++; codec.cpp
# turns one into the other and checks what comes from outside.
#
# The broker exchanges messages with each worker, with the login process, with the keeper and with the
# suspender. While there is no broker, the keeper takes its place for workers. The union is in the order of the senders;
# a message of another sender is refused (codec.cpp, speakers_of).

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::server::ipc_schema");

using Place = UInt8;  # of a descriptor among those that come with the message, counted from 1; 0: none

struct Message {
  union {
    # A worker, to the broker.
    ready @0 :Inventory;            # the driver is initialised
    failed @1 :Text;                # the worker cannot start, with the reason; the process ends
    begun @2 :Text;                 # the session's handshake is done; who the client is
    ended @3 :Ended;                # the session is over; the process ends
    note @4 :Text;                  # a warning for the log
    share @5 :Share;                # a request: store the descriptor for the tenant's other sessions
    claim @6 :Share;                # a request: the descriptor of this token
    withdraw @7 :Data;              # the token of an object that is not shared any more
    memoryWanted @8 :MemoryWanted;  # a request: raise the tenant's allowance
    detached @9 :Detached;          # the session has lost its connection
    attached @10 :Void;             # it has another one
    resumeRefused @11 :Text;        # a connection was not that of the session's client, with the reason

    # The broker, to a worker.
    serve @12 :Serve;               # a session, with its client's connection after the preface
    stop @13 :Stop;                 # end the session now
    warn @14 :Text;                 # a line for the standard error of the client's program
    answer @15 :Answer;             # to a request
    attach @16 :Attach;             # a connection that resumes the session
    adopted @17 :Void;              # a new broker: the last messages may be lost, and are sent again
    unattended @18 :Void;           # from the keeper, in the broker's place: there is no broker now

    # The broker, to the login process.
    identity @19 :Identity;         # the identity that authenticates clients from now on
    arrival @20 :Arrival;           # a connection after its preface
    queued @21 :Queued;             # any number of times
    admitted @22 :UInt64;           # admits the client of this connection; the connection returns as `passed`
    refused @23 :ConnectionText;    # why

    # The login process, to the broker.
    identityRead @24 :Text;         # empty: the identity is in use; else the reason why the previous one stays
    login @25 :Login;               # the tenant is known: a request, answered by queued, admitted and refused
    gone @26 :ConnectionText;       # a connection with a request has ended, with the reason
    passed @27 :Passed;             # after `admitted`: the bare connection
    turnedAway @28 :TurnedAway;     # a connection that ended without a request

    # The broker, to its keeper.
    hello @29 :Hello;               # first of all
    grace @30 :UInt32;              # the time, in ms, for which sessions stay without a broker
    put @31 :Entry;                 # replaces the entry of this name
    rewrite @32 :Entry;             # replaces the text of the entry of this name, if there is one
    remove @33 :Text;               # the entry of this name
    give @34 :Void;                 # a request for copies of all entries

    # The keeper, to the broker.
    entry @35 :Entry;               # one of them
    given @36 :UInt32;              # the number of entries; these were all

    # The broker, to the login process.
    told @37 :Told;                 # the answer to a login with a query, in parts

    # The broker, to the suspender.
    move @38 :Move;                 # one worker process's device memory; answered by `moved`, one after the other

    # The suspender, to the broker.
    suspenderReady @39 :Text;       # first of all; not empty: why it can move nothing
    moved @40 :Moved;

    # A worker, to the broker.
    quiet @41 :Text;                # the answer to quiesce; not empty: why the worker does not rest
    returnWanted @42 :Void;         # the client of a resting worker has sent a call

    # The broker, to a worker.
    quiesce @43 :Void;              # rest: call the driver no more, until goOn; answered by `quiet`
    goOn @44 :Void;                 # the device memory is there, and the worker may call the driver again
    moveBlocks @45 :Bool;           # to a resting worker: its evictable blocks; false: to the host; true: back to the
                                    # device. Answered by `blocksMoved`

    # A worker, to the broker.
    blocksMoved @46 :BlocksMoved;
  }
}

struct Inventory {
  summary @0 :Text;                 # "1 x NVIDIA H200, NVIDIA 580.159.04, CUDA 13.0"
  devices @1 :List(Device);         # as the worker's driver counts them

  struct Device {
    name @0 :Text;
    uuid @1 :Text;                  # "GPU-..."
    bytes @2 :UInt64;               # of memory in all
    takenBytes @3 :UInt64;          # free after the worker has just made its context there; 0: no context
  }
}

struct Stop {
  why @0 :Text;
  kind @1 :UInt8;                   # StopKind
}

struct Ended {
  cause @0 :UInt8;                  # EndCause
  why @1 :Text;
}

struct Share {
  request @0 :UInt64;
  token @1 :Data;                   # 16 bytes
  kind @2 :UInt32;                  # ShareKind
  user @3 :Text;                    # among the tenant's users: whom its workers take for one
  descriptor @4 :Place;
}

struct MemoryWanted {
  request @0 :UInt64;
  column @1 :UInt32;                # of the tenant's page
  bytes @2 :UInt64;                 # beyond the allowance
  ahead @3 :Bool;                   # only from free memory: no prewarmed worker ends, and nobody is waited for
}

struct Detached {
  graceMs @0 :UInt32;               # the time for which it stays without a connection
  why @1 :Text;
}

struct Serve {
  wireId @0 :Data;                  # 16 bytes
  spec @1 :SessionSpec;
  client @2 :Place;
  sessionPage @3 :Place;
  doorbell @4 :Place;
  tenantPage @5 :Place;
  chunkMemory @6 :Place;            # the tenant's chunk stores
  chunkDisk @7 :Place;
  userPage @8 :Place;
}

struct SessionSpec {
  number @0 :UInt64;                # scheduler::SessionId
  peer @1 :Text;                    # for logs
  tenant @2 :Text;                  # name
  devices @3 :List(Device);         # as the worker's driver counts them
  tlsKey @4 :Data;                  # 32 bytes: the pre-shared key of the connection's second handshake; empty: plain
  hostMemoryBytes @5 :UInt64;       # of the server's own memory, that the tenant may hold; 0: no bound
  ledgerSlot @6 :UInt32;            # the session's slot in the tenant's page
  identified @7 :Bool;              # the client has authenticated as the tenant
  resumeGraceMs @8 :UInt32;         # the time for which it stays without a connection; 0: none
  hangUpGraceMs @9 :UInt32;         # the same time after the connection was closed and not lost
  lanesMax @10 :UInt32;             # further connections for bulk; below 2: none
  chunksCharged @11 :Bool;          # the chunk store is charged already; else the session that fills it is charged
  ledgerUser @12 :UInt64;           # the session's user in the tenant's page of users; 0: no particular user
  userLimitBytes @13 :UInt64;       # of each device, for this user's sessions together; 0: no bound but the tenant's
  evicts @14 :Bool;                 # large allocations are made evictable, for suspensions

  struct Device {
    index @0 :UInt32;               # of the server: which column of the tenant's page
    limitBytes @1 :UInt64;          # the device's memory as the session sees it; 0: all of it
  }
}

struct Answer {
  request @0 :UInt64;
  yes @1 :Bool;
  descriptor @2 :Place;             # of a claim
}

struct Attach {
  socket @0 :Place;
  tlsKey @1 :Data;                  # as in SessionSpec
}

struct Identity {
  authority @0 :Place;              # all four, or none: then there is no TLS and no token
  serverCertificate @1 :Place;
  serverKey @2 :Place;
  credentials @3 :Place;
}

struct Arrival {
  connection @0 :UInt64;
  socket @1 :Place;
  peer @2 :Text;                    # for logs
  address @3 :Text;                 # the key by which connections are counted
  tls @4 :Bool;                     # the client asked for it
  unixTenant @5 :Text;              # the tenant of the caller's user, on a Unix socket
  openTenant @6 :Text;              # the tenant of a caller without a credential
  management @7 :Bool;              # returned with the request
  rdma @8 :Bool;                    # offered, if allowed
  unixUser @9 :Text;                # with unixTenant: the caller's user name on the machine
}

struct Queued {
  connection @0 :UInt64;
  place @1 :UInt32;
  waiting @2 :UInt32;
  why @3 :Text;
  ticket @4 :Data;                  # 16 bytes, with which the client gets its place back; or none
}

struct ConnectionText {
  connection @0 :UInt64;
  text @1 :Text;
}

struct Login {
  connection @0 :UInt64;
  tenant @1 :Text;
  security @2 :Text;
  credential @3 :Text;              # a serial or a token's id
  gpus @4 :UInt32;
  memoryBytes @5 :UInt64;
  program @6 :Text;
  host @7 :Text;
  processId @8 :UInt32;
  peer @9 :Text;
  management @10 :Bool;
  resume @11 :Data;                 # 16 bytes, the wire identity of the session to resume; or none
  ticket @12 :Data;                 # 16 bytes, of an earlier place in the queue; or none
  query @13 :Text;                  # not empty: answered by told and refused
  gpuType @14 :Text;                # a part of the names of its GPUs; or nothing
  user @15 :Text;                   # the tenant's user; or none
}

struct Told {
  connection @0 :UInt64;
  text @1 :Text;
  last @2 :Bool;
}

struct Passed {
  connection @0 :UInt64;
  socket @1 :Place;
  tlsKey @2 :Data;                  # the session key, 32 bytes; empty: plain
}

struct TurnedAway {
  peer @0 :Text;
  kind @1 :Text;                    # RefusalKind, as a word
  reason @2 :Text;
  tenant @3 :Text;                  # as far as it was known
  credential @4 :Text;
  untold @5 :UInt32;                # further ones that were not reported
}

struct Move {
  order @0 :UInt64;
  processId @1 :UInt32;
  resume @2 :Bool;                  # false: to the host; true: back to the device
  process @3 :Place;                # a pidfd of the process: shows that the number still is its
}

struct Moved {
  order @0 :UInt64;
  result @1 :UInt8;                 # MoveResult
  why @2 :Text;                     # with every result but `done`
}

struct BlocksMoved {
  back @0 :Bool;                    # as in moveBlocks
  result @1 :UInt8;                 # MoveResult
  why @2 :Text;                     # with every result but `done`
}

struct Hello {
  version @0 :UInt32;               # kKeeperVersion
  key @1 :Data;                     # 32 bytes that authenticate the broker; the first hello defines them
}

struct Entry {
  session @0 :Bool;
  name @1 :Text;
  text @2 :Data;                    # that only brokers understand
  descriptors @3 :List(Place);
  awaited @4 :Bool;                 # a keeper waits for the next broker because of this entry
}
