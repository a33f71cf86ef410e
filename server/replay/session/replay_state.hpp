// The state of one session's hand-written calls from frame to frame. Created by the worker beside its Replay.
#pragma once

#include <cuda.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "protocol/wire/frame.hpp"
#include "server/replay/completion/completion_words.hpp"
#include "server/replay/completion/query_spin.hpp"
#include "server/replay/replay.hpp"
#include "server/replay/session/postponed_frees.hpp"

namespace gpuwire::server {

class ChunkStore;
class ContextTable;
class CopyBack;
class DeviceResources;
class GraphMemory;
class HostCallbacks;
class HostRegions;
class LinkTable;
class LinkThread;
class ModuleCache;
class ModuleStore;
class ModuleWork;
class ShareExchange;
class TriedAttributes;
class UploadOrder;
class WatchedEvents;

struct SessionSettings {
  // Outlives the session. With null, images are stored for this session only.
  ModuleCache* module_cache = nullptr;
  // The tenant, whose sessions share images, memory and pools.
  std::string tenant;
  // Outlives the session. With null, nothing is shared.
  ShareExchange* shares = nullptr;
  // Wraps the driver's functions and outlives the session; may be null.
  UploadOrder* upload_order = nullptr;
  // Outlives the session. With null, no chunk is stored.
  ChunkStore* chunks = nullptr;
  // Called with whether the client may cache freed memory from now on; may be empty.
  std::function<void(bool)> keeping_memory;
  using Allocation = std::function<CUresult()>;
  // Runs an allocation within the tenant's existing grant. Empty if there is no grant.
  std::function<CUresult(const Allocation&)> within_grant;
  // Runs an allocation for which the tenant's grant may grow by memory that is free at once.
  std::function<CUresult(const Allocation&)> beyond_grant;
  // Writes the words by which the GPU reports completed work. With null, only events report it.
  WriteWord write_word = nullptr;
};

// Executor thread only, except copy_back(), callbacks(), graph_memory(), host_regions(), watched_events() and
// query_spin(), whose own comments say which calls any thread may make.
class ReplayState {
 public:
  ReplayState(Replay& replay, SessionSettings settings);
  ~ReplayState();
  ReplayState(const ReplayState&) = delete;
  ReplayState& operator=(const ReplayState&) = delete;

  // Called before each frame. Makes the frame's context current on the executor thread (creating a primary context when
  // it is first used) and stores the result of Replay::context(); null if the frame names none. If the result is not
  // CUDA_SUCCESS, the frame must not be executed and is answered with this error (a called frame with a schema::Result,
  // a posted one by Replay::fail_posted), and its bulk is discarded. `entry` is the frame's; an entry with
  // `any_context` leaves the thread as it is.
  CUresult enter(const wire::FrameHeader& header, const ReplayEntry& entry, CUcontext& native);

  // Ends all objects of the session, newest first: callbacks waiting for the client, copies, handles, contexts.
  // Afterwards the driver has none of them. Returns false if the device still had work after kTeardownMs; then only the
  // end of the process frees the objects.
  bool end();

  ContextTable& contexts() { return *contexts_; }
  ModuleStore& modules() { return *modules_; }
  ModuleWork& module_work() { return *module_work_; }
  TriedAttributes& tried_attributes() { return *tried_attributes_; }
  LinkTable& links() { return *links_; }
  LinkThread& link_thread() { return *link_thread_; }
  DeviceResources& device_resources() { return *device_resources_; }
  CopyBack& copy_back() { return *copy_back_; }
  HostCallbacks& callbacks() { return *callbacks_; }
  GraphMemory& graph_memory() { return *graph_memory_; }
  HostRegions& host_regions() { return *host_regions_; }
  // Handles of graphs inside other graphs or of running captures, which the program must not destroy.
  std::unordered_set<uint64_t>& inner_graphs() { return inner_graphs_; }
  WatchedEvents& watched_events() { return *watched_events_; }
  QuerySpin& query_spin() { return query_spin_; }
  ShareExchange* shares() { return shares_; }
  const std::string& tenant() const { return tenant_; }
  ChunkStore* chunks() { return chunks_; }
  // May be null.
  UploadOrder* upload_order() { return upload_order_; }
  std::deque<PostponedFree>& postponed_frees() { return postponed_frees_; }
  CUresult within_grant(const SessionSettings::Allocation& allocate) {
    return within_grant_ ? within_grant_(allocate) : CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult beyond_grant(const SessionSettings::Allocation& allocate) {
    return beyond_grant_ ? beyond_grant_(allocate) : CUDA_ERROR_OUT_OF_MEMORY;
  }
  void note_keeping_memory(bool keeps) {
    client_keeps_memory_ = keeps;
    if (keeping_memory_) keeping_memory_(keeps);
  }
  // Returns whether the client caches freed memory: then it sends frees by itself, some seconds after its program's
  // last call.
  bool client_keeps_memory() const { return client_keeps_memory_; }

 private:
  bool device_at_rest();
  void release_handles();

  Replay& replay_;
  ShareExchange* const shares_;
  ChunkStore* const chunks_;
  UploadOrder* const upload_order_;
  const std::string tenant_;
  const std::function<void(bool)> keeping_memory_;
  bool client_keeps_memory_ = false;
  const std::function<CUresult(const SessionSettings::Allocation&)> within_grant_, beyond_grant_;
  std::unique_ptr<ContextTable> contexts_;
  std::unique_ptr<ModuleStore> modules_;
  std::unique_ptr<ModuleWork> module_work_;
  std::unique_ptr<LinkTable> links_;
  // Declared after links_, which its tasks use.
  std::unique_ptr<LinkThread> link_thread_;
  std::unique_ptr<DeviceResources> device_resources_;
  std::unique_ptr<CopyBack> copy_back_;
  std::unique_ptr<HostCallbacks> callbacks_;
  std::unique_ptr<GraphMemory> graph_memory_;
  std::unique_ptr<HostRegions> host_regions_;
  std::unique_ptr<WatchedEvents> watched_events_;
  std::unique_ptr<TriedAttributes> tried_attributes_;
  QuerySpin query_spin_;
  std::deque<PostponedFree> postponed_frees_;
  std::unordered_set<uint64_t> inner_graphs_;
  bool ended_ = false;
};

}  // namespace gpuwire::server
