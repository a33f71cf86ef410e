// Tracks a session's work in flight on its GPUs, and its age, by events behind the submissions that another thread
// polls.
#pragma once

#include <cuda.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "protocol/threads/mutex.hpp"
#include "server/driver_table.hpp"
#include "server/gate/estimates.hpp"
#include "server/gate/page/session_page.hpp"
#include "server/gate/sampling.hpp"
#include "server/gate/work.hpp"

namespace gpuwire::server {

// Reports its findings in the session's page. Events without timing cost the GPU nothing; none is ever recorded into a
// stream that is being captured.
//
// Two sides: threads that submit, with the work's context current, and the one polling thread (the gate's in-flight
// tracker thread), which changes its own current context as it likes.
class InFlightTracker {
 public:
  InFlightTracker(const DriverTable& driver, SessionPage& page) : driver_(driver), page_(page) {}

  // --- threads that submit -----------------------------------------------------------------------------------------
  // From now on the work counts as in flight. Each call is followed by submitted() or withdrawn().
  void submitting(const Work& work);
  // `done`: the driver has accepted the work.
  void submitted(const Work& work, bool done);
  void withdrawn() { submitted({}, false); }
  // Zero: the work may be submitted now; otherwise the time until the next attempt, unless progress is observed before.
  std::chrono::nanoseconds wait_for_room(const Work& work, std::chrono::nanoseconds bound);

  // Returns whether a capture is open, as far as known. Meanwhile every submission has to be counted, because no event
  // for the whole context can follow uncounted work.
  bool captures() const { return capture_count_.load(std::memory_order_relaxed) != 0; }
  // Returns whether the stream is being captured. Cheap while the session captures nothing.
  bool capturing(CUstream stream);
  // Wraps the driver's calls: a poll of the device by another thread would break a capture that begins meanwhile.
  CUresult begin_capture(CUstream stream, const std::function<CUresult()>& call);
  CUresult end_capture(CUstream stream, const std::function<CUresult()>& call);
  // Wraps the driver's call that destroys a stream: a capture that began there ends with the stream.
  CUresult end_stream(CUstream stream, const std::function<CUresult()>& call);
  void enter_context(CUcontext context);
  struct Ending {
    CUcontext native = nullptr;
    // Another context owns its events and memory, and continues to exist.
    bool outlived = false;
  };
  // Wraps a driver call that ends a context, without a lock: the call blocks while the context's kernels run, and
  // counts as in flight. `gone`, called with the call's result, returns whether the context has ceased to exist; then
  // the tracker drops its marks, whose events the driver has released.
  CUresult end_context(const Ending& ending, const std::function<CUresult()>& call,
                       const std::function<bool(CUresult)>& gone);

  // Called when the session begins or ends a wait at the gate: during the wait it wants the GPU although nothing is in
  // flight.
  void set_waiting(bool waiting);

  // --- the polling thread ---------------------------------------------------------------------------------------
  struct Poll {
    bool in_flight = false;
    // Something was seen done.
    bool progress = false;
    // The last of it.
    bool drained = false;
    bool waits_for_start = false;
    // Until work is expected to be done; negative: work is late.
    std::chrono::nanoseconds next{};
  };
  Poll poll();
  // Unmarked work may be in flight: the session counts as busy until mark_tail().
  void expect_tail();
  bool tail_expected();
  // Returns whether any mark is not done yet.
  bool marked();
  // Marks all work that the contexts have received so far.
  void mark_tail();
  // Returns whether any context has work left, as a poll of `sampling`. For the free regime, in which work is not
  // marked.
  bool sample(Sampling& sampling);

 private:
  struct Mark {
    CUevent event = nullptr;
    // In the order of the submissions, over all lanes.
    uint64_t number = 0;
    uint64_t key = 0;
    std::chrono::nanoseconds estimate{};
    // The estimate was learned.
    bool known = false;
  };
  struct Lane {  // of one stream, or a mark of all streams
    CUstream stream = nullptr;
    bool everything = false;
    std::deque<Mark> marks;
    // While the lane has marks: the last time when the completion of work before the lane's first mark was observed, on
    // any stream; the marked work may have waited for it. Later work does not count, so a stream of tiny kernels hides
    // no other stream's work.
    PageTime progress{};
  };
  // The work in flight of all contexts of a device: the device runs one of them at a time, so their work is one queue.
  struct Queue {
    CUdevice device = 0;
    size_t marks = 0;
    // Sum over the marks.
    std::chrono::nanoseconds estimated{};
    // Marks of work of an unknown kind.
    size_t unknown = 0;
    // The last time a completion was observed, or marks were added.
    PageTime progress{};
    // Steps of kStall without progress.
    unsigned stalled = 0;
    // Submissions that are admitted because of it.
    size_t stall_credit = 0;
    // The marks that this poll has found done.
    std::vector<Mark> done;

    void add(const Mark& mark, PageTime now);
    void remove(const Mark& mark);
  };
  struct Context {
    CUcontext native = nullptr;
    // Its device's queue; null: the context has never had a mark.
    Queue* queue = nullptr;
    std::vector<Lane> lanes;
    std::vector<CUevent> free;
    CUevent sample = nullptr;
    // In all lanes.
    size_t marks = 0;
    // Pinned; the device writes here when it begins.
    uint32_t* start_word = nullptr;
    CUdeviceptr start_address = 0;
    uint32_t start_asked = 0;
  };

  struct Capture {
    // Where it has begun.
    CUstream stream = nullptr;
    // The stream's.
    CUcontext context = nullptr;
  };
  struct Moved {  // the objects that are destroyed with a context
    std::list<Context> contexts;
    std::vector<Capture> captures;
  };

  std::list<PageTime>::iterator begin_ending(const Ending& ending, Moved& moved);
  void finish_ending(std::list<PageTime>::iterator entry, Moved& moved, bool gone);
  void give_back(std::list<Context>& contexts);
  Context* find(CUcontext native) REQUIRES(mutex_);
  Context* find_or_add(CUcontext native) REQUIRES(mutex_);
  Context* current() REQUIRES(mutex_);
  // The calling thread's current context is this one.
  Queue& queue_of(Context& context) REQUIRES(mutex_);
  bool mark(const Work& work) REQUIRES(mutex_);
  CUevent take_event(Context& context) REQUIRES(mutex_);
  void push(Context& context, CUstream stream, bool everything, Mark mark) REQUIRES(mutex_);
  size_t count_done(std::span<const CUevent> events) const;
  void collect(Context& context) REQUIRES(polling_, mutex_);
  std::chrono::nanoseconds next_end(PageTime now) const REQUIRES(mutex_);
  void learn(Queue& queue, PageTime now) REQUIRES(mutex_);
  void poll_for_start(PageTime now, bool progress) REQUIRES(mutex_);
  void begin_opening(const Work& work, PageTime now, bool fresh) REQUIRES(mutex_);
  bool ask_for_start(const Work& work) REQUIRES(mutex_);
  void started(PageTime when) REQUIRES(mutex_);
  Mark expectation(const Work& work, std::chrono::nanoseconds unknown) const REQUIRES(mutex_);
  bool in_flight() const REQUIRES(mutex_);
  void begin_burst(PageTime now) REQUIRES(mutex_);
  void count_busy(PageTime now) REQUIRES(mutex_);
  void end_burst(PageTime now) REQUIRES(mutex_);
  void update_quiet(PageTime now) REQUIRES(mutex_);
  PageTime lanes_progress(const std::list<Context>& contexts, const Queue* of) const REQUIRES(mutex_);
  void note_done(uint64_t least_number, PageTime now) REQUIRES(mutex_);
  PageTime least_progress() const REQUIRES(mutex_);
  void publish() REQUIRES(mutex_);
  bool is_capturing(CUstream stream) const REQUIRES(mutex_);
  CUcontext owner(CUstream stream) const;
  void count_captures() REQUIRES(mutex_);
  void forget_capture(CUstream stream) REQUIRES(mutex_);
  bool capture_open() REQUIRES(mutex_);
  bool mark_everything(bool only_busy) REQUIRES(mutex_);
  bool is_busy(CUevent event) const;

  // The table at the time when the gate was made: later wrappers of the driver's functions, such as a profiler, do not
  // see the gate's own events and fills.
  const DriverTable driver_;
  SessionPage& page_;
  // Held over a whole poll; a thread that ends a context takes it, so that no event is destroyed while it is polled.
  // Taken before mutex_.
  Mutex polling_;
  std::vector<CUevent> asked_ GUARDED_BY(polling_);
  // The size of captures_. A thread sees its own captures, and those that it has joined by later notifications:
  // relaxed.
  std::atomic<size_t> capture_count_{0};
  // Held over driver calls that do not wait for the device.
  Mutex mutex_;
  // At most kGateContextsMax.
  std::list<Context> contexts_ GUARDED_BY(mutex_);
  // One for each device that has had a mark; never removed.
  std::list<Queue> queues_ GUARDED_BY(mutex_);
  // For each call that ends a context, the time since which the context makes no progress.
  std::list<PageTime> endings_ GUARDED_BY(mutex_);
  // The captures that have begun and are not known to have ended.
  std::vector<Capture> captures_ GUARDED_BY(mutex_);
  Estimates estimates_ GUARDED_BY(mutex_);
  uint64_t marks_made_ GUARDED_BY(mutex_) = 0;
  // The newest progress of contexts_.
  PageTime lanes_progress_ GUARDED_BY(mutex_){};
  size_t submitting_ GUARDED_BY(mutex_) = 0;
  uint64_t submissions_ GUARDED_BY(mutex_) = 0, completions_ GUARDED_BY(mutex_) = 0;
  bool published_in_flight_ GUARDED_BY(mutex_) = false;
  bool tail_expected_ GUARDED_BY(mutex_) = false;
  // Some submitted work has neither a mark nor an event for the whole context behind it.
  bool unmarked_ GUARDED_BY(mutex_) = false;
  bool waiting_ GUARDED_BY(mutex_) = false;
  bool burst_ GUARDED_BY(mutex_) = false;
  // The last that a submission was made in.
  uint32_t opening_ GUARDED_BY(mutex_) = 0;
  // The context whose first work since then has not begun; null: none.
  CUcontext start_context_ GUARDED_BY(mutex_) = nullptr;
  // The last time.
  PageTime looked_ GUARDED_BY(mutex_){};
  // The time at which the burst's work first ran.
  PageTime began_ GUARDED_BY(mutex_){};
  // Up to here it is in busy_.
  PageTime counted_ GUARDED_BY(mutex_){};
  // Zero: not quiet.
  PageTime quiet_since_ GUARDED_BY(mutex_){};
  std::chrono::nanoseconds busy_ GUARDED_BY(mutex_){}, quiet_ GUARDED_BY(mutex_){};
};

}  // namespace gpuwire::server
