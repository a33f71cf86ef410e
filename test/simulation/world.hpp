// A whole client session and a whole worker session in one process, over connections that break at places from a seed
// and are replaced.
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
// derived from it.
enum class Ordinal : uint32_t {
  note = 900,           // posted or called: the server records it
  echo = 901,           // called: the server returns the bulk
  later = 902,          // called: a waiter thread answers with bulk from the number
  notice = 903,         // posted: a CopyData notice with bulk from the number
  managed_write = 904,  // posted: a chunk of the managed memory that the program has changed
  managed_work = 905,   // posted: the device changes all of it
  managed_read = 906,   // called: reads a chunk of it
  capture_begin = 907,  // posted
  capture_node = 908,   // posted: adds to the capture
  capture_end = 909,    // called: a digest of the captured calls, in order
  callback = 910,       // posted: enqueues a host function of the program
  callback_done = 911,  // posted, out of turn: the program has run it
  drain = 912,          // called: the executor blocks in the driver until every host function has run
};

inline constexpr size_t kManagedChunks = 16, kManagedChunkBytes = 512;
inline constexpr size_t managed_chunk(uint64_t number) { return number % kManagedChunks; }
// The device's change of the memory.
void managed_work(uint64_t number, std::span<std::byte> memory);
uint64_t captured_with(uint64_t digest, uint64_t number);

// The number of bytes of bulk that a call with this number requests, and their values.
size_t answer_bytes(uint64_t number);
std::byte byte_of(uint64_t number, size_t offset);
void fill(uint64_t number, std::span<std::byte> out);
bool is_bulk_of(uint64_t number, std::span<const std::byte> bytes);

// The first failure; a scenario without one has passed.
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

// The calls that the server has executed, in order.
struct Executed {
  std::mutex mutex;
  std::vector<uint64_t> numbers;  // under mutex
};

server::CallTable server_calls();
// Set the scenario whose calls are executed now, and the driver for their host functions.
void set_scene(Executed* executed, Verdict* verdict);
void set_driver(test::FakeDriver* driver);
// Joins the stream's thread. Called between the session's end and the driver's.
void end_scene();

inline constexpr size_t kBulkBytesMax = 500'000;  // bound for a call in any scenario

// The kinds of connections.
enum class Road : uint8_t {
  simulated,      // streams inside the process
  shared_memory,  // rings, with pieces and delays of their own instead of those below
  tls,            // inside TLS, over sockets with a relay between them
  rdma,           // over a fabric inside the process
};

struct Scenario {
  uint64_t seed = 1;
  unsigned threads = 2;
  unsigned calls = 40;  // for each thread
  size_t bulk_bytes_max = 4096;
  uint64_t cut_bytes_max = 8000;  // a connection breaks after at most so many bytes in one direction
  unsigned cuts = 20;             // the number of connections that break; the next one lasts
  size_t piece_bytes_max = 0;
  unsigned delay_polls_max = 0;
  Road road = Road::simulated;
  bool sweeps = false;  // connections are cut at consecutive bytes, from sweep_from on
  uint64_t sweep_from = 0;
  bool doubles = false;  // sometimes two connections are made for one loss, and arrive in any order
  unsigned broker_crashes =
      0;  // the number of broker crashes while connections are lost; each next broker gets the reports again
  bool callbacks = false, managed = false, captures = false, forks = false;  // parts of the program
  bool swallows =
      false;  // some connections do not break, but drop all bytes from a point on: only heartbeats detect it
  unsigned fabric_breaks = 0;  // the number of fabric ends that fail, beside a connection that does not
};
Scenario scenario_of(uint64_t seed, Road road);
std::string describe(const Scenario& scenario);

struct Outcome {
  std::string failure;  // empty: everything was as without a cut
  unsigned cuts = 0;
  uint64_t bytes_sent_again = 0;
  std::vector<uint64_t> cut_at;  // the bytes in one direction after which connections have broken
};
Outcome run(const Scenario& scenario);

// The program's host functions: a thread of their own runs them in stream order, and answers.
class HostFunctions {
 public:
  ~HostFunctions() { stop(); }
  void start(client::Session& session, unsigned thread_number, Verdict& verdict);
  void reached(uint64_t callback) {
    std::lock_guard lock(mutex_);
    callbacks_.push_back(callback);
    changed_.notify_all();
  }
  // Returns when all host functions that the stream has reached are answered.
  void stop();
  uint64_t answered() const { return answered_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<uint64_t> callbacks_;  // under mutex_
  bool stopping_ = false;            // under mutex_
  uint64_t answered_ = 0;            // used by the thread; read after its join
  std::thread thread_;
};

// Runs the simulated program: `threads` threads that call, post and check, and check the bounds after each step.
// Returns at their end.
void run_program(client::Session& session, const Scenario& scenario, Verdict& verdict,
                 const std::function<void()>& each_step);

// Handles CopyData and HostCallback notices, and checks the former.
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
