// Times of a session's work by CUPTI's activity records, each reported with the frame that started it.
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

// The executor announces the work that it is about to give the GPU (give, given); another thread asks CUPTI for the
// known records (collect). CUPTI numbers the driver's calls; a number of ours that is pushed around a call is reported
// with CUPTI's (external correlation), in any order with the records of the work itself.
class Trace {
 public:
  using Span = wire::message::ProfileSpan;

  // The result of collect().
  struct Found {
    struct Piece {
      Span span;
      const char* name = nullptr;  // of a kernel, by CUPTI; null: it says none
    };
    std::vector<Piece> pieces;
    uint64_t without_times = 0;  // work that has ended and of which CUPTI knows no times
    uint64_t error_ns = 0;       // work seems to have begun this long before its call
  };

  // Makes CUPTI record. Before there is work, and one at a time in a process. The error has CUPTI's answer and the
  // call.
  static tl::expected<std::unique_ptr<Trace>, std::string> begin(Library library);

  const std::string& name() const { return library_.name; }

  // Whether CUPTI makes records of such work: not of prefetching and uploads of graphs, nor of empty work.
  static bool records(const TimedWork& work);

  // Executor. Around a call: `span` has all but the times. The calls between the two are those of the driver.
  void give(const Span& span);
  // `done`: the driver took it. True: it is the first that is waited for.
  bool given(bool done);

  // The number of announced pieces of work without a record; less the records that CUPTI reports as dropped.
  uint64_t awaited() const;
  bool any_filled() const { return Buffers::of_process().any_filled(); }
  // One thread. `ask`: CUPTI hands over all complete buffers; `forced`: incomplete ones, too. The caller holds no lock
  // that the executor takes in a driver call.
  Found collect(bool ask, bool forced);
  // Nothing is waited for any more: how much it was.
  uint64_t give_up();

  // CUPTI records no more.
  void end();

 private:
  struct Given {
    Span span;
    uint64_t given_ns = 0;
    bool received = false;  // or not to be waited for
  };
  struct Record {
    uint32_t correlation = 0;
    uint64_t start_ns = 0, end_ns = 0;
    uint64_t bytes = 0;  // of a copy or memset
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
  bool ended_ = false;  // executor only

  mutable Mutex mutex_;
  // Their numbers follow each other.
  std::deque<Given> given_ GUARDED_BY(mutex_);
  // Of given_.front().
  uint64_t first_id_ GUARDED_BY(mutex_) = 1;
  // Of given_: not heard of.
  uint64_t awaited_ GUARDED_BY(mutex_) = 0;
  // Left given_ without having been heard of.
  uint64_t forgotten_ GUARDED_BY(mutex_) = 0;
  // CUPTI says so.
  uint64_t lost_records_ GUARDED_BY(mutex_) = 0;
  // Of CUPTI's correlations.
  std::unordered_map<uint32_t, uint64_t> ids_ GUARDED_BY(mutex_);
  // Of ids_, oldest first.
  std::deque<uint32_t> correlations_ GUARDED_BY(mutex_);
  // Their correlation is not known yet, or is no work of the session's.
  std::deque<Record> early_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::server::cupti
