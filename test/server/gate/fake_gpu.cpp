#include "fake_gpu.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>

using gpuwire::server::DriverTable;

namespace {
FakeGpu* gpu = nullptr;
thread_local CUcontext t_current = FakeGpu::context();
}  // namespace

struct FakeGpu::Calls {
  static CUresult launch(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         CUstream stream, void**, void**) {
    std::lock_guard lock(gpu->mutex_);
    ++gpu->launched_;
    if (!gpu->capturing_.count(stream))
      gpu->queue_.push_back({.kind = Kind::work, .context = t_current, .stream = stream});
    return CUDA_SUCCESS;
  }
  static CUresult copy(CUdeviceptr, const void*, size_t, CUstream stream) {
    std::lock_guard lock(gpu->mutex_);
    ++gpu->launched_;
    gpu->queue_.push_back({.kind = Kind::work, .context = t_current, .stream = stream});
    return CUDA_SUCCESS;
  }
  static CUresult create(CUevent* event, unsigned) {
    std::lock_guard lock(gpu->mutex_);
    *event = reinterpret_cast<CUevent>(gpu->next_event_++);
    gpu->events_[*event] = {.context = t_current};
    return CUDA_SUCCESS;
  }
  static CUresult destroy(CUevent event) {
    std::lock_guard lock(gpu->mutex_);
    return gpu->events_.erase(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  static CUresult record(CUevent event, CUstream stream) {
    std::lock_guard lock(gpu->mutex_);
    gpu->broke_capture_ |= gpu->capturing_.count(stream) != 0;
    ++gpu->recorded_;
    return gpu->add(event, stream, false);
  }
  static CUresult record_everything(CUcontext, CUevent event) {
    std::lock_guard lock(gpu->mutex_);
    gpu->broke_capture_ |= gpu->is_capturing();
    ++gpu->everything_;
    return gpu->add(event, nullptr, true);
  }
  static CUresult query(CUevent event) {
    std::lock_guard lock(gpu->mutex_);
    auto found = gpu->events_.find(event);
    if (found == gpu->events_.end()) return CUDA_ERROR_INVALID_HANDLE;
    return found->second.pending == 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  }
  static CUresult current(CUcontext* context) {
    *context = t_current;
    return CUDA_SUCCESS;
  }
  static CUresult set_current(CUcontext context) {
    t_current = context;
    return CUDA_SUCCESS;
  }
  static CUresult current_device(CUdevice* device) {
    *device = CUdevice(reinterpret_cast<uintptr_t>(t_current) / FakeGpu::kContextsOfDevice);
    return CUDA_SUCCESS;
  }
  static CUresult destroy_context(CUcontext context) { return gpu->end(context); }
  static CUresult release(CUdevice) {
    {
      std::lock_guard lock(gpu->mutex_);
      if (--gpu->primary_users_ != 0) return CUDA_SUCCESS;
    }
    return gpu->end(context());
  }
  static CUresult reset(CUdevice) {
    {
      std::lock_guard lock(gpu->mutex_);
      gpu->primary_users_ = 0;
    }
    return gpu->end(context());
  }
  static CUresult retain(CUcontext* primary, CUdevice) {
    std::lock_guard lock(gpu->mutex_);
    ++gpu->primary_users_;
    *primary = context();
    return CUDA_SUCCESS;
  }
  static CUresult primary_state(CUdevice, unsigned*, int* active) {
    std::lock_guard lock(gpu->mutex_);
    *active = gpu->primary_users_ != 0;
    return CUDA_SUCCESS;
  }
  static CUresult is_capturing(CUstream stream, CUstreamCaptureStatus* status) {
    std::lock_guard lock(gpu->mutex_);
    gpu->asked_destroyed_ |= gpu->destroyed_.count(stream) != 0;
    auto capture = gpu->capturing_.find(stream);
    *status = capture == gpu->capturing_.end() ? CU_STREAM_CAPTURE_STATUS_NONE
              : capture->second.invalidated    ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
  }
  static CUresult destroy_stream(CUstream stream) {
    std::lock_guard lock(gpu->mutex_);
    gpu->capturing_.erase(stream);
    gpu->destroyed_.insert(stream);
    return CUDA_SUCCESS;
  }
  static CUresult begin_capture(CUstream stream, CUstreamCaptureMode) {
    gpu->set_capturing(stream, true);
    return CUDA_SUCCESS;
  }
  static CUresult end_capture(CUstream stream, CUgraph*) {
    gpu->set_capturing(stream, false);
    return CUDA_SUCCESS;
  }
  static CUresult alloc(void** memory, size_t bytes, unsigned) {
    // Pinned memory that the process does not free ends with the GPU.
    std::lock_guard lock(gpu->mutex_);
    *memory = gpu->pinned_.emplace_back(std::calloc(1, bytes), &std::free).get();
    return CUDA_SUCCESS;
  }
  static CUresult free(void* memory) {
    std::lock_guard lock(gpu->mutex_);
    std::erase_if(gpu->pinned_, [&](const auto& one) { return one.get() == memory; });
    return CUDA_SUCCESS;
  }
  static CUresult device_pointer(CUdeviceptr* address, void* memory, unsigned) {
    *address = reinterpret_cast<CUdeviceptr>(memory);
    return CUDA_SUCCESS;
  }
  static CUresult fill(CUdeviceptr address, unsigned value, size_t, CUstream stream) {
    std::lock_guard lock(gpu->mutex_);
    gpu->broke_capture_ |= gpu->capturing_.count(stream) != 0;
    gpu->queue_.push_back({.kind = Kind::word,
                           .word = reinterpret_cast<uint32_t*>(address),
                           .value = value,
                           .context = t_current,
                           .stream = stream});
    return CUDA_SUCCESS;
  }
};

FakeGpu::FakeGpu() {
  gpu = this;
  table_.cuLaunchKernel = &Calls::launch;
  table_.cuMemcpyHtoDAsync_v2 = &Calls::copy;
  table_.cuEventCreate = &Calls::create;
  table_.cuEventDestroy_v2 = &Calls::destroy;
  table_.cuEventRecord = &Calls::record;
  table_.cuEventQuery = &Calls::query;
  table_.cuCtxRecordEvent = &Calls::record_everything;
  table_.cuCtxGetCurrent = &Calls::current;
  table_.cuCtxSetCurrent = &Calls::set_current;
  table_.cuCtxGetDevice = &Calls::current_device;
  table_.cuCtxDestroy_v2 = &Calls::destroy_context;
  table_.cuDevicePrimaryCtxRelease_v2 = &Calls::release;
  table_.cuDevicePrimaryCtxReset_v2 = &Calls::reset;
  table_.cuDevicePrimaryCtxRetain = &Calls::retain;
  table_.cuDevicePrimaryCtxGetState = &Calls::primary_state;
  table_.cuStreamDestroy_v2 = &Calls::destroy_stream;
  table_.cuStreamIsCapturing = &Calls::is_capturing;
  table_.cuStreamBeginCapture_v2 = &Calls::begin_capture;
  table_.cuStreamEndCapture = &Calls::end_capture;
  table_.cuMemHostAlloc = &Calls::alloc;
  table_.cuMemFreeHost = &Calls::free;
  table_.cuMemHostGetDevicePointer_v2 = &Calls::device_pointer;
  table_.cuMemsetD32Async = &Calls::fill;
}

FakeGpu::~FakeGpu() { gpu = nullptr; }

CUcontext FakeGpu::context() { return reinterpret_cast<CUcontext>(uintptr_t(0xc0)); }

CUresult FakeGpu::add(CUevent event, CUstream stream, bool everything) {
  if (!events_.count(event)) return CUDA_ERROR_INVALID_HANDLE;
  if (queue_.empty()) return CUDA_SUCCESS;
  Event& recorded = events_[event];
  ++recorded.pending;
  queue_.push_back(
      {.kind = Kind::event, .event = event, .context = recorded.context, .stream = stream, .everything = everything});
  return CUDA_SUCCESS;
}

void FakeGpu::run(const Operation& operation) {
  if (operation.kind == Kind::word) std::atomic_ref(*operation.word).store(operation.value, std::memory_order_release);
  auto event = events_.find(operation.event);
  if (event != events_.end() && event->second.pending != 0) --event->second.pending;
}

// Ends the context with its objects.
CUresult FakeGpu::end(CUcontext context) {
  std::unique_lock lock(mutex_);
  ++ending_;
  let_go_.wait(lock, [&] { return !hold_endings_; });
  --ending_;
  std::erase_if(events_, [&](const auto& entry) { return entry.second.context == context; });
  for (const auto& [stream, capture] : capturing_) {
    if (capture.context == context) destroyed_.insert(stream);
  }
  std::erase_if(capturing_, [&](const auto& entry) { return entry.second.context == context; });
  std::erase_if(queue_, [&](const Operation& operation) { return operation.context == context; });
  return CUDA_SUCCESS;
}

void FakeGpu::hold_endings(bool hold) {
  std::lock_guard lock(mutex_);
  hold_endings_ = hold;
  let_go_.notify_all();
}

size_t FakeGpu::ending() {
  std::lock_guard lock(mutex_);
  return ending_;
}

void FakeGpu::share_primary() {
  std::lock_guard lock(mutex_);
  ++primary_users_;
}

void FakeGpu::begin() {
  std::lock_guard lock(mutex_);
  for (; !queue_.empty() && queue_.front().kind != Kind::work; queue_.pop_front()) run(queue_.front());
}

void FakeGpu::finish(size_t operations) {
  begin();
  for (size_t i = 0; i < operations; ++i) {
    std::lock_guard lock(mutex_);
    while (!queue_.empty() && queue_.front().kind != Kind::work) run(queue_.front()), queue_.pop_front();
    if (!queue_.empty()) queue_.pop_front();
    while (!queue_.empty() && queue_.front().kind != Kind::work) run(queue_.front()), queue_.pop_front();
  }
}

void FakeGpu::finish_in(CUstream stream, size_t kernels) {
  std::lock_guard lock(mutex_);
  std::set<CUstream> busy;
  std::erase_if(queue_, [&](const Operation& operation) {
    if (operation.kind == Kind::work) {
      if (operation.stream == stream && kernels != 0) return --kernels, true;
      busy.insert(operation.stream);
      return false;
    }
    if (operation.everything ? !busy.empty() : busy.count(operation.stream) != 0) return false;
    run(operation);
    return true;
  });
}

size_t FakeGpu::in_flight() {
  std::lock_guard lock(mutex_);
  size_t count = 0;
  for (const Operation& operation : queue_) count += operation.kind == Kind::work;
  return count;
}

void FakeGpu::finish_all() { finish(in_flight()); }

size_t FakeGpu::launched() {
  std::lock_guard lock(mutex_);
  return launched_;
}

size_t FakeGpu::events_recorded() {
  std::lock_guard lock(mutex_);
  return recorded_;
}

size_t FakeGpu::events_alive() {
  std::lock_guard lock(mutex_);
  return events_.size();
}

size_t FakeGpu::everything_recorded() {
  std::lock_guard lock(mutex_);
  return everything_;
}

bool FakeGpu::recorded_into_a_capture() {
  std::lock_guard lock(mutex_);
  return broke_capture_;
}

void FakeGpu::set_capturing(CUstream stream, bool capturing) {
  std::lock_guard lock(mutex_);
  if (capturing) capturing_[stream] = {.context = t_current};
  else capturing_.erase(stream);
}

bool FakeGpu::is_capturing() const {
  return std::ranges::any_of(capturing_, [](const auto& entry) { return !entry.second.invalidated; });
}

void FakeGpu::invalidate_capture(CUstream stream) {
  std::lock_guard lock(mutex_);
  capturing_[stream].invalidated = true;
}

bool FakeGpu::asked_a_destroyed_stream() {
  std::lock_guard lock(mutex_);
  return asked_destroyed_;
}
