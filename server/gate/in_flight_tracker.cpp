#include "server/gate/in_flight_tracker.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <iterator>

#include "server/driver_table.hpp"
#include "server/gate/limits.hpp"

namespace gpuwire::server {

using std::chrono::nanoseconds;

namespace {

constexpr size_t kLanesKept = 32;  // kept lanes without marks, whose streams may be used again
constexpr nanoseconds kUnknownWeight = 10us;

int64_t count(PageTime time) { return time.count(); }

bool refused_for_capture(CUresult result) {
  return result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

}  // namespace

// --- contexts and captures -----------------------------------------------------------------------------------------

InFlightTracker::Context* InFlightTracker::find(CUcontext native) {
  auto found = std::ranges::find(contexts_, native, &Context::native);
  return found == contexts_.end() ? nullptr : &*found;
}

InFlightTracker::Context* InFlightTracker::find_or_add(CUcontext native) {
  if (!native) return nullptr;
  if (Context* context = find(native)) return context;
  if (contexts_.size() >= kGateContextsMax) return nullptr;
  contexts_.emplace_back().native = native;
  return &contexts_.back();
}

InFlightTracker::Context* InFlightTracker::current() {
  CUcontext native = nullptr;
  return driver_.cuCtxGetCurrent(&native) == CUDA_SUCCESS ? find_or_add(native) : nullptr;
}

InFlightTracker::Queue& InFlightTracker::queue_of(Context& context) {
  if (context.queue) return *context.queue;
  CUdevice device = 0;
  driver_.cuCtxGetDevice(&device);
  auto found = std::ranges::find(queues_, device, &Queue::device);
  if (found == queues_.end()) found = queues_.insert(found, {.device = device});
  context.queue = &*found;
  return *context.queue;
}

void InFlightTracker::enter_context(CUcontext context) {
  MutexLock lock(mutex_);
  find_or_add(context);
}

// Hides the context from the polling thread: the driver destroys its events with it, so they must not be polled any
// more. The same applies to its captures, whose streams the call destroys.
std::list<PageTime>::iterator InFlightTracker::begin_ending(const Ending& ending, Moved& moved) {
  MutexLock looking(polling_);
  MutexLock lock(mutex_);
  PageTime now = page_now(), since = now;
  for (auto context = contexts_.begin(); context != contexts_.end();) {
    auto next = std::next(context);
    if (ending.native && context->native == ending.native) {
      for (const Lane& lane : context->lanes)
        std::ranges::for_each(lane.marks, [&](const Mark& mark) { context->queue->remove(mark); });
      moved.contexts.splice(moved.contexts.end(), contexts_, context);
    }
    context = next;
  }
  if (PageTime least = lanes_progress(moved.contexts, nullptr); least != PageTime{}) since = least;
  lanes_progress_ = lanes_progress(contexts_, nullptr);
  auto ends = [&](const Capture& capture) { return ending.native && capture.context == ending.native; };
  std::ranges::copy_if(captures_, std::back_inserter(moved.captures), ends);
  std::erase_if(captures_, ends);
  count_captures();
  auto entry = endings_.insert(endings_.end(), since);
  if (start_context_ && start_context_ == ending.native) started(now);
  if (!burst_) begin_burst(now);
  update_quiet(now);
  publish();
  return entry;
}

void InFlightTracker::finish_ending(std::list<PageTime>::iterator entry, Moved& moved, bool gone) {
  MutexLock lock(mutex_);
  endings_.erase(entry);
  PageTime now = page_now();
  if (gone) {
    for (const Context& context : moved.contexts) {
      for (const Lane& lane : context.lanes) {
        if (!lane.marks.empty()) note_done(lane.marks.front().number, now);
      }
    }
  } else {
    for (Context& context : moved.contexts) {
      for (const Lane& lane : context.lanes)
        std::ranges::for_each(lane.marks, [&](const Mark& mark) { context.queue->add(mark, now); });
    }
    contexts_.splice(contexts_.begin(), moved.contexts);
    captures_.insert(captures_.end(), moved.captures.begin(), moved.captures.end());
    count_captures();
  }
  lanes_progress_ = lanes_progress(contexts_, nullptr);
  publish();
}

void InFlightTracker::give_back(std::list<Context>& contexts) {
  for (Context& context : contexts) {
    for (Lane& lane : context.lanes) {
      for (Mark& mark : lane.marks) driver_.cuEventDestroy_v2(mark.event);
    }
    for (CUevent event : context.free) driver_.cuEventDestroy_v2(event);
    if (context.sample) driver_.cuEventDestroy_v2(context.sample);
    if (context.start_word) driver_.cuMemFreeHost(context.start_word);
  }
  contexts.clear();
}

CUresult InFlightTracker::end_context(const Ending& ending, const std::function<CUresult()>& call,
                                      const std::function<bool(CUresult)>& gone) {
  Moved moved;
  auto entry = begin_ending(ending, moved);
  if (ending.outlived) give_back(moved.contexts);
  CUresult result = call();
  finish_ending(entry, moved, gone(result));
  return result;
}

bool InFlightTracker::is_capturing(CUstream stream) const {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // While a capture forbids the legacy stream, its query returns an error, and no event may be recorded there either.
  return driver_.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool InFlightTracker::capturing(CUstream stream) {
  if (!captures()) return false;
  MutexLock lock(mutex_);
  // A capture spreads to other streams by events, so the tracker queries the stream itself.
  return !captures_.empty() && is_capturing(stream);
}

// A green context's stream belongs to the context that represents it, and ends with that context.
CUcontext InFlightTracker::owner(CUstream stream) const {
  CUcontext context = nullptr;
  CUgreenCtx green = nullptr;
  if (driver_.cuStreamGetGreenCtx && driver_.cuCtxFromGreenCtx &&
      driver_.cuStreamGetGreenCtx(stream, &green) == CUDA_SUCCESS && green &&
      driver_.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS)
    return context;
  if (driver_.cuStreamGetCtx && driver_.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS) return context;
  return driver_.cuCtxGetCurrent(&context) == CUDA_SUCCESS ? context : nullptr;
}

void InFlightTracker::count_captures() { capture_count_.store(captures_.size(), std::memory_order_relaxed); }

void InFlightTracker::forget_capture(CUstream stream) {
  std::erase_if(captures_, [&](const Capture& capture) { return capture.stream == stream; });
  count_captures();
}

// This is the last chance to mark the uncounted work: later submissions are marked one by one while the capture is
// open. So all submitted work has a mark, whichever streams the capture spreads to.
CUresult InFlightTracker::begin_capture(CUstream stream, const std::function<CUresult()>& call) {
  MutexLock lock(mutex_);
  CUcontext context = owner(stream);
  if (captures_.empty() && driver_.cuCtxRecordEvent) {
    CUcontext current = nullptr;
    driver_.cuCtxGetCurrent(&current);
    mark_everything(true);
    driver_.cuCtxSetCurrent(current);
    PageTime now = page_now();
    if (!burst_ && in_flight()) begin_burst(now);
    update_quiet(now);
    publish();
  }
  CUresult result = call();
  if (result == CUDA_SUCCESS) captures_.push_back({stream, context});
  count_captures();
  return result;
}

CUresult InFlightTracker::end_capture(CUstream stream, const std::function<CUresult()>& call) {
  MutexLock lock(mutex_);
  CUresult result = call();
  // A failure may leave the capture as it was (CUDA driver API, cuStreamEndCapture: another thread's, another
  // stream's).
  if (!is_capturing(stream)) forget_capture(stream);
  return result;
}

CUresult InFlightTracker::end_stream(CUstream stream, const std::function<CUresult()>& call) {
  if (!captures()) return call();
  MutexLock lock(mutex_);
  if (std::ranges::find(captures_, stream, &Capture::stream) == captures_.end()) {
    lock.unlock();
    return call();
  }
  // The lock is held over the call, too, so that no thread queries a stream that is being destroyed.
  CUresult result = call();
  // Other errors are those of a failed context, whose streams end all the same.
  if (!refused_for_capture(result)) forget_capture(stream);
  return result;
}

// Returns whether a poll of the device would break an open capture. It would not break an invalidated capture; but that
// capture may prevent such a poll until it is ended, so the tracker keeps it. The function ignores captures that have
// ended without a notification. The calling thread's current context changes.
bool InFlightTracker::capture_open() {
  bool open = false;
  std::erase_if(captures_, [&](const Capture& capture) {
    // In this thread the handle means another stream.
    if (capture.stream == CU_STREAM_PER_THREAD) return open = true, false;
    if (capture.context) driver_.cuCtxSetCurrent(capture.context);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (driver_.cuStreamIsCapturing(capture.stream, &status) != CUDA_SUCCESS) return true;
    open |= status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return status == CU_STREAM_CAPTURE_STATUS_NONE;
  });
  count_captures();
  return open;
}

// --- queues --------------------------------------------------------------------------------------------------------

void InFlightTracker::Queue::add(const Mark& mark, PageTime now) {
  if (marks++ == 0) progress = now;
  estimated += mark.estimate;
  unknown += !mark.known;
}

void InFlightTracker::Queue::remove(const Mark& mark) {
  --marks;
  estimated -= mark.estimate;
  unknown -= !mark.known;
}

// --- submissions ---------------------------------------------------------------------------------------------------

bool InFlightTracker::in_flight() const {
  return submitting_ != 0 || tail_expected_ || !endings_.empty() ||
         std::ranges::any_of(queues_, [](const Queue& queue) { return queue.marks != 0; });
}

void InFlightTracker::submitting(const Work& work) {
  MutexLock lock(mutex_);
  PageTime now = page_now();
  bool fresh = !in_flight();
  ++submitting_;
  if (!burst_) begin_burst(now);
  page_.submissions.store(++submissions_, std::memory_order_relaxed);
  uint32_t opening = page_.opening.load(std::memory_order_acquire);
  if (opening != opening_) {
    opening_ = opening;
    begin_opening(work, now, fresh);
  }
  update_quiet(now);
  publish();
}

void InFlightTracker::submitted(const Work& work, bool done) {
  MutexLock lock(mutex_);
  --submitting_;
  if (done && !mark(work)) tail_expected_ = unmarked_ = true;
  publish();
}

bool InFlightTracker::mark(const Work& work) {
  Context* context = current();
  if (!context || context->marks >= kMarksMax) return false;
  CUevent event = take_event(*context);
  if (!event) return false;
  if (driver_.cuEventRecord(event, work.stream) != CUDA_SUCCESS) {
    context->free.push_back(event);
    return false;
  }
  Mark mark = expectation(work, kUnknownWeight);
  mark.event = event;
  push(*context, work.stream, false, mark);
  return true;
}

CUevent InFlightTracker::take_event(Context& context) {
  CUevent event = nullptr;
  if (!context.free.empty()) {
    event = context.free.back();
    context.free.pop_back();
    return event;
  }
  return driver_.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS ? event : nullptr;
}

void InFlightTracker::push(Context& context, CUstream stream, bool everything, Mark mark) {
  auto lane = std::ranges::find_if(
      context.lanes, [&](const Lane& other) { return other.stream == stream && other.everything == everything; });
  if (lane == context.lanes.end()) {
    context.lanes.push_back({stream, everything, {}});
    lane = context.lanes.end() - 1;
  }
  PageTime now = page_now();
  mark.number = ++marks_made_;
  if (lane->marks.empty()) lane->progress = now;
  if (lanes_progress_ == PageTime{}) lanes_progress_ = now;
  queue_of(context).add(mark, now);
  ++context.marks;
  lane->marks.push_back(mark);
}

InFlightTracker::Mark InFlightTracker::expectation(const Work& work, nanoseconds unknown) const {
  Mark mark;
  mark.key = work.bytes ? key_of({work.key, uint64_t(std::bit_width(work.bytes))}) : work.key;
  auto learned = estimates_.find(mark.key);
  mark.known = learned || work.bytes;
  mark.estimate = learned      ? *learned
                  : work.bytes ? kCopyBase + nanoseconds(int64_t(double(work.bytes) / kCopyBytesPerNs))
                               : unknown;
  return mark;
}

nanoseconds InFlightTracker::wait_for_room(const Work& work, nanoseconds bound) {
  MutexLock lock(mutex_);
  Context* context = current();
  if (!context) return {};
  // A bound for each context would not bound a session with many contexts.
  Queue& queue = queue_of(*context);
  if (queue.marks == 0) return {};
  // The hardware gives each context with work a slice, so no other context is admitted beside stalled work in one
  // context, even if other work completes meanwhile. Work that waits for later work waits for work of its own context.
  if (context->marks == 0 && page_now() - lanes_progress(contexts_, &queue) > kStall) return kPollLong;
  nanoseconds still = page_now() - queue.progress;
  if (still > std::max(kStall, kStallEstimates * queue.estimated) * (queue.stalled + 1)) {
    queue.stalled = std::min(queue.stalled + 1, kStallStepsMax);
    queue.stall_credit = size_t(1) << queue.stalled;
  }
  if (queue.stall_credit != 0) {
    --queue.stall_credit;
    return {};
  }
  if (start_context_) still = {};  // none of it has run
  // The duration of a new kind of work is unknown; two submissions of it are enough to keep the GPU busy.
  if (queue.unknown >= 2) return kPollLong;
  nanoseconds expected = expectation(work, bound / 2).estimate;
  nanoseconds left = std::max(queue.estimated - still, nanoseconds{});
  bool late = still > queue.estimated + std::max(kOverlap, queue.estimated / 8) && still >= kAlone;
  if (late) return kPollLong;
  bool alone = expected >= kAlone || (queue.marks == 1 && queue.estimated >= kAlone);
  if (!alone && left + expected <= bound) return {};
  // A gap behind each long kernel costs some percent. If a higher class was active recently, its quick start is worth
  // more.
  bool overlaps = queue.marks == 1 && queue.unknown == 0 && (expected <= kShort || bound >= kOverlapBoundMin);
  if (overlaps && left <= kOverlap) return {};
  nanoseconds room = alone || expected > bound ? left - (overlaps ? kOverlap : nanoseconds{}) : left + expected - bound;
  return std::clamp(room, nanoseconds(5us), kPollLong);
}

// --- openings and bursts -------------------------------------------------------------------------------------------

void InFlightTracker::begin_opening(const Work& work, PageTime now, bool fresh) {
  if (fresh && ask_for_start(work)) return;
  started(now);
}

// An event on an empty stream completes before the context has the GPU, and a stream memory operation about 0.1 ms
// before; the compute engine itself executes a fill (measured).
bool InFlightTracker::ask_for_start(const Work& work) {
  // A capture may forbid to allocate.
  if (!captures_.empty()) return false;
  Context* context = current();
  if (!context || !driver_.cuMemsetD32Async) return false;
  if (!context->start_word) {
    void* memory = nullptr;
    if (driver_.cuMemHostAlloc(&memory, sizeof(uint32_t), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP) !=
        CUDA_SUCCESS)
      return false;
    context->start_word = static_cast<uint32_t*>(memory);
    std::atomic_ref(*context->start_word).store(context->start_asked, std::memory_order_relaxed);
    if (driver_.cuMemHostGetDevicePointer_v2(&context->start_address, memory, 0) != CUDA_SUCCESS) return false;
  }
  if (driver_.cuMemsetD32Async(context->start_address, ++context->start_asked, 1, work.stream) != CUDA_SUCCESS)
    return false;
  start_context_ = context->native;
  return true;
}

void InFlightTracker::started(PageTime when) {
  start_context_ = nullptr;
  began_ = counted_ = when;
  page_.first_start.store(count(when), std::memory_order_relaxed);
  page_.started.store(opening_, std::memory_order_release);
}

void InFlightTracker::begin_burst(PageTime now) {
  burst_ = true;
  began_ = counted_ = now;
  page_.bursts.fetch_add(1, std::memory_order_relaxed);
}

void InFlightTracker::count_busy(PageTime now) {
  if (!burst_ || start_context_) return;
  busy_ += now - counted_;
  counted_ = now;
}

void InFlightTracker::end_burst(PageTime now) {
  if (start_context_) started(began_);
  count_busy(now);
  burst_ = false;
  completions_ = submissions_;  // including those without their own mark
  page_.last_end.store(count(now), std::memory_order_relaxed);
}

void InFlightTracker::update_quiet(PageTime now) {
  bool quiet = !burst_ && !waiting_;
  if (quiet == (quiet_since_ != PageTime{})) return;
  if (!quiet) quiet_ += now - quiet_since_;
  quiet_since_ = quiet ? now : PageTime{};
}

void InFlightTracker::set_waiting(bool waiting) {
  MutexLock lock(mutex_);
  waiting_ = waiting;
  update_quiet(page_now());
  publish();
  page_.waiting.store(waiting, std::memory_order_relaxed);
}

// Returns the least progress time of the lanes with marks; zero: none has any. `of`: only this queue; null: all.
PageTime InFlightTracker::lanes_progress(const std::list<Context>& contexts, const Queue* of) const {
  PageTime least{};
  for (const Context& context : contexts) {
    if (context.marks == 0 || (of && context.queue != of)) continue;
    for (const Lane& lane : context.lanes) {
      if (!lane.marks.empty() && (least == PageTime{} || lane.progress < least)) least = lane.progress;
    }
  }
  return least;
}

// Called when the mark of this number, and perhaps later marks, are done: work that was submitted later may have waited
// for them.
void InFlightTracker::note_done(uint64_t least_number, PageTime now) {
  for (Context& context : contexts_) {
    for (Lane& lane : context.lanes) {
      if (!lane.marks.empty() && least_number < lane.marks.front().number) lane.progress = now;
    }
  }
}

PageTime InFlightTracker::least_progress() const {
  PageTime least = lanes_progress_;
  for (const PageTime ending : endings_) least = least == PageTime{} ? ending : std::min(least, ending);
  return least;
}

void InFlightTracker::publish() {
  nanoseconds estimated{};
  for (const Queue& queue : queues_) estimated += queue.estimated;
  page_.in_flight_ns.store(uint64_t(estimated.count()), std::memory_order_relaxed);
  page_.busy_ns.store(uint64_t(busy_.count()), std::memory_order_relaxed);
  page_.completions.store(completions_, std::memory_order_relaxed);
  page_.quiet_ns.store(uint64_t(quiet_.count()), std::memory_order_relaxed);
  page_.quiet_since.store(count(quiet_since_), std::memory_order_relaxed);
  page_.stuck_since.store(start_context_ ? 0 : count(least_progress()), std::memory_order_relaxed);
  if (burst_ == published_in_flight_) return;
  published_in_flight_ = burst_;
  page_.in_flight.store(burst_, std::memory_order_seq_cst);
}

// --- looking -------------------------------------------------------------------------------------------------------

// A stream's work ends in order, and a query costs over a microsecond, so the function queries few marks.
size_t InFlightTracker::count_done(std::span<const CUevent> events) const {
  // A failed context answers with its error: none of its work is in flight any more.
  auto done = [&](size_t index) { return driver_.cuEventQuery(events[index]) != CUDA_ERROR_NOT_READY; };
  size_t known = 0, step = 1, size = events.size();
  while (known + step <= size && done(known + step - 1)) known += step, step *= 2;
  // The next `step` marks are not all done, or there are fewer.
  size_t open = std::min(known + step, size + 1);  // not all of that many are done
  while (open - known > 1) {
    size_t middle = known + (open - known) / 2;
    if (done(middle - 1)) known = middle;
    else open = middle;
  }
  return known;
}

// Polls without the lock, so that no submitting thread waits meanwhile. polling_ keeps events and lanes in place: lanes
// only grow at their end.
void InFlightTracker::collect(Context& context) {
  for (size_t index = 0; index < context.lanes.size(); ++index) {
    asked_.clear();
    for (const Mark& mark : context.lanes[index].marks) asked_.push_back(mark.event);
    if (asked_.empty()) continue;
    mutex_.unlock();
    size_t done = count_done(asked_);
    mutex_.lock();
    for (Lane& lane = context.lanes[index]; done != 0; --done) {
      Mark& mark = lane.marks.front();
      context.free.push_back(mark.event);
      context.queue->remove(mark);
      --context.marks;
      // A sample may have ended the burst while this mark was outstanding, and have counted the burst.
      completions_ = std::min(completions_ + (mark.key != 0), submissions_);
      context.queue->done.push_back(mark);
      lane.marks.pop_front();
    }
  }
  if (context.lanes.size() > kLanesKept)
    std::erase_if(context.lanes, [](const Lane& lane) { return lane.marks.empty(); });
}

void InFlightTracker::learn(Queue& queue, PageTime now) {
  nanoseconds took = now - queue.progress;
  queue.progress = now;
  queue.stalled = 0;
  queue.stall_credit = 0;
  nanoseconds expected{};
  for (const Mark& mark : queue.done) expected += mark.key ? mark.estimate : nanoseconds{};
  // The time of a mark for a whole context does not measure one kind of work.
  bool everything = std::ranges::any_of(queue.done, [](const Mark& mark) { return mark.key == 0; });
  if (everything || expected <= nanoseconds{} || took <= nanoseconds{}) return;
  for (const Mark& mark : queue.done) {
    estimates_.learn(mark.key, nanoseconds(int64_t(double(took.count()) * double(mark.estimate.count()) /
                                                   double(expected.count()))));
  }
}

void InFlightTracker::poll_for_start(PageTime now, bool progress) {
  if (!start_context_) return;
  Context* context = find(start_context_);
  bool begun =
      !context || std::atomic_ref(*context->start_word).load(std::memory_order_acquire) == context->start_asked;
  if (!begun && !progress) return;
  // The work began and completed between two polls, so it cannot have begun before the last poll.
  PageTime when = progress ? std::max(looked_, began_) : now;
  started(when);
  for (Queue& queue : queues_) queue.progress = std::max(queue.progress, when);
  for (Context& other : contexts_) {
    for (Lane& lane : other.lanes) lane.progress = std::max(lane.progress, when);
  }
}

InFlightTracker::Poll InFlightTracker::poll() {
  MutexLock looking(polling_);
  MutexLock lock(mutex_);
  Poll poll;
  for (Queue& queue : queues_) queue.done.clear();
  for (Context& context : contexts_) {
    if (context.marks == 0) continue;
    driver_.cuCtxSetCurrent(context.native);
    collect(context);
  }
  poll.progress = std::ranges::any_of(queues_, [](const Queue& queue) { return !queue.done.empty(); });
  PageTime now = page_now();
  poll_for_start(now, poll.progress);
  uint64_t least_done = UINT64_MAX;
  for (Queue& queue : queues_) {
    for (const Mark& mark : queue.done) least_done = std::min(least_done, mark.number);
    if (!queue.done.empty()) learn(queue, now);
  }
  if (poll.progress) note_done(least_done, now);
  lanes_progress_ = lanes_progress(contexts_, nullptr);
  count_busy(now);
  if (burst_ && !in_flight()) {
    end_burst(now);
    poll.drained = true;
  }
  looked_ = now;
  update_quiet(now);
  publish();
  poll.in_flight = burst_;
  poll.waits_for_start = start_context_ != nullptr;
  poll.next = next_end(now);
  return poll;
}

nanoseconds InFlightTracker::next_end(PageTime now) const {
  nanoseconds next = nanoseconds::max();
  for (const Context& context : contexts_) {
    for (const Lane& lane : context.lanes) {
      if (!lane.marks.empty()) next = std::min(next, lane.marks.front().estimate - (now - context.queue->progress));
    }
  }
  return next;
}

void InFlightTracker::expect_tail() {
  MutexLock lock(mutex_);
  PageTime now = page_now();
  tail_expected_ = true;
  if (!burst_) begin_burst(now);
  update_quiet(now);
  publish();
}

bool InFlightTracker::tail_expected() {
  MutexLock lock(mutex_);
  return tail_expected_;
}

bool InFlightTracker::marked() {
  MutexLock lock(mutex_);
  return least_progress() != PageTime{};
}

void InFlightTracker::mark_tail() {
  MutexLock lock(mutex_);
  // An event for the whole context would break an open capture. The tracker recorded such an event before the capture,
  // and has marked all later work, unless no marks were left: that work counts as in flight until the capture has
  // ended.
  if (!driver_.cuCtxRecordEvent || (!capture_open() && mark_everything(false))) unmarked_ = false;
  tail_expected_ = unmarked_;
  publish();
}

// Records an event behind all work of the contexts; `only_busy`: not in a context that is quickly found idle. The
// calling thread's current context changes. False: a capture prevented the event.
bool InFlightTracker::mark_everything(bool only_busy) {
  bool marked = true;
  for (Context& context : contexts_) {
    driver_.cuCtxSetCurrent(context.native);
    CUevent event = take_event(context);
    if (!event) continue;
    const CUresult recorded = driver_.cuCtxRecordEvent(context.native, event);
    marked &= !refused_for_capture(recorded);
    // If one context has work in flight, the others probably have, too, so they get their events without a check.
    if (recorded == CUDA_SUCCESS && (!only_busy || is_busy(event))) {
      push(context, nullptr, true, {.event = event, .known = true});
      only_busy = false;
    } else {
      context.free.push_back(event);
    }
  }
  return marked;
}

bool InFlightTracker::is_busy(CUevent event) const {
  const PageTime until = page_now() + kSamplePoll;
  while (driver_.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
    if (page_now() > until) return true;
  }
  return false;
}

bool InFlightTracker::sample(Sampling& sampling) {
  MutexLock lock(mutex_);
  const bool was_busy = burst_;
  bool busy = was_busy;  // polling is impossible while a capture is open: unchanged
  if (!capture_open() && driver_.cuCtxRecordEvent) {
    busy = !endings_.empty();
    for (Context& context : contexts_) {
      driver_.cuCtxSetCurrent(context.native);
      if (!context.sample && driver_.cuEventCreate(&context.sample, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) continue;
      CUresult recorded = driver_.cuCtxRecordEvent(context.native, context.sample);
      if (refused_for_capture(recorded)) busy |= was_busy;  // an invalidated capture that is not ended may prevent it
      if (recorded == CUDA_SUCCESS) busy = busy || is_busy(context.sample);
    }
  }
  PageTime now = page_now();
  nanoseconds stands_for = sampling.stands_for(now);
  if (busy) busy_ += stands_for;
  counted_ = now;
  if (busy && !burst_) begin_burst(now);
  if (!busy && burst_) end_burst(now);
  update_quiet(now);
  publish();
  return burst_;
}

}  // namespace gpuwire::server
