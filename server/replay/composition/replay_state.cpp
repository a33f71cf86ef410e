#include "server/replay/session/replay_state.hpp"

#include <chrono>
#include <thread>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "server/driver_table.hpp"
#include "server/replay/stream/host_callbacks.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/device/device_resources.hpp"
#include "server/replay/graph/graph_memory.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "server/replay/copy/copy_back.hpp"
#include "server/replay/module/link.hpp"
#include "server/replay/module/module_store.hpp"
#include "server/replay/module/link_thread.hpp"
#include "server/replay/module/module_work.hpp"
#include "server/replay/module/tried_attributes.hpp"
#include "server/replay/completion/polling.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/stream/watched_events.hpp"

namespace gpuwire::server {

namespace {
// The time for which the end of a session waits for running kernels.
constexpr std::chrono::milliseconds kTeardownMs{1500};
}  // namespace

ReplayState::ReplayState(Replay& replay, SessionSettings settings)
    : replay_(replay),
      shares_(settings.shares),
      chunks_(settings.chunks),
      upload_order_(settings.upload_order),
      tenant_(settings.tenant),
      keeping_memory_(std::move(settings.keeping_memory)),
      within_grant_(std::move(settings.within_grant)),
      beyond_grant_(std::move(settings.beyond_grant)),
      contexts_(std::make_unique<ContextTable>(replay, settings.write_word, settings.upload_order)),
      modules_(std::make_unique<ModuleStore>(settings.module_cache, std::move(settings.tenant), replay.host_memory())),
      module_work_(std::make_unique<ModuleWork>(replay)),
      links_(std::make_unique<LinkTable>()),
      link_thread_(std::make_unique<LinkThread>()),
      device_resources_(std::make_unique<DeviceResources>()),
      copy_back_(std::make_unique<CopyBack>(replay)),
      callbacks_(std::make_unique<HostCallbacks>(replay)),
      graph_memory_(std::make_unique<GraphMemory>(replay)),
      host_regions_(std::make_unique<HostRegions>(replay)),
      watched_events_(std::make_unique<WatchedEvents>(replay.driver())),
      tried_attributes_(std::make_unique<TriedAttributes>()) {}

ReplayState::~ReplayState() {
  // While the device has work, memory that it could use must not be freed; the process is about to end.
  if (!end()) contexts_.release();
}

CUresult ReplayState::enter(const wire::FrameHeader& header, const ReplayEntry& entry, CUcontext& native) {
  native = nullptr;
  module_work_->settle();
  if (entry.any_context) return CUDA_SUCCESS;
  CUresult result = contexts_->make_current(header.context);
  if (result == CUDA_SUCCESS && contexts_->current()) native = contexts_->current()->native;
  return result;
}

bool ReplayState::device_at_rest() {
  // cuCtxSynchronize cannot be cancelled, so it runs on a thread of its own, where an endless kernel blocks nothing
  // else.
  struct Rest {
    Mutex mutex;
    Condition changed;
    size_t open GUARDED_BY(mutex) = 0;
  };
  auto rest = std::make_shared<Rest>();
  contexts_->for_each([&](Context& context) {
    if (!context.native) return;
    {
      MutexLock lock(rest->mutex);
      ++rest->open;
    }
    replay_.wait_elsewhere([rest, native = context.native, &driver = replay_.driver()] {
      drive(driver.cuCtxSetCurrent, native);
      drive(driver.cuCtxSynchronize);
      MutexLock lock(rest->mutex);
      --rest->open;
      rest->changed.notify_all();
    });
  });
  MutexLock lock(rest->mutex);
  return rest->changed.wait_for(lock.native(), kTeardownMs, [&]() REQUIRES(rest->mutex) { return rest->open == 0; });
}

bool ReplayState::end() {
  if (ended_) return true;
  if (!callbacks_->end() || !module_work_->finish(kTeardownMs) || !link_thread_->finish(kTeardownMs) ||
      !device_at_rest())
    return false;
  copy_back_->clear();
  release_handles();
  contexts_->end();
  host_regions_->clear();
  graph_memory_->clear();
  ended_ = true;
  return true;
}

// Releases the objects that belong to no context, users before the objects that they use. Objects of a context end with
// it.
void ReplayState::release_handles() {
  using wire::HandleKind;
  HandleTable& handles = replay_.handles();
  const DriverTable& driver = replay_.driver();
  auto release = [&](HandleKind kind, auto destroy) {
    handles.for_each(kind, [&](uint64_t handle, void* native) {
      destroy(native);
      handles.erase(kind, handle);
    });
  };
  if (!links_->all().empty()) {
    link_thread_->run_and_wait([&] {
      for (auto& [handle, link] : links_->all()) drive(driver.cuLinkDestroy, link.native);
    });
  }
  links_->all().clear();
  release(HandleKind::graph_exec,
          [&](void* native) { drive(driver.cuGraphExecDestroy, static_cast<CUgraphExec>(native)); });
  for (uint64_t inner : inner_graphs_) handles.erase(HandleKind::graph, inner);
  release(HandleKind::graph, [&](void* native) { drive(driver.cuGraphDestroy, static_cast<CUgraph>(native)); });
  release(HandleKind::library, [&](void* native) { drive(driver.cuLibraryUnload, static_cast<CUlibrary>(native)); });
  release(HandleKind::memory_pool,
          [&](void* native) { drive(driver.cuMemPoolDestroy, static_cast<CUmemoryPool>(native)); });
  release(HandleKind::memory_allocation, [&](void* native) {
    drive(driver.cuMemRelease, static_cast<CUmemGenericAllocationHandle>(reinterpret_cast<uintptr_t>(native)));
  });
  modules_->clear();
}

}  // namespace gpuwire::server
