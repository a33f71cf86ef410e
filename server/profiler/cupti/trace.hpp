// Times of a session's work by CUPTI's activity records, each told with the frame that gave it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include <tl/expected.hpp>

#include "server/profiler/cupti/buffers.hpp"
#include "server/profiler/cupti/library.hpp"
#include "server/profiler/timed_driver.hpp"
#include "wire/session_messages.hpp"

namespace gpuwire::server::cupti {

// The executor says what it is about to give the GPU (give, given); another thread asks CUPTI for what is known by now
// (collect). CUPTI numbers the driver's calls; a number of ours that is pushed around a call is told with CUPTI's
// (external correlation), in any order with the records of the work itself.
class Trace {
 public:
  using Span = wire::message::ProfileSpan;

  // What collect() has found.
  struct Found {
    struct Piece {
      Span span;
      const char* name = nullptr;  // of a kernel, by CUPTI; null: it says none
    };
    std::vector<Piece> pieces;
    uint64_t without_times = 0;  // work that has ended and of which CUPTI knows no times
    uint64_t error_ns = 0;       // so much before its call work seems to have begun
  };

  // Has CUPTI record. Before there is work, and one at a time in a process. The error says what CUPTI answered to which
  // call.
  static tl::expected<std::unique_ptr<Trace>, std::string> begin(Library library);

  const std::string& name() const { return library_.name; }

  // Whether CUPTI makes records of such work: not of prefetching and uploads of graphs, nor of what is empty.
  static bool records(const TimedWork& work);

  // Executor. Around a call: `span` has all but the times. The calls between the two are those of the driver.
  void give(const Span& span);
  // `done`: the driver took it. True: it is the first that is waited for.
  bool given(bool done);

  // How much work is given of which nothing has been heard; less what CUPTI says it has dropped.
  uint64_t awaited() const;
  bool any_filled() const { return Buffers::of_process().any_filled(); }
  // One thread. `ask`: CUPTI hands over all that is complete; `forced`: what is not, too. No lock is to be held that
  // the executor takes in a driver call.
  Found collect(bool ask, bool forced);
  // Nothing is waited for any more: how much it was.
  uint64_t give_up();

  // CUPTI records no more.
  void end();

 private:
  struct Given {
    Span span;
    uint64_t given_ns = 0;
    bool heard = false;  // or not to be waited for
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
  // With mutex_ held.
  Given* find(uint64_t id);
  void hear(Given& given);
  void link(const std::vector<Link>& links);
  bool resolve(const Record& record, uint64_t now_ns, Found& found);

  const Library library_;
  bool ended_ = false;  // executor only

  mutable std::mutex mutex_;
  // All under mutex_.
  std::deque<Given> given_;                     // their numbers follow each other
  uint64_t first_id_ = 1;                       // of given_.front()
  uint64_t awaited_ = 0;                        // of given_: not heard of
  uint64_t forgotten_ = 0;                      // left given_ without having been heard of
  uint64_t lost_records_ = 0;                   // CUPTI says so
  std::unordered_map<uint32_t, uint64_t> ids_;  // of CUPTI's correlations
  std::deque<uint32_t> correlations_;           // of ids_, oldest first
  std::deque<Record> early_;                    // their correlation is not known yet, or is no work of the session's
};

}  // namespace gpuwire::server::cupti
