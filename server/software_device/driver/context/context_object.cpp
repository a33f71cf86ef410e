#include "server/software_device/driver/context/context_object.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "protocol/cuda_abi/private_tables.hpp"
#include "server/software_device/driver/memory/allocation.hpp"
#include "server/software_device/driver/stream/capture_rules.hpp"
#include "server/software_device/driver/call/driver_state.hpp"
#include "server/software_device/driver/module/module_object.hpp"

namespace gpuwire::software_device {

// --- memory

DeviceMemory::Range ContextMemory::find(uint64_t address) const noexcept {
  Range out;
  table_.inspect(address, [&](const MemoryRange& range) {
    const bool peer =
        range.kind != MemoryKind::mapped && (peers.load(std::memory_order_relaxed) >> range.device & 1) != 0;
    if (peer || (range.readable_by >> device_ & 1) != 0) {
      out = {range.begin, range.end(), peer || (range.writable_by >> device_ & 1) != 0};
    }
  });
  return out;
}

uint64_t ContextHeap::allocate(uint64_t bytes) noexcept {
  constexpr uint64_t kAlignment = 16;
  if (bytes == 0 || bytes > limit_bytes_.load(std::memory_order_relaxed)) {
    return 0;
  }
  const uint64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (used_bytes_.fetch_add(rounded, std::memory_order_relaxed) + rounded >
      limit_bytes_.load(std::memory_order_relaxed)) {
    used_bytes_.fetch_sub(rounded, std::memory_order_relaxed);
    return 0;
  }
  try {
    const std::shared_ptr<void> backing(std::aligned_alloc(kAlignment, rounded), std::free);
    if (backing != nullptr) std::memset(backing.get(), 0, rounded);
    const auto address = reinterpret_cast<uint64_t>(backing.get());
    if (address != 0 &&
        table_.insert(
            {.begin = address, .bytes = rounded, .kind = MemoryKind::heap, .context = context_, .backing = backing}) !=
            0) {
      return address;
    }
  } catch (const std::bad_alloc&) {}
  used_bytes_.fetch_sub(rounded, std::memory_order_relaxed);
  return 0;
}

void ContextHeap::free(uint64_t address) noexcept {
  const auto removed = table_.remove(
      address, [&](const MemoryRange& range) { return range.kind == MemoryKind::heap && range.context == context_; });
  if (removed) {
    used_bytes_.fetch_sub(removed->bytes, std::memory_order_relaxed);
  }
}

// --- context

Context::Context(Device& device, CUcontext handle, unsigned flags, unsigned long long id)
    : memory(driver().memory, device.ordinal),
      heap(driver().memory, handle, heap_limit_bytes),
      heap_limit_bytes(Limits{}.malloc_heap_bytes),
      flags(flags),
      device_(device),
      handle_(handle),
      id_(id),
      faults_before_(device.faults.load(std::memory_order_acquire)) {}

CUresult Context::fault() const noexcept {
  if (const CUresult own = fault_.load(std::memory_order_acquire); own != CUDA_SUCCESS) {
    return own;
  }
  const uint64_t faults = device_.faults.load(std::memory_order_acquire);
  return faults == faults_before_ ? CUDA_SUCCESS : static_cast<CUresult>(faults & kFaultMask);
}

void Context::set_fault(CUresult fault) noexcept {
  CUresult none = CUDA_SUCCESS;
  fault_.compare_exchange_strong(none, fault, std::memory_order_acq_rel);
}

void Context::step(const Step& step) {
  if (fault() != CUDA_SUCCESS) {
    return;
  }
  if (const CUresult result = step(); result != CUDA_SUCCESS) {
    output.flush();
    set_fault(result);
    uint64_t before = device_.faults.load(std::memory_order_relaxed), after = 0;
    do {
      after = ((before & ~kFaultMask) + kFaultMask + 1) | static_cast<uint32_t>(result);
    } while (!device_.faults.compare_exchange_weak(before, after, std::memory_order_acq_rel));
  }
}

// --- streams

std::shared_ptr<Stream> Context::stream(CUstream handle) {
  if (handle == nullptr) {
    handle = default_stream();
  }
  const std::lock_guard lock(submission_mutex_);
  if (handle == CU_STREAM_LEGACY) {
    if (legacy_ == nullptr) {
      legacy_ = std::make_shared<Stream>();
      legacy_->handle = CU_STREAM_LEGACY;
      legacy_->context = weak_from_this();
      legacy_->kind = Stream::Kind::legacy;
      legacy_->id = driver().next_stream_id();
    }
    return legacy_;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    auto& mine = per_thread_[std::this_thread::get_id()];
    if (mine == nullptr) {
      mine = std::make_shared<Stream>();
      mine->handle = CU_STREAM_PER_THREAD;
      mine->context = weak_from_this();
      mine->kind = Stream::Kind::per_thread;
      mine->id = driver().next_stream_id();
    }
    return mine;
  }
  return driver().streams.find(handle);
}

std::shared_ptr<Stream> Context::create_stream(unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->handle = driver().streams.reserve();
  stream->context = weak_from_this();
  stream->flags = flags;
  stream->priority = priority;
  stream->id = driver().next_stream_id();
  const std::lock_guard lock(submission_mutex_);
  created_.emplace(stream->handle, stream);
  driver().streams.insert(stream->handle, stream);
  return stream;
}

bool Context::destroy_stream(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(submission_mutex_);
  if (created_.erase(stream->handle) == 0) {
    return false;
  }
  driver().streams.take(stream->handle);
  std::erase_if(orphans_, [](const OperationPtr& operation) { return operation->done(); });
  if (stream->tail != nullptr) {
    orphans_.push_back(stream->tail);
  }
  return true;
}

std::vector<OperationPtr> Context::all_tails_locked() const {
  std::vector<OperationPtr> tails = orphans_;
  if (legacy_ != nullptr) {
    tails.push_back(legacy_->tail);
  }
  for (const auto& [thread, stream] : per_thread_) {
    tails.push_back(stream->tail);
  }
  for (const auto& [handle, stream] : created_) {
    tails.push_back(stream->tail);
  }
  std::erase_if(tails, [](const OperationPtr& tail) { return tail == nullptr || tail->done(); });
  return tails;
}

// The legacy stream's implicit synchronisation: its work waits for the work of all blocking streams, and their work
// waits for it.
std::vector<OperationPtr> Context::dependencies_locked(const Stream& stream) const {
  std::vector<OperationPtr> out{stream.tail};
  if (stream.kind == Stream::Kind::legacy) {
    out.insert(out.end(), orphans_.begin(), orphans_.end());
    for (const auto& [thread, other] : per_thread_) {
      out.push_back(other->tail);
    }
    for (const auto& [handle, other] : created_) {
      if (other->blocking()) {
        out.push_back(other->tail);
      }
    }
  } else if (stream.blocking() && legacy_ != nullptr) {
    out.push_back(legacy_->tail);
  }
  std::erase_if(out, [](const OperationPtr& operation) { return operation == nullptr || operation->done(); });
  return out;
}

void Context::bound_queue(std::unique_lock<std::mutex>& lock, Stream& stream) {
  if (++stream.submitted % kCheckpointInterval != 0) {
    return;
  }
  const OperationPtr older = std::exchange(stream.checkpoints[0], std::exchange(stream.checkpoints[1], stream.tail));
  if (older != nullptr) {
    lock.unlock();
    driver().scheduler.wait(*older);
    lock.lock();
  }
}

OperationPtr Context::append_locked(Stream& stream, std::function<void()> work,
                                    std::vector<OperationPtr> dependencies) {
  stream.tail = driver().scheduler.submit(std::move(work), dependencies);
  return stream.tail;
}

std::function<void()> Context::guarded(Step step) {
  return [self = shared_from_this(), step = std::move(step)] { self->step(step); };
}

OperationPtr Context::submit(Stream& stream, Step step, std::span<const OperationPtr> extra_dependencies) {
  std::function<void()> work = step ? guarded(std::move(step)) : nullptr;
  std::unique_lock lock(submission_mutex_);
  bound_queue(lock, stream);
  auto dependencies = dependencies_locked(stream);
  dependencies.insert(dependencies.end(), extra_dependencies.begin(), extra_dependencies.end());
  return append_locked(stream, std::move(work), std::move(dependencies));
}

OperationPtr Context::submit_unordered(Work work, std::span<const OperationPtr> dependencies) {
  return driver().scheduler.submit(
      guarded([this, work = std::move(work)] { return carry_out_in_turn(*this, work, kStreamOfGraphs); }),
      dependencies);
}

OperationPtr Context::submit_always(Stream& stream, std::function<void()> work) {
  std::unique_lock lock(submission_mutex_);
  bound_queue(lock, stream);
  return append_locked(stream, std::move(work), dependencies_locked(stream));
}

CUresult Context::run(Stream& stream, const Step& step) {
  OperationPtr operation;
  {
    const std::unique_lock lock(submission_mutex_);
    operation = driver().scheduler.prepare(dependencies_locked(stream));
    stream.tail = operation;
  }
  driver().scheduler.run_here(operation, [&] { this->step(step); });
  output.flush();
  return fault();
}

std::vector<OperationPtr> Context::pending(Stream& stream) {
  const std::lock_guard lock(submission_mutex_);
  return dependencies_locked(stream);
}

bool Context::has_no_own_work(Stream& stream) {
  const std::lock_guard lock(submission_mutex_);
  return stream.tail == nullptr || stream.tail->done();
}

OperationPtr Context::mark_everything() {
  const std::lock_guard lock(submission_mutex_);
  return driver().scheduler.submit(nullptr, all_tails_locked());
}

void Context::delay_everything(const OperationPtr& operation) {
  stream(CU_STREAM_LEGACY);
  const std::lock_guard lock(submission_mutex_);
  const auto delay = [&](Stream& stream) {
    const OperationPtr both[] = {stream.tail, operation};
    stream.tail = driver().scheduler.submit(nullptr, both);
  };
  delay(*legacy_);
  for (const auto& [thread, stream] : per_thread_) {
    delay(*stream);
  }
  for (const auto& [handle, stream] : created_) {
    delay(*stream);
  }
}

CUresult Context::synchronize(const OperationPtr& operation) {
  if (operation != nullptr) {
    driver().scheduler.wait(*operation);
  }
  output.flush();
  return fault();
}

CUresult Context::synchronize(Stream& stream) {
  for (const OperationPtr& operation : pending(stream)) {
    driver().scheduler.wait(*operation);
  }
  output.flush();
  return fault();
}

CUresult Context::synchronize() {
  std::vector<OperationPtr> tails;
  {
    const std::lock_guard lock(submission_mutex_);
    tails = all_tails_locked();
  }
  for (const OperationPtr& tail : tails) {
    driver().scheduler.wait(*tail);
  }
  output.flush();
  return fault();
}

void Context::shut_down() {
  std::vector<OperationPtr> tails;
  {
    const std::lock_guard lock(submission_mutex_);
    tails = all_tails_locked();
  }
  const auto deadline = std::chrono::steady_clock::now() + kDrainTimeout;
  for (const OperationPtr& tail : tails) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (!driver().scheduler.wait_for(*tail, std::max(left, std::chrono::milliseconds(0)))) {
      cancelled_.store(true, std::memory_order_relaxed);
      set_fault(CUDA_ERROR_CONTEXT_IS_DESTROYED);
      driver().scheduler.wait(*tail);
    }
  }
  output.flush();
  end_captures(*this);
  cuda_abi::context_local_storage().drop_context(handle_);
  {
    const MutexLock lock(code_mutex);
    for (const auto& [handle, module] : modules) {
      module->release_handles();
    }
    for (const auto& [handle, module] : library_instances) {
      module->release_handles();
    }
    modules.clear();
    library_instances.clear();
  }
  {
    const std::lock_guard lock(submission_mutex_);
    for (const auto& [handle, stream] : created_) {
      driver().streams.take(handle);
    }
    created_.clear();
  }
  release_images(handle_);
  MemoryTable& table = driver().memory;
  for (const uint64_t begin : table.select(
           [&](const MemoryRange& range) { return range.context == handle_ && range.kind != MemoryKind::mapped; })) {
    if (const auto removed = table.remove(begin, [](const MemoryRange&) { return true; })) {
      leave_pool(*removed);
    }
  }
}

}  // namespace gpuwire::software_device
