#include "server/replay/stream/host_callbacks.hpp"

#include <chrono>
#include <deque>
#include <map>
#include <set>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "server/driver_table.hpp"
#include "server/replay/completion/completion.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy_back.hpp"
#include "server/replay/host_memory/host_regions.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_handlers.hpp"
#include "server/session_notices.hpp"

namespace gpuwire::server {

struct HostCallbacks::Shared {
  Mutex mutex;
  Condition changed;
  // Null if the session has ended.
  Replay* replay GUARDED_BY(mutex) = nullptr;
  // The trampolines that use `replay` without holding mutex.
  unsigned sending GUARDED_BY(mutex) = 0;
  // Runs of callbacks that the client has not answered, oldest first, with the context of each. A stream's callback
  // counts from its enqueueing, a graph's only while it runs.
  std::map<uint64_t, uint32_t> open GUARDED_BY(mutex);
  // The number of the newest run.
  uint64_t runs GUARDED_BY(mutex) = 0;
  // By the client's number of a callback: the runs that were requested from the client and are not answered.
  std::unordered_map<uint64_t, std::deque<uint64_t>> asked GUARDED_BY(mutex);
};

struct HostCallbacks::Trampoline {
  std::shared_ptr<Shared> shared;
  uint64_t callback = 0;
  // 0 for a graph's callback, whose runs each get a number.
  uint64_t run = 0;
  // Null if no earlier copy from the device is pending. Lock: shared->mutex.
  std::shared_ptr<bool> data_left;
};

HostCallbacks::HostCallbacks(Replay& replay) : shared_(std::make_shared<Shared>()) { shared_->replay = &replay; }

CUresult HostCallbacks::for_graph(uint64_t callback, CUDA_HOST_NODE_PARAMS& node) {
  Replay* replay = nullptr;
  {
    MutexLock lock(shared_->mutex);
    replay = shared_->replay;
    if (!replay) return CUDA_ERROR_DEINITIALIZED;
    if (shared_->open.size() + repeating_.size() >= kCallbacksMax) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  replay->expect_answers();
  auto trampoline = std::make_unique<Trampoline>(Trampoline{shared_, callback, 0});
  node = {&run_host_function, trampoline.get()};
  repeating_.emplace(node.userData, std::move(trampoline));
  return CUDA_SUCCESS;
}

uint64_t HostCallbacks::number_of(const CUDA_HOST_NODE_PARAMS& node) const {
  auto found = repeating_.find(node.userData);
  return found == repeating_.end() ? 0 : found->second->callback;
}

CUresult HostCallbacks::capture(Replay& replay, CUstream stream, uint64_t callback) {
  CUDA_HOST_NODE_PARAMS node{};
  CUresult result = for_graph(callback, node);
  if (result == CUDA_SUCCESS) result = drive(replay.driver().cuLaunchHostFunc, stream, node.fn, node.userData);
  if (result != CUDA_SUCCESS) repeating_.erase(node.userData);
  return result;
}

CUresult HostCallbacks::enqueue(Replay& replay, CUstream stream, uint64_t callback, Kind kind) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (stream != nullptr) drive(replay.driver().cuStreamIsCapturing, stream, &status);
  if (status != CU_STREAM_CAPTURE_STATUS_NONE && kind == Kind::host_function) return capture(replay, stream, callback);
  replay.expect_answers();
  auto trampoline = std::make_unique<Trampoline>(Trampoline{shared_, callback, 0});
  {
    MutexLock lock(shared_->mutex);
    if (!shared_->replay) return CUDA_ERROR_DEINITIALIZED;
    if (shared_->open.size() + repeating_.size() >= kCallbacksMax) return CUDA_ERROR_OUT_OF_MEMORY;
    Context* context = replay.state().contexts().current();
    trampoline->run = ++shared_->runs;
    shared_->open.emplace(trampoline->run, context ? wire_context(context->handle) : 0);
  }
  CUresult result = kind == Kind::host_function ? drive(replay.driver().cuLaunchHostFunc, stream, &run_host_function,
                                                        static_cast<void*>(trampoline.get()))
                                                : drive(replay.driver().cuStreamAddCallback, stream,
                                                        &run_stream_callback, static_cast<void*>(trampoline.get()), 0u);
  if (result != CUDA_SUCCESS) {
    MutexLock lock(shared_->mutex);
    shared_->open.erase(trampoline->run);
    return result;
  }
  trampoline.release();
  return CUDA_SUCCESS;
}

HostCallbacks::~HostCallbacks() {
  if (end()) return;
  // The driver's thread may still use the trampolines, so they are leaked; the process is about to end.
  for (auto& [address, trampoline] : repeating_) static_cast<void>(trampoline.release());
}

bool HostCallbacks::done(uint64_t callback) {
  MutexLock lock(shared_->mutex);
  auto found = shared_->asked.find(callback);
  if (found == shared_->asked.end()) return false;
  shared_->open.erase(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) shared_->asked.erase(found);
  shared_->changed.notify_all();
  return true;
}

bool HostCallbacks::awaiting() const {
  MutexLock lock(shared_->mutex);
  return !shared_->asked.empty();
}

size_t HostCallbacks::unanswered() const {
  MutexLock lock(shared_->mutex);
  return shared_->open.size();
}

uint64_t HostCallbacks::newest_run() const {
  MutexLock lock(shared_->mutex);
  return shared_->runs;
}

bool HostCallbacks::answered_up_to(uint64_t run) const {
  MutexLock lock(shared_->mutex);
  return shared_->open.empty() || shared_->open.begin()->first > run;
}

void HostCallbacks::forget_context(uint32_t number) {
  MutexLock lock(shared_->mutex);
  std::set<uint64_t> running;
  for (const auto& [callback, runs] : shared_->asked) running.insert(runs.begin(), runs.end());
  std::erase_if(shared_->open, [&](const auto& run) { return run.second == number && !running.contains(run.first); });
}

bool HostCallbacks::end() {
  MutexLock lock(shared_->mutex);
  shared_->replay = nullptr;
  shared_->asked.clear();
  shared_->changed.notify_all();
  return shared_->changed.wait_for(lock.native(), std::chrono::milliseconds(kCallbackEndMs),
                                   [&]() REQUIRES(shared_->mutex) { return shared_->sending == 0; });
}

void CUDA_CB HostCallbacks::run_host_function(void* user) { run(*static_cast<Trampoline*>(user), CUDA_SUCCESS); }

void CUDA_CB HostCallbacks::run_stream_callback(CUstream, CUresult status, void* user) {
  run(*static_cast<Trampoline*>(user), status);
}

void HostCallbacks::run(Trampoline& trampoline, CUresult status) {
  std::unique_ptr<Trampoline> once(trampoline.run == 0 ? nullptr : &trampoline);
  std::shared_ptr<Shared> shared = trampoline.shared;
  uint64_t callback = trampoline.callback;
  MutexLock lock(shared->mutex);
  // A trampoline may not call the driver, so the watcher's thread sends the data of earlier copies, which are done.
  std::shared_ptr<bool> left;
  if (shared->replay) {
    left = std::make_shared<bool>(false);
    const bool pending = shared->replay->state().copy_back().deliver_soon([left, shared] {
      MutexLock lock(shared->mutex);
      *left = true;
      shared->changed.notify_all();
    });
    if (!pending) left.reset();
  }
  if (left) shared->changed.wait(lock.native(), [&]() REQUIRES(shared->mutex) { return *left || !shared->replay; });
  if (shared->replay) {
    uint64_t run = trampoline.run;
    if (run == 0) shared->open.emplace(run = ++shared->runs, 0);
    // A graph that is launched twice may request its callback while the client still runs it: each answer releases one
    // run.
    shared->asked[callback].push_back(run);
    ++shared->sending;
    Replay& replay = *shared->replay;
    lock.unlock();
    replay.state().host_regions().deliver();
    replay.answer_awaited();
    notify::host_callback(replay.outbox(), {.callback = callback, .status = status});
    lock.lock();
    if (--shared->sending == 0) shared->changed.notify_all();
    shared->changed.wait(lock.native(), [&]() REQUIRES(shared->mutex) {
      auto found = shared->asked.find(callback);
      return !shared->replay || found == shared->asked.end() || found->second.front() > run;
    });
  }
}

void host_function(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::HostFunction>();
  if (params.getKind() > uint8_t(HostCallbacks::Kind::stream_callback))
    throw ProtocolFault{"host_function: unknown kind"};
  CUstream stream = nullptr;
  if (!find_stream(replay, params.getStream(), stream)) return finish(replay, call, CUDA_ERROR_INVALID_HANDLE);
  finish(
      replay, call,
      replay.state().callbacks().enqueue(replay, stream, params.getCallback(), HostCallbacks::Kind(params.getKind())));
}

void host_function_done(Replay& replay, Call& call) {
  if (!replay.state().callbacks().done(call.message.getRoot<schema::HostFunctionDone>().getCallback())) {
    throw ProtocolFault{"host_function_done: no such callback is running"};
  }
  finish(replay, call, CUDA_SUCCESS);
}

}  // namespace gpuwire::server
