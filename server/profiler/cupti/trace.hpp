// Reports the times of a session's work from CUPTI's activity records, each with the frame that started the work.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/threads/mutex.hpp"
#include "server/profiler/cupti/buffers.hpp"
#include "server/profiler/cupti/library.hpp"
#include "server/profiler/timed_driver.hpp"
#include "wire/session_messages.hpp"

namespace gpuwire::server::cupti {

// The executor announces work before it submits the work to the GPU (give, given); another thread collects the present
// records from CUPTI (collect). CUPTI numbers the driver's calls. It reports a number that the worker pushes around a
// call together with its own number (external correlation), in any order relative to the records of the work itself.
class Trace {
 public:
  using Span = wire::message::ProfileSpan;

  // The result of collect().
  struct Found {
    struct Piece {
      Span span;
      // The name of a kernel, from CUPTI; null: unknown.
      const char* name = nullptr;
    };
    std::vector<Piece> pieces;
    // Completed work without times from CUPTI.
    uint64_t without_times = 0;
    // Work seems to have begun this long before its call.
    uint64_t error_ns = 0;
  };

  // Starts CUPTI's recording. Called before there is work; one trace at a time in a process. The error has CUPTI's
  // answer and the call.
  static tl::expected<std::unique_ptr<Trace>, std::string> begin(Library library);

  const std::string& name() const { return library_.name; }

  // Returns whether CUPTI records such work. It does not record prefetches, uploads of graphs and empty work.
  static bool records(const TimedWork& work);

  // Executor. Called before and after a driver call: `span` has everything but the times.
  void give(const Span& span);
  // `done`: the driver has accepted the work. True: the trace begins to wait.
  bool given(bool done);

  // Returns the number of announced pieces of work without a record, less the records that CUPTI reports as dropped.
  uint64_t awaited() const;
  bool any_filled() const { return Buffers::of_process().any_filled(); }
  // One thread. `ask`: makes CUPTI return all complete buffers; `forced`: also incomplete ones. The caller holds no
  // lock that the executor takes in a driver call.
  Found collect(bool ask, bool forced);
  // Stops waiting, and returns the amount of work without records.
  uint64_t give_up();

  // CUPTI records no more.
  void end();

 private:
  struct Given {
    Span span;
    uint64_t given_ns = 0;
    // Or no longer expected.
    bool received = false;
  };
  struct Record {
    uint32_t correlation = 0;
    uint64_t start_ns = 0, end_ns = 0;
    // The bytes of a copy or memset.
    uint64_t bytes = 0;
    const char* name = nullptr;
  };
  struct Link {
    uint32_t correlation = 0;
    uint64_t id = 0;
  };

  explicit Trace(Library library) : library_(std::move(library)) {}

  void read(const Buffers::Filled& buffer, std::vector<Record>& records, std::vector<Link>& links) const;
  Given* find(uint64_t id) REQUIRES(mutex_);
  void mark_received(Given& given) REQUIRES(mutex_);
  void link(const std::vector<Link>& links) REQUIRES(mutex_);
  bool resolve(const Record& record, uint64_t now_ns, Found& found) REQUIRES(mutex_);

  const Library library_;
  // Executor only.
  bool ended_ = false;

  mutable Mutex mutex_;
  // Their numbers follow each other.
  std::deque<Given> given_ GUARDED_BY(mutex_);
  // The number of given_.front().
  uint64_t first_id_ GUARDED_BY(mutex_) = 1;
  // The work in given_ for which no record has arrived.
  uint64_t awaited_ GUARDED_BY(mutex_) = 0;
  // Work that left given_ without a record.
  uint64_t forgotten_ GUARDED_BY(mutex_) = 0;
  // CUPTI says so.
  uint64_t lost_records_ GUARDED_BY(mutex_) = 0;
  // The work of CUPTI's correlations.
  std::unordered_map<uint32_t, uint64_t> ids_ GUARDED_BY(mutex_);
  // The keys of ids_, oldest first.
  std::deque<uint32_t> correlations_ GUARDED_BY(mutex_);
  // Records whose correlation is unknown so far, or belongs to no work of the session.
  std::deque<Record> early_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server::cupti
