#include "server/replay/module/module_work.hpp"

#include <utility>

#include "server/driver_table.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/replay.hpp"
#include "server/replay/session/replay_state.hpp"

namespace gpuwire::server {

ContextElsewhere::ContextElsewhere(Replay& replay) : driver_(replay.driver()) {
  if (Context* context = replay.state().contexts().current()) {
    native_ = context->native;
    lease_ = std::make_shared<PooledEvent>(context->events->lease());
  } else {
    drive(driver_.cuCtxGetCurrent, &native_);  // the context that the worker made current before the session
  }
}

void ContextElsewhere::enter() const {
  if (native_) drive(driver_.cuCtxSetCurrent, native_);
}

ModuleWork::ModuleWork(Replay& replay) : replay_(replay) {
  replay.handles().await_pending_with([this] { await_note(); });
}

void ModuleWork::run(uint64_t handle, ModuleTask task) {
  bool start = false;
  {
    MutexLock lock(mutex_);
    Lane& lane = lanes_[handle];
    lane.tasks.push_back(std::move(task));
    ++lane.open;
    if (!lane.runs && lane.tasks.size() == 1) {
      start = running_ < kModuleTasksMax;
      lane.runs = start;
      if (start) ++running_;
      else waiting_.push_back(handle);
    }
  }
  if (start) replay_.work_elsewhere([this, handle] { serve(handle); });
  settle();
}

// Runs the handle's tasks, and then those of waiting lanes.
void ModuleWork::serve(uint64_t handle) {
  for (;;) {
    while (serve_one(handle)) {}
    MutexLock lock(mutex_);
    // A task may have been added since.
    if (!lanes_[handle].tasks.empty()) continue;
    lanes_[handle].runs = false;
    if (lanes_[handle].open == 0) lanes_.erase(handle);
    if (waiting_.empty()) {
      --running_;
      return;
    }
    handle = waiting_.front();
    waiting_.pop_front();
    lanes_[handle].runs = true;
  }
}

bool ModuleWork::serve_one(uint64_t handle) {
  ModuleTask task;
  {
    MutexLock lock(mutex_);
    Lane& lane = lanes_[handle];
    if (lane.tasks.empty()) return false;
    task = std::move(lane.tasks.front());
    lane.tasks.pop_front();
  }
  task.drive();
  {
    MutexLock lock(mutex_);
    notes_.push_back({handle, std::move(task.note)});
    done_.store(true, std::memory_order_release);
    changed_.notify_all();
  }
  if (task.answer) task.answer();
  return true;
}

void ModuleWork::run_notes() {
  std::vector<Noted> notes;
  {
    MutexLock lock(mutex_);
    notes.swap(notes_);
    done_.store(false, std::memory_order_relaxed);
    for (const Noted& noted : notes) {
      Lane& lane = lanes_[noted.handle];
      if (--lane.open == 0 && !lane.runs) lanes_.erase(noted.handle);
    }
  }
  for (const Noted& noted : notes) noted.note();
}

void ModuleWork::await_note() {
  {
    MutexLock lock(mutex_);
    changed_.wait(lock.native(), [&]() REQUIRES(mutex_) { return !notes_.empty(); });
  }
  run_notes();
}

bool ModuleWork::busy(uint64_t handle) {
  settle();
  MutexLock lock(mutex_);
  auto found = lanes_.find(handle);
  return found != lanes_.end() && found->second.open != 0;
}

void ModuleWork::await(uint64_t handle) {
  while (busy(handle)) await_note();
}

bool ModuleWork::finish(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    settle();
    MutexLock lock(mutex_);
    bool open = false;
    for (const auto& [handle, lane] : lanes_) open |= lane.open != 0;
    if (!open) return true;
    if (notes_.empty() && !changed_.wait_until(lock.native(), deadline)) return false;
  }
}

}  // namespace gpuwire::server
