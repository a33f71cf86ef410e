@0xd1a7c1f0a5e2b302;
# Calls and notices of the session itself: what is not a plain forward of a driver function. Handles are wire/handle.hpp's numbers, device
# pointers are the server's addresses, results are CUresult values. Frame ordinals: wire/ordinals.hpp.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("gpuwire::schema");

struct Result {
  # The reply to a called message that has nothing else to say. Every reply structure, generated ones too, has `result` and `deferred`
  # as its first two fields.
  result @0 :Int32;
  deferred @1 :Int32;           # the first failure of a posted call since the last reply, if any: 0 or a CUresult
}

struct Source { bytes @0 :UInt64; }

# --- launches ---------------------------------------------------------------------------------------------------------------------------

struct Launch {
  function @0 :UInt64;          # a function or a kernel handle
  stream @1 :UInt64;
  gridX @2 :UInt32; gridY @3 :UInt32; gridZ @4 :UInt32;
  blockX @5 :UInt32; blockY @6 :UInt32; blockZ @7 :UInt32;
  sharedBytes @8 :UInt32;
  cooperative @9 :Bool;
  parameters @10 :Data;         # packed by the offsets of FunctionFacts
  attributes @11 :Data;         # an array of CUlaunchAttribute as cuda.h lays it out; handles inside are wire handles
}

# --- copies: linear ------------------------------------------------------------------------------------------------------------------------

struct CopyToDevice {
  destination @0 :UInt64;
  stream @1 :UInt64;
  blocking @2 :Bool;            # called form: reply when the data are on the device (false: when they are taken over from the wire)
  # bytes: the frame's bulk_bytes
}

struct CopyFromDevice {
  source @0 :UInt64;
  bytes @1 :UInt64;             # <= kBulkBytesMax
  stream @2 :UInt64;
}

# --- copies: pitched. The host side travels packed, row after row -------------------------------------------------------------------------

struct Copy2D {
  # Both directions; the other side is the bulk: height * depth rows of widthBytes.
  device @0 :UInt64;            # a device pointer, or 0 when `array` is set
  array @1 :UInt64;
  pitchBytes @2 :UInt64;
  heightRows @3 :UInt64;        # rows between two slices of the device memory
  xBytes @4 :UInt64; y @5 :UInt64; z @6 :UInt64;
  widthBytes @7 :UInt64; height @8 :UInt64; depth @9 :UInt64;
  lod @10 :UInt32;
  stream @11 :UInt64;
  blocking @12 :Bool;
}

# --- modules and libraries -----------------------------------------------------------------------------------------------------------------

struct ModuleOffer {
  digest @0 :Data;              # SHA-256 of the image
  bytes @1 :UInt64;
}
struct ModuleOfferReply {
  result @0 :Int32;
  deferred @1 :Int32;
  have @2 :Bool;                # the server has it: no ModuleData is needed
}
struct ModuleData {
  digest @0 :Data;
  offset @1 :UInt64;            # pieces arrive in order, starting at 0
  last @2 :Bool;
}
struct ModuleLoad {
  handle @0 :UInt64;            # chosen by the client: a module or a library handle; says which of the two is loaded
  digest @1 :Data;
  jitOptions @2 :List(JitOption);
  libraryOptions @3 :List(JitOption);
  errorLogBytes @4 :UInt32;     # how much the program's buffers hold
  infoLogBytes @5 :UInt32;
}
struct JitOption { option @0 :Int32; value @1 :UInt64; }
struct ModuleLoadReply {
  result @0 :Int32;
  deferred @1 :Int32;
  errorLog @2 :Text;
  infoLog @3 :Text;
  wallTimeMs @4 :Float32;
  missing @5 :Bool;             # the server does not have the image: it is to be offered and sent first
}
struct ModuleUnload { handle @0 :UInt64; }
struct ModuleFunction {
  module @0 :UInt64;            # a module or a library handle
  name @1 :Text;
  handle @2 :UInt64;            # chosen by the client: a function (of a module) or a kernel (of a library)
}
struct FunctionFacts {
  result @0 :Int32;
  deferred @1 :Int32;
  parameterOffsets @2 :List(UInt32);
  parameterSizes @3 :List(UInt32);
  attributes @4 :List(Int32);   # by CUfunction_attribute, on the caller's device
  attributeErrors @5 :List(Int32);
}
struct ModuleGlobal {
  module @0 :UInt64;
  name @1 :Text;
  managed @2 :Bool;             # cuLibraryGetManaged
}
struct ModuleGlobalReply {
  result @0 :Int32;
  deferred @1 :Int32;
  address @2 :UInt64;
  bytes @3 :UInt64;
  rangeAddress @4 :UInt64;      # managed memory: the driver's allocation that holds it; else 0
  rangeBytes @5 :UInt64;
}
struct ModuleFunctions {
  result @0 :Int32;
  deferred @1 :Int32;
  names @2 :List(Text);
}

# --- completion and callbacks -----------------------------------------------------------------------------------------------------------------

struct WatchEvent { event @0 :UInt64; record @1 :UInt64; }   # record: the sequence of the frame that recorded the event
struct WatchStream { stream @0 :UInt64; }                     # answered with this frame's sequence
struct HostFunction {
  stream @0 :UInt64;
  callback @1 :UInt64;          # a number the client chose
  kind @2 :UInt8;               # 0: cuLaunchHostFunc; 1: cuStreamAddCallback (runs after an error too, gets the stream's status)
}
struct HostFunctionDone { callback @0 :UInt64; }

struct RetainPrimary { context @0 :UInt64; device @1 :Int32; flags @2 :UInt32; }
struct GreenContext {
  context @0 :UInt64;           # chosen by the client: it stands for the green context and for the context made of it
  primary @1 :UInt64;           # the primary context that it is a part of
  descriptor @2 :UInt64;
  flags @3 :UInt32;
}

# --- host regions: pinned memory of the client, held by the server at the same addresses ----------------------------------------------------

struct RegionCreate { address @0 :UInt64; bytes @1 :UInt64; }  # zeros at first
struct RegionDestroy { address @0 :UInt64; }
struct RegionChange {           # the bulk: the bytes from the first to the last that changed, at most kRegionPieceBytes
  address @0 :UInt64;           # of the region
  offset @1 :UInt64;            # of the first of them
  changed @2 :Data;             # a bit for each byte of the bulk, lowest first: only those are to be written; empty: all
}

# --- managed memory: held by the server's driver, and by the client page by page at the same addresses ------------------------------------

struct ManagedWrite {           # the bulk: the bytes from the first to the last that changed, at most kRegionPieceBytes
  address @0 :UInt64;           # of the first of them
  changed @1 :Data;             # as in RegionChange
}
struct ManagedRead { address @0 :UInt64; bytes @1 :UInt64; }  # within one allocation; at most kManagedReadBytesMax

# --- management: what NVML asks (protocol/nvml), in a session whose preface asked for it ---------------------------------------------------

struct ManagementQuery {
  function @0 :UInt32;          # the ordinal of the description
  arguments @1 :Data;           # what goes in, in the order of the parameters: numbers little-endian, devices by index, structures as they are
}
struct ManagementReply {
  result @0 :Int32;
  deferred @1 :Int32;
  status @2 :Int32;             # nvmlReturn_t
  values @3 :Data;              # what comes out, after success: a count first, then in the order of the parameters
}

# --- graph memory: blocks of the server that stand for memory of the client in the copies of graphs. RegionCreate, RegionDestroy and
# --- RegionChange are about them too; `address` is then the number that the client has given the block

struct GraphMemoryCreateReply {
  result @0 :Int32;
  deferred @1 :Int32;
  place @2 :UInt64;             # the server's address, for the nodes' parameters
}
struct GraphLaunch {
  exec @0 :UInt64;
  stream @1 :UInt64;
  blocks @2 :List(UInt64);      # all that the graph copies from or to
}

# --- graphs ---------------------------------------------------------------------------------------------------------------------------------------

struct GraphNode {
  operation @0 :UInt8;          # 0: add to `graph`, 1: change, 2: change in `exec`, 3: tell the parameters
  kind @1 :Int32;               # a CUgraphNodeType: kernel, host function or conditional
  graph @2 :UInt64;
  exec @3 :UInt64;
  node @4 :UInt64;              # to add: chosen by the client
  dependencies @5 :List(UInt64);
  edges @6 :Data;               # a CUgraphEdgeData for each of them; empty: plain edges
  function @7 :UInt64;          # kernel: a function or a kernel handle
  context @8 :UInt64;           # kernel, conditional: 0 for the current one
  gridX @9 :UInt32; gridY @10 :UInt32; gridZ @11 :UInt32;
  blockX @12 :UInt32; blockY @13 :UInt32; blockZ @14 :UInt32;
  sharedBytes @15 :UInt32;
  parameters @16 :Data;         # packed as in Launch
  callback @17 :UInt64;         # host function: a number the client chose
  condition @18 :UInt64;        # conditional: its handle
  conditionType @19 :Int32;
  bodies @20 :List(UInt64);     # handles chosen for its graphs
}
struct GraphNodeReply {
  result @0 :Int32;
  deferred @1 :Int32;
  function @2 :UInt64;          # all below: told
  gridX @3 :UInt32; gridY @4 :UInt32; gridZ @5 :UInt32;
  blockX @6 :UInt32; blockY @7 :UInt32; blockZ @8 :UInt32;
  sharedBytes @9 :UInt32;
  parameters @10 :Data;
  callback @11 :UInt64;
}
struct GraphForget {            # the graph that these were in is gone
  nodes @0 :List(UInt64);
  graphs @1 :List(UInt64);      # inside it
}
struct GraphText { graph @0 :UInt64; flags @1 :UInt32; offset @2 :UInt64; }
struct GraphTextReply {
  result @0 :Int32;
  deferred @1 :Int32;
  bytes @2 :UInt64;             # of the whole text
  text @3 :Data;                # the part from `offset` on
}
struct CaptureInfo {
  stream @0 :UInt64;
  graph @1 :UInt64;             # offered handles
  nodes @2 :List(UInt64);
}
struct CaptureInfoReply {
  result @0 :Int32;
  deferred @1 :Int32;
  graph @2 :UInt64;
  count @3 :UInt64;             # of dependencies; the lists are empty when it is more than was offered
  nodes @4 :List(UInt64);
  edges @5 :Data;               # a CUgraphEdgeData for each; empty: plain edges
}

# --- memory and pools shared between processes -----------------------------------------------------------------------------------------------

struct ShareExport {
  handle @0 :UInt64;            # memory_allocation or memory_pool
  flags @1 :UInt64;
}
struct ShareExportReply {
  result @0 :Int32;
  deferred @1 :Int32;
  token @2 :Data;               # 16 random bytes: whoever of the tenant shows them may import. Valid while the exporting session lives
}
struct ShareImport {
  handle @0 :UInt64;            # chosen by the client; says whether memory or a pool is meant
  token @1 :Data;
  flags @2 :UInt64;
}
struct ShareWithdraw { token @0 :Data; }
struct ImportPoolPointer {
  pool @0 :UInt64;
  data @1 :Data;                # a CUmemPoolPtrExportData
}

# --- the driver's linker -----------------------------------------------------------------------------------------------------------------------

struct LinkCreate {
  state @0 :UInt64;             # chosen by the client
  jitOptions @1 :List(JitOption);
  errorLogBytes @2 :UInt32;     # how much the program's buffers hold
  infoLogBytes @3 :UInt32;
}
struct LinkAdd {
  state @0 :UInt64;
  type @1 :Int32;               # CUjitInputType
  digest @2 :Data;              # of the input, which travels as images of modules do
  name @3 :Text;
  jitOptions @4 :List(JitOption);
}
struct LinkState { state @0 :UInt64; }                        # for link_complete and link_destroy
struct LinkReply {              # to all of them
  result @0 :Int32;
  deferred @1 :Int32;
  missing @2 :Bool;             # of LinkAdd: the input has to be sent first, nothing was done
  errorLog @3 :Text;            # all that is in the linker's logs by now
  infoLog @4 :Text;
  wallTimeMs @5 :Float32;
  imageBytes @6 :UInt64;        # of link_complete
}
struct LinkImage {              # the reply's bulk: that much of what link_complete has made
  state @0 :UInt64;
  offset @1 :UInt64;
  bytes @2 :UInt64;
}

# --- notices -------------------------------------------------------------------------------------------------------------------------------------

struct Completion {
  event @0 :UInt64;             # set for watch_event
  record @1 :UInt64;
  stream @2 :UInt64;            # set for watch_stream
  sequence @3 :UInt64;          # of the watch frame
  result @4 :Int32;             # CUDA_SUCCESS, or the error that the stream ended with
}
struct DeferredError {
  result @0 :Int32;
  sequence @1 :UInt64;          # of the posted frame that failed
  ordinal @2 :UInt32;
  context @3 :UInt32;
  sticky @4 :Bool;              # the context is unusable from here on
  message @5 :Text;             # for the client's log, may be empty
}
struct HostCallback { callback @0 :UInt64; status @1 :Int32; }
struct CopyData { sequence @0 :UInt64; offset @1 :UInt64; result @2 :Int32; last @3 :Bool; }
struct Output { descriptor @0 :UInt8; }                       # 1 or 2: where the program's text belongs
struct Ending { reason @0 :Text; result @1 :Int32; }          # result: what the client's calls return from now on
