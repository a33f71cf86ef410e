// A whole client session and a whole worker session in one process, over connections that break where a seed says and
// are replaced.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client_stub/session/connected_session.hpp"
#include "protocol/link/link.hpp"
#include "server/worker/session/session.hpp"
#include "test/server/replay/fake_driver.hpp"

namespace gpuwire::simulation {

// Calls of the simulated program; the server's side of them is in server_calls.cpp. Each carries its number, and bulk
// that tells it.
enum class Ordinal : uint32_t {
  note = 900,           // posted or called: is written down
  echo = 901,           // called: the bulk comes back
  later = 902,          // called: a waiter thread answers with bulk of the number's
  notice = 903,         // posted: a CopyData notice with bulk of the number's
  managed_write = 904,  // posted: a chunk of the memory that both sides have, which the program has changed
  managed_work = 905,   // posted: the device changes all of it
  managed_read = 906,   // called: a chunk of it
  capture_begin = 907,  // posted
  capture_node = 908,   // posted: into what is being captured
  capture_end = 909,    // called: a digest of what was captured, in its order
  callback = 910,       // posted: a host function of the program stands in the stream
  callback_done = 911,  // posted, out of turn: the program has run it
  drain = 912,          // called: the executor is kept in the driver until every host function has been run
};

inline constexpr size_t kManagedChunks = 16, kManagedChunkBytes = 512;
inline constexpr size_t managed_chunk(uint64_t number) { return number % kManagedChunks; }
// What the device does to the memory.
void managed_work(uint64_t number, std::span<std::byte> memory);
uint64_t captured_with(uint64_t digest, uint64_t number);

// How many bytes of bulk a call with this number asks for, and what they are.
size_t answer_bytes(uint64_t number);
std::byte byte_of(uint64_t number, size_t offset);
void fill(uint64_t number, std::span<std::byte> out);
bool is_bulk_of(uint64_t number, std::span<const std::byte> bytes);

// What went wrong first; a scenario without it has passed.
class Verdict {
 public:
  void fail(std::string what);
  std::string text() const;
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

 private:
  mutable std::mutex mutex_;
  std::string text_;  // under mutex_
  std::atomic<bool> failed_{false};
};

// What the server has executed, in order.
struct Executed {
  std::mutex mutex;
  std::vector<uint64_t> numbers;  // under mutex
};

server::CallTable server_calls();
// The scenario whose calls are executed now. `driver`: whose host functions they queue.
void set_scene(Executed* executed, Verdict* verdict);
void set_driver(test::FakeDriver* driver);
// Between the session's end and the driver's: the stream's thread is joined.
void end_scene();

inline constexpr size_t kBulkBytesMax = 500'000;  // of a call, in any scenario

// What connections are.
enum class Road : uint8_t {
  simulated,      // streams inside the process
  shared_memory,  // rings; of what is below, pieces and delays are then theirs
  tls,            // inside TLS, over sockets with something between them
  rdma,           // over a fabric inside the process
};

struct Scenario {
  uint64_t seed = 1;
  unsigned threads = 2;
  unsigned calls = 40;  // of each thread
  size_t bulk_bytes_max = 4096;
  uint64_t cut_bytes_max = 8000;  // a connection breaks after at most so many in one direction
  unsigned cuts = 20;             // connections that break; the next one lasts
  size_t piece_bytes_max = 0;
  unsigned delay_polls_max = 0;
  Road road = Road::simulated;
  bool sweeps = false;  // connections are cut at one byte after the other, from sweep_from on
  uint64_t sweep_from = 0;
  bool doubles = false;  // every now and then two connections are made for one loss, and arrive in any order
  unsigned broker_crashes =
      0;  // the broker is killed so often while connections are lost, and the next one is told again
  bool callbacks = false, managed = false, captures = false, forks = false;  // what the program does
  bool swallows =
      false;  // some connections do not break, but swallow what is sent from then on: only heartbeats find out
  unsigned fabric_breaks = 0;  // ends of a fabric that fail, beside a connection that does not
};
Scenario scenario_of(uint64_t seed, Road road);
std::string describe(const Scenario& scenario);

struct Outcome {
  std::string failure;  // empty: all was as without a cut
  unsigned cuts = 0;
  uint64_t bytes_sent_again = 0;
  std::vector<uint64_t> cut_at;  // after how many bytes in one direction connections have broken
};
Outcome run(const Scenario& scenario);

// The program's host functions: a thread of its own runs them, in the order in which the stream comes to them, and
// answers.
class HostFunctions {
 public:
  ~HostFunctions() { stop(); }
  void start(client::Session& session, unsigned thread_number, Verdict& verdict);
  void reached(uint64_t callback) {
    std::lock_guard lock(mutex_);
    callbacks_.push_back(callback);
    changed_.notify_all();
  }
  // Returns when all that were reached have been answered.
  void stop();
  uint64_t answered() const { return answered_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> callbacks_;  // under mutex_
  bool stopping_ = false;            // under mutex_
  uint64_t answered_ = 0;            // the thread's; read when it is joined
  std::thread thread_;
};

// The simulated program: `threads` threads that call, post and check, and look at the bounds after each step. Returns
// when they are done.
void run_program(client::Session& session, const Scenario& scenario, Verdict& verdict,
                 const std::function<void()>& each_step);

// Takes CopyData and HostCallback notices, and checks the former.
class Notices final : public client::NoticeHandler {
 public:
  Notices(Verdict& verdict, HostFunctions& functions) : verdict_(verdict), functions_(functions) {}
  void notice(wire::NoticeOrdinal ordinal, capnp::MessageReader& message) override;
  client::BulkSink bulk_for(wire::NoticeOrdinal ordinal, capnp::MessageReader& message, size_t bulk_bytes) override;
  void bulk_stored(wire::NoticeOrdinal ordinal, capnp::MessageReader& message,
                   std::span<const std::byte> text) override;
  void ended(CUresult result, std::string_view reason) override;
  std::atomic<uint64_t> taken{0};

 private:
  Verdict& verdict_;
  HostFunctions& functions_;
  std::vector<std::byte> sink_;
};

}  // namespace gpuwire::simulation
