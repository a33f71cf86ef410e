#include "server/profiler/gpu_profiler.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "protocol/wire/handle.hpp"
#include "server/replay/replay.hpp"
#include "server/session_notices.hpp"

namespace gpuwire::server {

namespace {

using Clock = std::chrono::steady_clock;  // CLOCK_MONOTONIC

constexpr uint64_t kOwnStream = ~0ull;  // one of the worker's own streams, unknown to the client

uint64_t clock_ns() { return uint64_t(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count()); }
uint64_t ns(std::chrono::nanoseconds time) { return uint64_t(time.count()); }

// Returns the driver's name of a function, without the version suffix.
std::string_view plain_name(std::string_view call) {
  for (std::string_view version : {"_v2", "_v3"})
    if (call.ends_with(version)) call.remove_suffix(version.size());
  return call;
}

// Uses the form that the driver's table has; a driver older than 12.8 lacks it.
using ElapsedTime = CUresult(CUDAAPI*)(float*, CUevent, CUevent);
ElapsedTime elapsed_time([[maybe_unused]] const DriverTable& driver) {
#if CUDA_VERSION >= 12080
  return driver.cuEventElapsedTime_v2;
#else
  return nullptr;
#endif
}

}  // namespace

uint64_t GpuProfiler::now_ns() const { return clock_ns(); }

CUresult GpuProfiler::begin(HandleTable& handles, Outbox& outbox) {
  if (begun_) return CUDA_ERROR_ILLEGAL_STATE;
  driver_ = table_;
  const bool complete = driver_.cuEventCreate && driver_.cuEventRecord && driver_.cuEventQuery &&
                        elapsed_time(driver_) && driver_.cuEventDestroy_v2 && driver_.cuCtxGetCurrent &&
                        driver_.cuCtxSetCurrent && driver_.cuStreamCreate && driver_.cuStreamDestroy_v2 &&
                        driver_.cuStreamIsCapturing;
  if (!complete) return CUDA_ERROR_NOT_SUPPORTED;
  outbox_ = &outbox;
  executor_ = std::this_thread::get_id();
  const std::string why_not = begin_cupti();
  log_method(cupti_ ? cupti_->name() : fmt::format("events ({})", why_not));
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error&) {
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  handles.observe_streams([this](uint64_t handle, void* native) { streams_.insert_or_assign(native, handle); });
  put_profiler_before(table_, *this);
  begun_ = measuring_ = true;
  return CUDA_SUCCESS;
}

std::string GpuProfiler::begin_cupti() {
  const bool automatic = settings_.cupti == cupti::kAuto;
  if (settings_.cupti == cupti::kOff) return "CUPTI is off on this server";
  if (automatic && settings_.software) return "CUPTI knows no software device";
  int version = 0;
  if (automatic && (!driver_.cuDriverGetVersion || driver_.cuDriverGetVersion(&version) != CUDA_SUCCESS)) version = 0;
  auto trace = cupti::open(automatic ? cupti::candidates(version) : std::vector{settings_.cupti})
                   .and_then([](cupti::Library library) { return cupti::Trace::begin(std::move(library)); });
  if (trace) {
    cupti_ = std::move(*trace);
    return "";
  }
  if (settings_.note) settings_.note("a profile is measured by events and not by CUPTI: " + trace.error());
  return "no CUPTI: " + trace.error();
}

void GpuProfiler::log_method(std::string text) {
  const uint64_t now = clock_ns();
  new_names_.push_back(std::move(text));
  ready_.push_back({.kind = uint32_t(SpanKind::method), .name = names_numbered_++, .start_ns = now, .end_ns = now});
  ready_since_ns_ = now;
}

// --- names ---------------------------------------------------------------------------------------------------------

void GpuProfiler::name_function(const void* native, std::string_view name) {
  if (!measuring_) return;
  name = name.substr(0, kProfiledNameBytesMax);
  if (name_bytes_ + name.size() > kProfiledNamesBytesMax) name = {};
  name_bytes_ += name.size();
  // A function of an unloaded module may have had the same address.
  names_.insert_or_assign(native, Name{std::string(name)});
}

uint32_t GpuProfiler::number_of(Name& name) {
  if (!name.has_number) {
    MutexLock lock(mutex_);
    name.has_number = true;
    name.number = names_numbered_++;
    new_names_.push_back(name.text);
    if (&name == &without_name_) nameless_ = name.number;
  }
  return name.number;
}

// With the lock.
uint32_t GpuProfiler::number_of_kernel(const char* name) {
  std::string text(name, ::strnlen(name, kProfiledNameBytesMax));
  if (auto known = kernels_by_cupti_.find(text); known != kernels_by_cupti_.end()) return known->second;
  if (text.empty() || kernel_bytes_ + text.size() > kProfiledNamesBytesMax) return nameless_;
  kernel_bytes_ += text.size();
  new_names_.push_back(text);
  return kernels_by_cupti_.emplace(std::move(text), names_numbered_++).first->second;
}

uint32_t GpuProfiler::number_of(const TimedWork& work) {
  if (work.kind != SpanKind::kernel) {
    auto [label, added] = labels_.try_emplace(work.call);
    if (added) label->second.text = plain_name(work.call);
    return number_of(label->second);
  }
  auto found = names_.find(work.kernel);
  if (found == names_.end()) {
    // Every kernel of a library got its name when the client requested it, so this is a function.
    const char* name = nullptr;
#if CUDA_VERSION >= 12030
    if (driver_.cuFuncGetName && driver_.cuFuncGetName(&name, work.kernel) != CUDA_SUCCESS) name = nullptr;
#endif
    name_function(work.kernel, name ? name : "");
    found = names_.find(work.kernel);
  }
  return number_of(found->second.text.empty() ? without_name_ : found->second);
}

uint64_t GpuProfiler::handle_of(CUstream stream) const {
  if (stream == nullptr || stream == CU_STREAM_LEGACY) return wire::kStreamNull;
  auto found = streams_.find(stream);
  return found == streams_.end() ? kOwnStream : found->second;
}

// --- around a call, on the executor --------------------------------------------------------------------------------

bool GpuProfiler::capturing(CUstream stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // While a capture forbids the legacy stream, its query returns an error, and no event may be recorded there either.
  return driver_.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

GpuProfiler::Context* GpuProfiler::current() {
  CUcontext native = nullptr;
  if (driver_.cuCtxGetCurrent(&native) != CUDA_SUCCESS || !native) return nullptr;
  if (last_ && last_->native == native) return last_;
  auto found = std::ranges::find(contexts_, native, &Context::native);
  if (found != contexts_.end()) return last_ = &*found;
  if (contexts_.size() >= kTimedContextsMax) return nullptr;
  MutexLock lock(mutex_);
  contexts_.emplace_front().native = native;
  return last_ = &contexts_.front();
}

bool GpuProfiler::take_pair(Context& context, Pair& pair) {
  {
    MutexLock lock(mutex_);
    if (context.failed || pending_ >= kTimedPendingMax) return false;
    if (!context.free.empty()) {
      std::tie(pair.start, pair.end) = context.free.back();
      context.free.pop_back();
      return true;
    }
  }
  if (driver_.cuEventCreate(&pair.start, CU_EVENT_DEFAULT) != CUDA_SUCCESS) return false;
  if (driver_.cuEventCreate(&pair.end, CU_EVENT_DEFAULT) == CUDA_SUCCESS) return true;
  driver_.cuEventDestroy_v2(pair.start);
  return false;
}

wire::message::ProfileSpan GpuProfiler::span_of(const TimedWork& work) {
  const Frame frame = frame_ ? frame_() : Frame{};
  return {.kind = uint32_t(work.kind),
          .name = number_of(work),
          .context = frame.context,
          .stream = handle_of(work.stream),
          .sequence = frame.sequence,
          .bytes = work.bytes};
}

WorkTimer::Pair GpuProfiler::before(const TimedWork& work) {
  Pair pair;
  if (!measuring_ || !on_executor() || capturing(work.stream)) return pair;
  if (cupti_ && cupti::Trace::records(work)) {
    cupti_->give(span_of(work));
    pair.where = cupti_.get();
    return pair;
  }
  Context* context = current();
  if (context) begin_anchor(*context);
  if (context && take_pair(*context, pair)) {
    if (driver_.cuEventRecord(pair.start, work.stream) == CUDA_SUCCESS) {
      pair.where = context;
      return pair;
    }
    MutexLock lock(mutex_);
    context->free.emplace_back(pair.start, pair.end);  // a stream of another context
  }
  MutexLock lock(mutex_);
  ++dropped_;
  return {};
}

void GpuProfiler::after(const TimedWork& work, const Pair& pair, bool done) {
  if (pair.where == cupti_.get()) {
    if (!cupti_->given(done)) return;
    MutexLock lock(mutex_);
    changed_.notify_one();
    return;
  }
  auto& context = *static_cast<Context*>(pair.where);
  const bool recorded = done && driver_.cuEventRecord(pair.end, work.stream) == CUDA_SUCCESS;
  Pending pending{.start = pair.start, .end = pair.end};
  if (recorded) pending.span = span_of(work);
  MutexLock lock(mutex_);
  if (!recorded) {
    context.free.emplace_back(pair.start, pair.end);
    dropped_ += done;
    return;
  }
  context.lanes[work.stream].pending.push_back(std::move(pending));
  if (pending_++ == 0) changed_.notify_one();
}

// --- the GPU's time by the clock -----------------------------------------------------------------------------------

// The event is recorded in an otherwise empty stream, so that the GPU reaches it at once. This cost occurs once a
// second.
void GpuProfiler::begin_anchor(Context& context) {
  const uint64_t now = clock_ns();
  if (context.asked_ns && now - context.asked_ns < ns(kAnchorAge)) return;
  Anchor anchor;
  {
    MutexLock lock(mutex_);
    if (context.failed || context.next.event) return;
    context.asked_ns = now;
    anchor.event = std::exchange(context.spare, nullptr);
  }
  if (!context.beside && driver_.cuStreamCreate(&context.beside, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS)
    context.beside = nullptr;
  if (!anchor.event && driver_.cuEventCreate(&anchor.event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) anchor.event = nullptr;
  anchor.before_ns = clock_ns();
  const bool recorded =
      context.beside && anchor.event && driver_.cuEventRecord(anchor.event, context.beside) == CUDA_SUCCESS;
  const uint64_t until = anchor.before_ns + ns(kAnchorSpin);
  CUresult result = CUDA_ERROR_NOT_READY;
  while (recorded && (result = driver_.cuEventQuery(anchor.event)) == CUDA_ERROR_NOT_READY && clock_ns() < until) {}
  if (recorded && result == CUDA_SUCCESS) anchor.after_ns = clock_ns();
  MutexLock lock(mutex_);
  if (!recorded) {
    context.spare = anchor.event;
    return;
  }
  context.next = anchor;
  if (anchor.after_ns) promote(context);
}

// The most precise value is used, until it is too old.
void GpuProfiler::promote(Context& context) {
  const Anchor& next = context.next;
  const Anchor& old = context.anchor;
  const bool better = !old.event || next.error_ns() <= std::max(ns(kAnchorErrorMax), old.error_ns()) ||
                      next.before_ns - old.before_ns > ns(kAnchorAgeMax);
  context.spare = better ? old.event : next.event;
  if (better) context.anchor = next;
  context.next = {};
}

// --- completed work, with the lock ---------------------------------------------------------------------------------

void GpuProfiler::drop(Context& context) {
  context.failed = true;
  for (auto& [stream, lane] : context.lanes) {
    dropped_ += lane.pending.size();
    pending_ -= lane.pending.size();
    for (Pending& pending : lane.pending) context.free.emplace_back(pending.start, pending.end);
    lane.pending.clear();
  }
}

bool GpuProfiler::take_times(const Context& context, Lane& lane, Pending& pending) {
  float to_start = 0, took = 0;
  const ElapsedTime elapsed = elapsed_time(driver_);
  if (elapsed(&to_start, context.anchor.event, pending.start) != CUDA_SUCCESS ||
      elapsed(&took, pending.start, pending.end) != CUDA_SUCCESS || !std::isfinite(to_start) || !std::isfinite(took))
    return false;
  constexpr double kNsInMs = 1e6;
  const double start = double(context.anchor.middle_ns()) + double(to_start) * kNsInMs;
  // The work of a stream is sequential, but times from different anchors may overlap by their error.
  pending.span.start_ns = std::max(start > 0 ? uint64_t(start) : 0, lane.last_end_ns);
  pending.span.end_ns = std::max(pending.span.start_ns, uint64_t(std::max(0.0, start + double(took) * kNsInMs)));
  lane.last_end_ns = pending.span.end_ns;
  return true;
}

// Queries the oldest work of each stream, until one is not done or `spans_max` are known; returns their number.
size_t GpuProfiler::collect(Context& context, size_t spans_max) {
  if (context.failed) return 0;
  if (context.next.event && !context.next.after_ns) {
    const CUresult result = driver_.cuEventQuery(context.next.event);
    if (result == CUDA_SUCCESS) {
      context.next.after_ns = clock_ns();
      promote(context);
    } else if (result != CUDA_ERROR_NOT_READY) {
      drop(context);
      return 0;
    }
  }
  if (!context.anchor.event) return 0;
  size_t known = 0;
  for (auto& [stream, lane] : context.lanes) {
    while (!lane.pending.empty() && known < spans_max) {
      Pending& oldest = lane.pending.front();
      const CUresult result = driver_.cuEventQuery(oldest.end);
      if (result == CUDA_ERROR_NOT_READY) break;
      if (result != CUDA_SUCCESS) {
        drop(context);
        return known;
      }
      if (take_times(context, lane, oldest)) {
        if (ready_.empty()) ready_since_ns_ = clock_ns();
        ready_.push_back(oldest.span);
        error_ns_ = std::max(error_ns_, context.anchor.error_ns());
      } else {
        ++dropped_;
      }
      context.free.emplace_back(oldest.start, oldest.end);
      lane.pending.pop_front();
      --pending_;
      ++known;
    }
  }
  if (context.lanes.size() > kTimedLanesKept)
    std::erase_if(context.lanes, [](const auto& lane) { return lane.second.pending.empty(); });
  return known;
}

void GpuProfiler::destroy(Context& context) {
  for (auto [start, end] : context.free) {
    driver_.cuEventDestroy_v2(start);
    driver_.cuEventDestroy_v2(end);
  }
  for (CUevent event : {context.anchor.event, context.next.event, context.spare})
    if (event) driver_.cuEventDestroy_v2(event);
  if (context.beside) driver_.cuStreamDestroy_v2(context.beside);
}

void GpuProfiler::context_ends(CUcontext native) {
  if (!begun_) return;
  last_ = nullptr;
  MutexLock lock(mutex_);
  auto found = std::ranges::find(contexts_, native, &Context::native);
  if (found == contexts_.end()) return;
  collect(*found, kTimedPendingMax);
  drop(*found);
  destroy(*found);
  contexts_.erase(found);
}

// --- telling -------------------------------------------------------------------------------------------------------

// Sends one notice with the ready spans; names are sent no later than the spans that use them. False: no span was
// ready.
bool GpuProfiler::send_ready() {
  std::vector<std::string> names;
  size_t bytes = 0;
  while (!new_names_.empty() && bytes < kNamesInNoticeBytes) {
    bytes += new_names_.front().size() + sizeof(uint64_t);
    names.push_back(std::move(new_names_.front()));
    new_names_.pop_front();
  }
  std::vector<wire::message::ProfileSpan> spans;
  if (new_names_.empty()) {
    const size_t count = std::min(ready_.size(), kSpansInNotice);
    spans.assign(ready_.begin(), ready_.begin() + std::ptrdiff_t(count));
    ready_.erase(ready_.begin(), ready_.begin() + std::ptrdiff_t(count));
  }
  if (names.empty() && spans.empty()) return false;
  timed_ +=
      uint64_t(std::ranges::count_if(spans, [](const auto& span) { return span.kind != uint32_t(SpanKind::method); }));
  wire::message::ProfileSpans message{
      .spans = spans, .first_name = names_sent_, .dropped = dropped_, .error_ns = error_ns_};
  names_sent_ += uint32_t(names.size());
  sending_ = true;
  mutex_.unlock();
  std::vector<std::string_view> texts(names.begin(), names.end());
  message.names = texts;
  notify::profile_spans(*outbox_, message);
  mutex_.lock();
  sending_ = false;
  sent_.notify_all();
  return true;
}

void GpuProfiler::collect_done() {
  for (Context& context : contexts_) {
    if (ready_.size() >= kSpansReadyMax) return;
    if (std::ranges::all_of(context.lanes, [](const auto& lane) { return lane.second.pending.empty(); }) &&
        !context.next.event)
      continue;
    driver_.cuCtxSetCurrent(context.native);
    collect(context, kProfilerPollSpans);
  }
}

// Collects CUPTI's present records, without the lock during CUPTI's call. False: there were none.
bool GpuProfiler::collect_records() {
  if (!cupti_ || ready_.size() >= kSpansReadyMax) return false;
  const uint64_t now = clock_ns();
  const bool last = giving_up_;
  const bool ask = last || (cupti_->awaited() != 0 && (at_once_ || now - asked_cupti_ns_ >= ns(kCuptiAsk)));
  if (!ask && !cupti_->any_filled()) return false;
  if (ask) asked_cupti_ns_ = now;
  mutex_.unlock();
  const cupti::Trace::Found found = cupti_->collect(ask, last);
  const uint64_t given_up = last ? cupti_->give_up() : 0;
  mutex_.lock();
  if (last) giving_up_ = false;
  dropped_ += found.without_times + given_up;
  error_ns_ = std::max(error_ns_, found.error_ns);
  if (ready_.empty()) ready_since_ns_ = now;
  for (const auto& piece : found.pieces) {
    ready_.push_back(piece.span);
    if (piece.name && piece.span.name == nameless_) ready_.back().name = number_of_kernel(piece.name);
  }
  return !found.pieces.empty();
}

// Waits until there may be work for this thread.
void GpuProfiler::wait_for_work(MutexLock& lock, bool progress) {
  auto wanted = [&]() REQUIRES(mutex_) { return stopping_ || at_once_ || !all_known() || !ready_.empty(); };
  if (progress) {  // lets a waiting thread take the lock
    mutex_.unlock();
    std::this_thread::yield();
    mutex_.lock();
  } else if (wanted()) {
    const bool soon = pending_ != 0 || at_once_ || !ready_.empty();
    changed_.wait_for(lock.native(), soon ? kProfilerPoll : kCuptiAsk);
  } else if (cupti_) {
    changed_.wait_for(lock.native(), kCuptiIdlePoll, wanted);
  } else {
    changed_.wait(lock.native(), wanted);
  }
}

void GpuProfiler::run() {
  if (driver_.cuThreadExchangeStreamCaptureMode) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    driver_.cuThreadExchangeStreamCaptureMode(&mode);
  }
  MutexLock lock(mutex_);
  while (!stopping_) {
    const size_t pending = pending_;
    collect_done();
    const bool progress = collect_records() || pending_ < pending;
    const bool full = ready_.size() >= kSpansInNotice;
    const bool old = !ready_.empty() && clock_ns() - ready_since_ns_ >= ns(kSpansHeld);
    // All spans that were ready when the end was requested are sent before the end is reported.
    while ((full || old || at_once_) && !stopping_ && send_ready()) {}
    if (at_once_ && all_known() && !giving_up_) {
      at_once_ = false;
      sent_.notify_all();
    }
    if (stopping_) break;
    wait_for_work(lock, progress);
  }
}

Profiler::Totals GpuProfiler::end() {
  MutexLock lock(mutex_);
  if (measuring_ && thread_.joinable()) {
    at_once_ = true;
    changed_.notify_one();
    sent_.wait_for(lock.native(), settings_.end_wait, [&]() REQUIRES(mutex_) { return !at_once_ || stopping_; });
    if (at_once_ || cupti_) {  // work that has not ended by now stays untimed
      if (at_once_)
        for (Context& context : contexts_) drop(context);
      at_once_ = true;
      giving_up_ = cupti_ != nullptr;
      changed_.notify_one();
      sent_.wait(lock.native(), [&]() REQUIRES(mutex_) { return !at_once_ || stopping_; });
    }
    sent_.wait(lock.native(), [&]() REQUIRES(mutex_) { return !sending_; });
  }
  const bool ends = std::exchange(measuring_, false) && cupti_;
  if (ends) {
    lock.unlock();  // CUPTI may call back
    cupti_->end();
    lock.lock();
  }
  return {.timed = timed_, .dropped = dropped_, .error_ns = error_ns_};
}

void GpuProfiler::stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  measuring_ = false;
}

}  // namespace gpuwire::server
