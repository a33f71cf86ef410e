// Times a session's GPU work, by CUPTI or by pairs of events around it, and reports it to its client.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/mutex.hpp"
#include "server/driver_table.hpp"
#include "server/profiler/cupti/trace.hpp"
#include "server/profiler/limits.hpp"
#include "server/profiler/timed_driver.hpp"
#include "server/replay/call/profiler.hpp"
#include "wire/session_messages.hpp"

namespace gpuwire::server {

// The program's work is unchanged. If an event cannot be created or recorded (during a capture, in a failed context or
// stream, with too much pending work), the work is not timed. Unless it was only captured, it counts as dropped.
class GpuProfiler final : public Profiler, private WorkTimer {
 public:
  struct Settings {
    // Cupti::kAuto, cupti::kOff, or the library's path.
    std::string cupti = cupti::kOff;
    // The device is: no CUPTI knows it except a named one.
    bool software = false;
    // Logs a line in the server's log.
    std::function<void(std::string)> note;
    std::chrono::nanoseconds end_wait = kProfilerEndWait;
  };
  // `table` outlives this object. begin() inserts the profiler before the functions of `table` that give work.
  GpuProfiler(DriverTable& table, Settings settings) : table_(table), settings_(std::move(settings)) {}
  explicit GpuProfiler(DriverTable& table) : GpuProfiler(table, Settings()) {}
  ~GpuProfiler() override { stop(); }
  GpuProfiler(const GpuProfiler&) = delete;
  GpuProfiler& operator=(const GpuProfiler&) = delete;

  CUresult begin(HandleTable& handles, Outbox& outbox) override;
  void frames_from(std::function<Frame()> frame) override { frame_ = std::move(frame); }
  void name_function(const void* native, std::string_view name) override;
  void context_ends(CUcontext native) override;
  Totals end() override;
  uint64_t now_ns() const override;
  void stop() override;

 private:
  struct Pending {
    // But its times.
    wire::message::ProfileSpan span;
    CUevent start = nullptr, end = nullptr;
  };
  struct Lane {
    // In the order of the stream.
    std::deque<Pending> pending;
    uint64_t last_end_ns = 0;
  };
  struct Anchor {
    CUevent event = nullptr;
    // The GPU reached it between the two times; after_ns 0: unknown so far.
    uint64_t before_ns = 0, after_ns = 0;
    uint64_t error_ns() const { return (after_ns - before_ns) / 2; }
    uint64_t middle_ns() const { return before_ns + error_ns(); }
  };
  struct Context {
    CUcontext native = nullptr;
    // A stream for anchors only, which waits for no other stream.
    CUstream beside = nullptr;
    // Anchor.after_ns 0: none yet; next.event null: none is pending.
    Anchor anchor, next;
    // For the next one.
    CUevent spare = nullptr;
    // When the last one was begun.
    uint64_t asked_ns = 0;
    // No work is timed there any more.
    bool failed = false;
    std::unordered_map<CUstream, Lane> lanes;
    std::vector<std::pair<CUevent, CUevent>> free;
  };
  struct Name {
    std::string text;
    bool has_number = false;
    uint32_t number = 0;
  };

  // Returns why CUPTI is not used; empty: it is used.
  std::string begin_cupti();
  // Runs before the second thread starts, so without the lock.
  void log_method(std::string text) WITHOUT_LOCK_CHECK;
  wire::message::ProfileSpan span_of(const TimedWork& work);
  bool on_executor() const { return std::this_thread::get_id() == executor_; }
  Pair before(const TimedWork& work) override;
  void after(const TimedWork& work, const Pair& pair, bool done) override;
  bool capturing(CUstream stream) const;
  // Executor only. Finds a context without the lock, because no other thread adds or removes one.
  Context* current() WITHOUT_LOCK_CHECK;
  bool take_pair(Context& context, Pair& pair);
  void begin_anchor(Context& context);
  void promote(Context& context);
  uint32_t number_of(const TimedWork& work);
  uint32_t number_of(Name& name);
  uint64_t handle_of(CUstream stream) const;

  void drop(Context& context) REQUIRES(mutex_);
  size_t collect(Context& context, size_t spans_max) REQUIRES(mutex_);
  void collect_done() REQUIRES(mutex_);
  bool take_times(const Context& context, Lane& lane, Pending& pending) REQUIRES(mutex_);
  void destroy(Context& context) REQUIRES(mutex_);
  bool send_ready() REQUIRES(mutex_);
  bool collect_records() REQUIRES(mutex_);
  uint32_t number_of_kernel(const char* name) REQUIRES(mutex_);
  bool all_known() const REQUIRES(mutex_) { return pending_ == 0 && (!cupti_ || cupti_->awaited() == 0); }
  void wait_for_work(MutexLock& lock, bool progress) REQUIRES(mutex_);
  void run();

  DriverTable& table_;
  const Settings settings_;
  Outbox* outbox_ = nullptr;
  // Set by begin(), before there is a second thread; null: events measure.
  std::unique_ptr<cupti::Trace> cupti_;

  // Executor only.
  std::thread::id executor_;
  std::function<Frame()> frame_;
  // The most recent current context.
  Context* last_ = nullptr;
  bool begun_ = false;
  // Until end().
  bool measuring_ = false;
  // The names of functions and kernels.
  std::unordered_map<const void*, Name> names_;
  // The names of calls.
  std::unordered_map<const char*, Name> labels_;
  size_t name_bytes_ = 0;
  Name without_name_{"(kernel)"};
  // Its number, once it has one.
  uint32_t nameless_ GUARDED_BY(mutex_) = ~0u;
  // To the client's handles.
  std::unordered_map<const void*, uint64_t> streams_;

  Mutex mutex_;
  Condition changed_, sent_;
  // Only the executor adds and removes contexts, so it may keep a pointer without the mutex.
  std::list<Context> contexts_ GUARDED_BY(mutex_);
  size_t pending_ GUARDED_BY(mutex_) = 0;
  std::vector<wire::message::ProfileSpan> ready_ GUARDED_BY(mutex_);
  // Not reported yet.
  std::deque<std::string> new_names_ GUARDED_BY(mutex_);
  uint32_t names_sent_ GUARDED_BY(mutex_) = 0, names_numbered_ GUARDED_BY(mutex_) = 0;
  uint64_t ready_since_ns_ GUARDED_BY(mutex_) = 0;
  uint64_t timed_ GUARDED_BY(mutex_) = 0, dropped_ GUARDED_BY(mutex_) = 0, error_ns_ GUARDED_BY(mutex_) = 0;
  uint64_t asked_cupti_ns_ GUARDED_BY(mutex_) = 0;
  // Numbers of names that only CUPTI reports.
  std::unordered_map<std::string, uint32_t> kernels_by_cupti_ GUARDED_BY(mutex_);
  // The bytes of these names.
  size_t kernel_bytes_ GUARDED_BY(mutex_) = 0;
  // Ready spans are sent without waiting for more.
  bool at_once_ GUARDED_BY(mutex_) = false;
  // And times that are still unknown stay unknown.
  bool giving_up_ GUARDED_BY(mutex_) = false;
  bool sending_ GUARDED_BY(mutex_) = false;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace gpuwire::server
