// A whole client session and a whole worker session in one process, over connections that break where a seed says and are replaced.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client_stub/session/connected_session.hpp"
#include "protocol/link/link.hpp"
#include "server/worker/session/session.hpp"
#include "test/server/replay/fake_driver.hpp"

namespace gpuwire::simulation {

// Calls of the simulated program; the server's side of them is in server_calls.cpp. Each carries its number, and bulk that tells it.
enum class Ordinal : uint32_t {
  note = 900,    // posted or called: is written down
  echo = 901,    // called: the bulk comes back
  later = 902,   // called: a waiter thread answers with bulk of the number's
  notice = 903,  // posted: a CopyData notice with bulk of the number's
};

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
// The scenario whose calls are executed now.
void set_scene(Executed* executed, Verdict* verdict);

struct Scenario {
  uint64_t seed = 1;
  unsigned threads = 2;
  unsigned calls = 40;            // of each thread
  size_t bulk_bytes_max = 4096;
  uint64_t cut_bytes_max = 8000;  // a connection breaks after at most so many in one direction
  unsigned cuts = 20;             // connections that break; the next one lasts
  size_t piece_bytes_max = 0;
  unsigned delay_looks_max = 0;
  bool shared_memory = false;     // connections are rings in shared memory; pieces and delays are then theirs
  bool swallows = false;          // some connections do not break, but swallow what is sent from then on: only heartbeats find out
};
Scenario scenario_of(uint64_t seed);
std::string describe(const Scenario& scenario);

struct Outcome {
  std::string failure;  // empty: all was as without a cut
  unsigned cuts = 0;
  uint64_t bytes_sent_again = 0;
};
Outcome run(const Scenario& scenario);

// The simulated program: `threads` threads that call, post and check. Returns when they are done.
void run_program(client::Session& session, const Scenario& scenario, Verdict& verdict);

// Takes CopyData notices and checks them.
class Notices final : public client::NoticeHandler {
 public:
  explicit Notices(Verdict& verdict) : verdict_(verdict) {}
  void notice(wire::NoticeOrdinal ordinal, capnp::MessageReader& message) override;
  client::BulkSink bulk_for(wire::NoticeOrdinal ordinal, capnp::MessageReader& message, size_t bulk_bytes) override;
  void bulk_stored(wire::NoticeOrdinal ordinal, capnp::MessageReader& message, std::span<const std::byte> text) override;
  void ended(CUresult result, std::string_view reason) override;
  std::atomic<uint64_t> taken{0};

 private:
  Verdict& verdict_;
  std::vector<std::byte> sink_;
};

}  // namespace gpuwire::simulation
