#include "server/gate/gate.hpp"

#include <algorithm>

#include <sys/prctl.h>

#include "protocol/threads/polling.hpp"
#include "server/driver_table.hpp"
#include "server/gate/page/futex.hpp"
#include "server/gate/limits.hpp"

namespace gpuwire::server {

using std::chrono::nanoseconds;

namespace {

// The thread that the gate delays, and the depth of its exemptions.
thread_local const Gate* held_up_by = nullptr;
thread_local unsigned unasked = 0;

}  // namespace

Gate::Unasked::Unasked() { ++unasked; }
Gate::Unasked::~Unasked() { --unasked; }

Gate::Gate(GateParts parts) : parts_(parts), word_(&parts.page->gate), tracker_(*parts.driver, *parts.page) {
  thread_ = std::thread([this] { run(); });
}

void Gate::enter_executor() { held_up_by = this; }

bool Gate::held_up() const { return held_up_by == this && unasked == 0; }

// --- contexts that end ---------------------------------------------------------------------------------------------

bool Gate::primary_is_active(CUdevice device) const {
  unsigned flags = 0;
  int active = 0;
  return driver().cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active != 0;
}

CUcontext Gate::primary(CUdevice device) const {
  CUcontext context = nullptr;
  if (!primary_is_active(device) || driver().cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) return nullptr;
  driver().cuDevicePrimaryCtxRelease_v2(device);
  return context;
}

CUresult Gate::end(const InFlightTracker::Ending& ending, const std::function<CUresult()>& call,
                   const std::function<bool(CUresult)>& gone) {
  CUresult result = tracker_.end_context(ending, call, gone);
  if (parked_.load(std::memory_order_seq_cst)) call_meter();
  return result;
}

CUcontext Gate::context_of(CUgreenCtx green) const {
  CUcontext context = nullptr;
  return driver().cuCtxFromGreenCtx && driver().cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS ? context : nullptr;
}

// --- passing -------------------------------------------------------------------------------------------------------

Gate::Passage Gate::enter(const Work& work) {
  tail_ready_.store(true, std::memory_order_relaxed);
  // Work that is only recorded occupies no GPU.
  if (tracker_.capturing(work.stream)) return Passage::uncounted;
  bool asks = held_up();
  if (work.kind == WorkKind::transfer && work.bytes >= kLargeCopyBytes) {
    if (asks) budget(work.bytes);
    return Passage::uncounted;
  }
  for (;;) {
    GateWord word = read();
    // While a capture is open the tracker cannot mark work after its submission, so it counts every submission.
    if (word.unhindered() && !tracker_.captures()) {
      go_on(asks);
      return Passage::uncounted;
    }
    uint32_t seen = progress_.load(std::memory_order_relaxed);
    if (asks && word.closed()) {
      if (stopping_.load(std::memory_order_relaxed)) return Passage::refused;
      wait_open(word);
      continue;
    }
    nanoseconds wait = asks && word.bound().count() != 0 ? tracker_.wait_for_room(work, word.bound()) : nanoseconds{};
    if (wait > nanoseconds{}) {
      if (stopping_.load(std::memory_order_relaxed)) return Passage::refused;
      wait_progress(seen, wait);
      continue;
    }
    tracker_.submitting(work);
    // The GPU scheduler closes the gate, then reads whether work is in flight; this thread does it in the reverse
    // order. So one of the two sees the other's write.
    if (asks && read(std::memory_order_seq_cst).closed()) {
      tracker_.withdrawn();
      continue;
    }
    break;
  }
  go_on(asks);
  return Passage::counted;
}

void Gate::go_on(bool asks) {
  if (!asks || !stands_) return;
  stands_ = false;
  tracker_.set_waiting(false);
  parts_.page->waited_ns.fetch_add(uint64_t((page_now() - stands_since_).count()), std::memory_order_relaxed);
}

void Gate::leave(const Work& work, bool done) {
  tracker_.submitted(work, done);
  if (parked_.load(std::memory_order_seq_cst)) call_meter();
}

void Gate::wait_open(GateWord seen) {
  nanoseconds spin = seen.soon() ? kSoonSpin : nanoseconds{};
  if (!stands_) {
    stands_ = true;
    stands_since_ = page_now();
    parts_.page->waits.fetch_add(1, std::memory_order_relaxed);
    tracker_.set_waiting(true);
    ring();
    spin = kGateSpin;
  }
  if (parts_.cores >= kGateSpinCoresMin) {
    for (PageTime until = page_now() + spin; page_now() < until; relax()) {
      if (read().word != seen.word) return;
    }
  }
  futex_wait(parts_.page->gate, seen.word, kGateSleep);
}

void Gate::wait_progress(uint32_t seen, nanoseconds at_most) {
  at_bound_.store(true, std::memory_order_relaxed);
  if (parked_.load(std::memory_order_seq_cst)) call_meter();
  if (parts_.cores >= kGateSpinCoresMin) {
    for (PageTime until = page_now() + std::min(at_most, kRoomSpin); page_now() < until; relax()) {
      if (progress_.load(std::memory_order_relaxed) != seen) return;
    }
  } else {
    futex_wait(progress_, seen, std::min(at_most, kPollLong));
  }
  at_bound_.store(false, std::memory_order_relaxed);
}

void Gate::budget(uint64_t bytes) {
  PageTime now = page_now();
  PageTime until = now + copies_.take(bytes, parts_.page->copy_bytes_per_ms.load(std::memory_order_relaxed), now);
  while (now < until && !stopping_.load(std::memory_order_relaxed)) {
    futex_wait(progress_, progress_.load(std::memory_order_relaxed), std::min(until - now, kGateSleep));
    now = page_now();
  }
}

void Gate::ring() {
  parts_.page->rings.fetch_add(1, std::memory_order_release);
  if (parts_.doorbell < 0) return;
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = ::write(parts_.doorbell, &one, sizeof one);
}

void Gate::call_meter() {
  parts_.page->attention.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(parts_.page->attention);
}

// --- the session ---------------------------------------------------------------------------------------------------

void Gate::going_idle() {
  executor_idle_.store(true, std::memory_order_relaxed);
  parts_.page->idle_since.store(page_now().count(), std::memory_order_relaxed);
}

void Gate::woken() {
  executor_idle_.store(false, std::memory_order_relaxed);
  parts_.page->idle_since.store(0, std::memory_order_relaxed);
  if (read().unhindered() && parked_.load(std::memory_order_seq_cst)) call_meter();
}

Gate::Times Gate::times() const {
  const SessionPage& page = *parts_.page;
  auto relaxed = [](const auto& word) { return word.load(std::memory_order_relaxed); };
  return {nanoseconds(relaxed(page.busy_ns)), nanoseconds(relaxed(page.waited_ns)), relaxed(page.waits),
          !unhindered() || relaxed(page.submissions) > 0};
}

void Gate::interrupt() {
  stopping_.store(true, std::memory_order_relaxed);
  futex_wake(parts_.page->gate);
  futex_wake(progress_);
}

void Gate::stop() {
  if (!thread_.joinable()) return;
  word_.store(&open_, std::memory_order_relaxed);
  quit_.store(true, std::memory_order_relaxed);
  call_meter();
  thread_.join();
}

bool Gate::rest() {
  rest_.store(Rest::wanted, std::memory_order_release);
  call_meter();
  rest_.wait(Rest::wanted, std::memory_order_acquire);
  if (rest_.load(std::memory_order_acquire) == Rest::resting) return true;
  work_on();
  return false;
}

void Gate::work_on() {
  rest_.store(Rest::none, std::memory_order_release);
  call_meter();
}

// --- the in-flight tracker's thread --------------------------------------------------------------------------------

void Gate::run() {
  ::prctl(PR_SET_TIMERSLACK, 1ul, 0, 0, 0);  // ns; the default of 50 us is longer than the sleeps here
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  if (driver().cuThreadExchangeStreamCaptureMode) driver().cuThreadExchangeStreamCaptureMode(&mode);
  while (!quit_.load(std::memory_order_relaxed)) {
    const Rest rest = rest_.load(std::memory_order_acquire);
    if (rest == Rest::wanted || rest == Rest::resting) poll_resting(rest);
    else if (parts_.page->gate.load(std::memory_order_seq_cst) == 0) poll_free();
    else poll_metered();
  }
}

void Gate::poll_resting(Rest rest) {
  const uint32_t attention = parts_.page->attention.load(std::memory_order_acquire);
  if (rest == Rest::wanted) {
    rest_.store(all_done() ? Rest::resting : Rest::busy, std::memory_order_release);
    rest_.notify_one();
    return;
  }
  // Nothing is in flight, and no call of the session can change that: each opening and closing is answered at once.
  const uint32_t before = parts_.page->answered.exchange(attention, std::memory_order_acq_rel);
  if (before != attention && read().closed()) ring();
  sleep(attention, kParkedSleep);
}

// Whether all work has ended that the session's contexts have received so far, counted or not.
bool Gate::all_done() {
  tracker_.expect_tail();
  tracker_.mark_tail();
  for (unsigned polls = 0; polls < kRestPolls; ++polls) {
    const InFlightTracker::Poll poll = tracker_.poll();
    if (poll.drained && read().closed()) ring();
    if (!poll.in_flight) return true;
    std::this_thread::sleep_for(kPollCalm);
  }
  return false;
}

void Gate::poll_metered() {
  SessionPage& page = *parts_.page;
  uint32_t attention = page.attention.load(std::memory_order_acquire);
  GateWord word{page.gate.load(std::memory_order_seq_cst)};
  PageTime now = page_now();
  if (!metered_) {
    // The work submitted so far was not counted.
    metered_ = true;
    tail_since_ = now;
    tail_ready_.store(false, std::memory_order_relaxed);
    tracker_.expect_tail();
  }
  page.answered.store(attention, std::memory_order_release);
  bool patient = now - tail_since_ < kTailTimeout && !executor_idle_.load(std::memory_order_relaxed) &&
                 !tail_ready_.load(std::memory_order_relaxed);
  if (!patient && tracker_.tail_expected()) tracker_.mark_tail();

  parked_.store(true, std::memory_order_seq_cst);
  InFlightTracker::Poll poll = tracker_.poll();
  if (poll.in_flight) parked_.store(false, std::memory_order_relaxed);
  if (poll.progress || poll.drained) {
    progress_.fetch_add(1, std::memory_order_relaxed);
    if (at_bound_.load(std::memory_order_relaxed)) futex_wake(progress_);
  }
  if (word.closed() && !was_closed_) closed_at_ = now;
  was_closed_ = word.closed();
  if (poll.drained && word.closed()) ring();
  if (!poll.in_flight) return sleep(attention, kParkedSleep);
  bool eager = word.closed() || word.bound().count() != 0 || poll.waits_for_start;
  bool spins = parts_.cores >= kGateSpinCoresMin &&
               ((word.closed() && now - closed_at_ < kDrainSpin) || at_bound_.load(std::memory_order_relaxed));
  if (poll.next > kPollAhead) std::this_thread::sleep_for(std::min(poll.next - kPollAhead, kPollLong));
  else if (poll.next < -kAlone) std::this_thread::sleep_for(kPollLong);
  else if (!spins) std::this_thread::sleep_for(eager ? kPoll : kPollCalm);
}

void Gate::poll_free() {
  SessionPage& page = *parts_.page;
  uint32_t attention = page.attention.load(std::memory_order_acquire);
  page.answered.store(attention, std::memory_order_release);
  rests_ = rests_ || metered_;
  metered_ = was_closed_ = false;
  if (tracker_.tail_expected()) tracker_.mark_tail();
  if (tracker_.marked()) {
    // The thread polls older marks, and marks of work beside a capture, until they are done.
    parked_.store(false, std::memory_order_relaxed);
    rests_ = true;
    tracker_.poll();
    return sleep(attention, kPollLong);
  }
  if (rests_) {
    // The first sample after an idle time is delayed, as Sampling explains.
    rests_ = false;
    parked_.store(false, std::memory_order_relaxed);
    return sleep(attention, sampling_.begin());
  }
  parked_.store(true, std::memory_order_seq_cst);
  bool idle = !tracker_.sample(sampling_) && executor_idle_.load(std::memory_order_relaxed);
  quiet_samples_ = idle ? std::min(quiet_samples_ + 1, kSampleQuietMax) : 0;
  rests_ = quiet_samples_ == kSampleQuietMax;
  parked_.store(rests_, std::memory_order_relaxed);
  sleep(attention, rests_ ? kParkedSleep : sampling_.pause());
}

// A parked thread sleeps until it is woken; the time limit covers a missed wake-up.
void Gate::sleep(uint32_t attention, nanoseconds at_most) { futex_wait(parts_.page->attention, attention, at_most); }

}  // namespace gpuwire::server
