@0xd1a7c1f0a5e2b301;
# The first messages of a session, after both prefaces (wire/frame.hpp). FrameKind::control.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::schema");

struct Hello {
  # Client to server, ordinal 1.
  release @0 :Text;             # the client's version, for logs
  cudaVersion @1 :Int32;        # the driver version whose API the stub offers: 13000
  processId @2 :UInt32;
  program @3 :Text;             # name of the program, for logs; at most 256 bytes are kept
  host @4 :Text;
  visibleDevices @5 :Text;      # CUDA_VISIBLE_DEVICES of the program, applied by the client; here for logs
  acknowledged @6 :UInt64;      # not used
  tenant @7 :Text;
  token @8 :Text;
  endsWithConnection @10 :Bool; # the client does not come back when its connection is lost
  heartbeats @11 :Bool;         # the client knows heartbeats, and will send them if the server's Welcome says so
  address @12 :Text;            # the client's end of its connection, as its system names it: "192.0.2.7:41234", "[2001:db8::7]:41234"; empty: none, or not known
  machine @13 :Text;            # of a client that reaches the server over its own machine's loopback: what tells this run of the machine from every other; else empty
  lanes @14 :UInt8;             # how many further connections for bulk the client opens at most; below 2: none
  cacheKey @9 :Data;            # 32 random bytes that this user keeps: whose images the server's module cache shows; or none
}

struct Welcome {
  # Server to client, ordinal 2.
  release @0 :Text;
  driverVersion @1 :Int32;      # of the server's driver
  driverName @2 :Text;          # "NVIDIA 580.159.04" or "software device"
  sessionId @3 :Data;           # 16 bytes
  ordinals @4 :Data;            # bit i set: the server knows call ordinal i. What is not set is answered with CUDA_ERROR_NOT_SUPPORTED by the client
  devices @5 :List(Device);
  acknowledged @6 :UInt64;      # not used
  software @7 :Bool;
  resumeSecret @8 :Data;        # 32 random bytes, by which the client proves that the session is its own; empty: it ends with its connection
  resumeGraceMs @9 :UInt32;     # how long the session stays without a connection
  heartbeats @10 :Bool;         # each side sends something at least every 6 s from here on, the control frame `heartbeat` if there is nothing else, and may
                                # give a connection up over which nothing has come for 9 s. Never without Hello.heartbeats, nor without resumeSecret
  lanes @11 :UInt8;             # how many further connections for bulk the client may open; not 0: from here on long bulk comes in parts, both ways
                                # (wire/lanes.hpp). Never more than Hello.lanes, never without resumeSecret
  chunks @12 :UInt8;            # the server keeps chunks of copies to the device: 0: no; 1: by their BLAKE3; 2: by their BLAKE3 under Hello.cacheKey
  sameMachine @13 :Bool;        # nothing but this machine's own system is between the client and the server
  ordersUploads @14 :Bool;      # a stream that does not wait for the NULL stream waits for copies that the program takes for done, before it is given work
  hangUpGraceMs @15 :UInt32;    # how long it stays without a connection that was closed or reset, by the client's end or by something between; 0: nothing
                                # is said of it
}

struct ResumeChallenge {
  # Ordinal 7, the first two frames of a connection that is to carry a session on: the client asks, the server answers.
  nonce @0 :Data;               # the client's: none; the server's: 32 random bytes
}

struct Resume {
  # Client to server, ordinal 8.
  attempt @0 :UInt64;           # greater than of any attempt before
  proof @1 :Data;               # HMAC-SHA256, docs/wire_protocol.md says of what
  received @2 :UInt64;          # position: how much of the server's stream has come
  address @3 :Text;             # as in Hello, of this connection
  machine @4 :Text;             # as in Hello
  # Of a connection that is one of the session's lanes, and carries nothing on:
  lanes @5 :UInt8;              # how many there are to be; 0: it is none
  lane @6 :UInt8;               # which of them, from 0
  laneSet @7 :UInt32;           # greater than of any lanes before; `attempt` is then that of the connection which they are for, 0 for the session's first
}

struct Resumed {
  # Server to client, ordinal 9. Behind it come the server's bytes from the client's position on.
  received @0 :UInt64;          # position: how much of the client's stream has come
  refused @1 :Text;             # not empty: why the session does not go on over this connection, which closes
}

struct Rdma {
  # Ordinal 12, before the first frame of either stream, over the connection that is known to be the peer's: three frames. The client says by what it can be reached,
  # the server the same of itself, or why not; both try, and the client says how that went.
  union {
    end @0 :End;
    declined @1 :Text;          # the server, or the client in the third: the streams go on over this connection, and why
    use @2 :Void;               # the client, in the third: they go on by RDMA
  }
  struct End {
    version @0 :UInt32;         # transport/rdma_message.hpp
    address @1 :Data;           # of the fabric's, at most 8192 bytes
    token @2 :Data;             # 16 random bytes, which each message to this end has to show
  }
}

struct Device {
  name @0 :Text;
  uuid @1 :Data;                # 16 bytes
  totalBytes @2 :UInt64;
  attributes @3 :List(Int32);   # by CUdevice_attribute; index 0 unused
  attributeErrors @4 :List(Int32);  # the CUresult of each query
  pciBusId @5 :Text;
  luid @6 :Data;
  limits @7 :List(UInt64);      # by CUlimit, of a fresh primary context; ~0: the query failed
  streamPriorityLeast @8 :Int32;
  streamPriorityGreatest @9 :Int32;
  execAffinitySupport @10 :Int32;
  peers @11 :List(Bool);        # cuDeviceCanAccessPeer by device
  flags @12 :UInt64;
}

struct Goodbye {
  # Client to server, ordinal 3: the program ends in an orderly way; nothing of the session is kept.
}
