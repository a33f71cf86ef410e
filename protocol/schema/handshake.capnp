@0xd1a7c1f0a5e2b301;
# The first messages of a session, after both prefaces (wire/frame.hpp), in frames of FrameKind::control.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::schema");

struct Hello {
  # Client to server, ordinal 1.
  release @0 :Text;             # the client's version, for logs
  cudaVersion @1 :Int32;        # the driver version whose API the stub provides: 13000
  processId @2 :UInt32;
  program @3 :Text;             # name of the program, for logs; at most 256 bytes are stored
  host @4 :Text;
  visibleDevices @5 :Text;      # the program's CUDA_VISIBLE_DEVICES, which the client applies; here for logs
  acknowledged @6 :UInt64;      # not used
  tenant @7 :Text;
  token @8 :Text;
  endsWithConnection @10 :Bool; # the client does not reconnect when its connection is lost
  heartbeats @11 :Bool;         # the client supports heartbeats, and sends them if the server's Welcome says so
  address @12 :Text;            # the client's end of its connection, as the client's system names it: "192.0.2.7:41234", "[2001:db8::7]:41234"; empty: it has none, or does not know it
  machine @13 :Text;            # identifies this boot of the client's machine, if the client reaches the server over the machine's loopback; else empty
  lanes @14 :UInt8;             # the maximum of additional connections for bulk that the client opens; below 2: none
  cacheKey @9 :Data;            # 32 random bytes that this user stores; without authentication, the server's module cache finds an image only for sessions with the same key; empty: none
}

struct Welcome {
  # Server to client, ordinal 2.
  release @0 :Text;
  driverVersion @1 :Int32;      # of the server's driver
  driverName @2 :Text;          # "NVIDIA 580.159.04" or "software device"
  sessionId @3 :Data;           # 16 bytes
  ordinals @4 :Data;            # bit i set: the server knows call ordinal i. For the others, the client returns CUDA_ERROR_NOT_SUPPORTED
  devices @5 :List(Device);
  acknowledged @6 :UInt64;      # not used
  software @7 :Bool;
  resumeSecret @8 :Data;        # 32 random bytes with which the client proves that the session is its own; empty: the session ends with its connection
  resumeGraceMs @9 :UInt32;     # how long the session lives without a connection
  heartbeats @10 :Bool;         # from here on each side sends something at least every 6 s, the control frame `heartbeat` if there is nothing else, and may
                                # give up a connection over which nothing has arrived for 9 s. Never set without Hello.heartbeats, nor without resumeSecret
  lanes @11 :UInt8;             # the maximum of additional connections for bulk that the client may open; not 0: from here on long bulk travels in parts, in
                                # both directions (wire/lanes.hpp). Never more than Hello.lanes; 0 without resumeSecret
  chunks @12 :UInt8;            # the server stores chunks of copies to the device: 0: no; 1: by their BLAKE3; 2: by their BLAKE3 keyed with Hello.cacheKey
  sameMachine @13 :Bool;        # nothing but this machine's own system is between the client and the server
  ordersUploads @14 :Bool;      # the server makes a stream that does not wait for the NULL stream wait for copies that the program assumes complete, before the
                                # stream receives work
  hangUpGraceMs @15 :UInt32;    # how long the session lives without a connection that was closed or reset, by the client's end or by a third party; 0: not
                                # specified
}

struct ResumeChallenge {
  # Ordinal 7, the first two frames of a connection that is to resume a session: the client asks, the server answers.
  nonce @0 :Data;               # the client's: empty; the server's: 32 random bytes
}

struct Resume {
  # Client to server, ordinal 8.
  attempt @0 :UInt64;           # greater than that of any earlier attempt
  proof @1 :Data;               # HMAC-SHA256; docs/wire_protocol.md specifies its input
  received @2 :UInt64;          # position: how much of the server's stream the client has received
  address @3 :Text;             # as in Hello, for this connection
  machine @4 :Text;             # as in Hello
  # For a connection that is to be one of the session's lanes, and resumes nothing:
  lanes @5 :UInt8;              # the number of lanes in the set; 0: the connection is not a lane
  lane @6 :UInt8;               # the index of this lane, from 0
  laneSet @7 :UInt32;           # greater than that of any earlier set; `attempt` is then that of the connection to which the lanes belong, 0 for the session's first
}

struct Resumed {
  # Server to client, ordinal 9. The server's bytes from the client's position on follow this frame.
  received @0 :UInt64;          # position: how much of the client's stream the server has received
  refused @1 :Text;             # not empty: the reason why the session does not continue over this connection, which the server closes
}

struct Rdma {
  # Ordinal 12, three frames before the first frame of either stream, over the connection that authenticates the peer. The client sends its fabric address; the
  # server sends its own, or declines; both try, and the client sends the result.
  union {
    end @0 :End;
    declined @1 :Text;          # from the server, or from the client in the third frame: the streams continue over this connection, for this reason
    use @2 :Void;               # from the client in the third frame: the streams continue over RDMA
  }
  struct End {
    version @0 :UInt32;         # transport/rdma_message.hpp
    address @1 :Data;           # on the fabric, at most 8192 bytes
    token @2 :Data;             # 16 random bytes, which each message to this end must contain
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
  limits @7 :List(UInt64);      # by CUlimit, of a new primary context; ~0: the query failed
  streamPriorityLeast @8 :Int32;
  streamPriorityGreatest @9 :Int32;
  execAffinitySupport @10 :Int32;
  peers @11 :List(Bool);        # cuDeviceCanAccessPeer by device
  flags @12 :UInt64;
}

struct Goodbye {
  # Client to server, ordinal 3: the program ends in an orderly way, and the server keeps nothing of the session.
}
