// Ordinals of the messages that belong to the session itself. Never reused. Driver functions start at 1000 (protocol/api/).
#pragma once

#include <cstdint>

namespace gpuwire::wire {

inline constexpr uint32_t kFirstDriverOrdinal = 1000;
inline constexpr uint32_t kOrdinalMax = 4096;

// FrameKind::control; structures in schema/handshake.capnp.
enum class ControlOrdinal : uint32_t {
  hello = 1,
  welcome = 2,
  goodbye = 3,
  login = 4,
  login_answer = 5,
  acknowledge_now = 6,   // client: acknowledge what you have executed, however little; no message
  // Over a new connection of a session that has lost its own; not part of the session's streams.
  resume_challenge = 7,  // server: ResumeChallenge
  resume = 8,            // client: Resume
  resumed = 9,           // server: Resumed; behind it the streams go on
  heartbeat = 10,        // either way, in a session that is otherwise idle; no message
  // Before the first frame of either stream, on a Unix socket whose server offers it (kPrefaceSharedMemory): the client
  // asks, the server answers; no message. `sequence`: the version of the memory's layout; in an answer 0: there is none,
  // and the socket carries the session. Else the memory's descriptor comes with it.
  shared_memory = 11,
};

// FrameKind::posted or called; structures in schema/session.capnp, named alike in PascalCase.
enum class SessionOrdinal : uint32_t {
  ping = 1,              // called: empty
  sink = 2,              // called: bulk is thrown away (bandwidth to the server)
  source = 3,            // called: Source; the reply's bulk is that many bytes (bandwidth from the server)
  launch = 10,           // posted, or called with CUDA_LAUNCH_BLOCKING
  copy_to_device = 11,   // posted or called: CopyToDevice + bulk
  copy_from_device = 12, // called: the reply's bulk; posted: data come back as a CopyData notice with this frame's sequence
  copy_2d_to_device = 13,
  copy_2d_from_device = 14,
  module_offer = 20,     // called: ModuleOffer -> ModuleOfferReply
  module_data = 21,      // posted, in order: ModuleData + bulk (a piece of the image)
  module_load = 22,      // called: ModuleLoad -> ModuleLoadReply
  module_unload = 23,    // posted
  module_function = 24,  // called: ModuleFunction -> FunctionFacts
  module_global = 25,    // called: ModuleGlobal -> ModuleGlobalReply
  module_functions = 26, // called: ModuleUnload (the handle) -> ModuleFunctions
  watch_event = 30,      // posted: push a Completion notice when this record of the event is done
  watch_stream = 31,     // posted: push one when everything sent to this stream so far is done
  host_function = 32,    // posted: HostFunction; the server sends a HostCallback notice when the stream gets there
  host_function_done = 33,  // posted: the callback has returned
  retain_primary = 40,   // posted: RetainPrimary, binds a context handle to a device's primary context
  release_primary = 41,  // posted
  reset_primary = 42,    // called
  green_create = 43,     // called: GreenContext, a context with some of a device's multiprocessors
  green_destroy = 44,    // called: GreenContext
  region_create = 50,    // called: RegionCreate
  region_destroy = 51,   // posted: RegionDestroy
  region_write = 52,     // posted: RegionChange + bulk (what the client's threads wrote)
  region_share = 55,     // called: RegionShare (schema/shared_memory.capnp), pages that both sides have
  managed_write = 53,    // posted: ManagedWrite + bulk (what the client's threads wrote to managed memory)
  managed_read = 54,     // called: ManagedRead -> the reply's bulk; waits for no work of the device
  graph_memory_create = 60,   // called: RegionCreate -> GraphMemoryCreateReply
  graph_memory_destroy = 61,  // posted: RegionDestroy
  graph_memory_write = 62,    // posted: RegionChange + bulk
  graph_launch = 63,          // posted: GraphLaunch, for a graph that copies from or to the client's memory
  graph_node = 64,            // called: GraphNode -> GraphNodeReply, for kernel, host and conditional nodes
  graph_forget = 65,          // posted: GraphForget
  graph_text = 66,            // called: GraphText -> GraphTextReply
  capture_info = 67,          // called: CaptureInfo -> CaptureInfoReply
  share_export = 70,     // called: ShareExport -> ShareExportReply
  share_import = 71,     // called: ShareImport
  share_withdraw = 72,   // posted: ShareWithdraw
  import_pool_pointer = 73,  // called: ImportPoolPointer -> ModuleGlobalReply (address and bytes)
  link_create = 75,      // called: LinkCreate -> LinkReply
  link_add = 76,         // called: LinkAdd -> LinkReply
  link_complete = 77,    // called: LinkState -> LinkReply
  link_image = 78,       // called: LinkImage; the reply's bulk
  link_destroy = 79,     // called: LinkState
  management_query = 90, // called: ManagementQuery -> ManagementReply; the only one of these, beside ping, in a management session
};

// FrameKind::notice; structures in schema/session.capnp.
enum class NoticeOrdinal : uint32_t {
  completion = 1,
  deferred_error = 2,
  host_callback = 3,
  copy_data = 4,   // + bulk
  output = 5,      // + bulk: text of device printf or assert
  ending = 6,      // the server ends the session; says why
  region_data = 7, // RegionChange + bulk: what the device wrote to a region
  graph_memory_data = 20,  // RegionChange + bulk: what a graph wrote to a block of graph memory
};

}  // namespace gpuwire::wire
