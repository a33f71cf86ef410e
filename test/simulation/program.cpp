// The simulated program.
#include <cstring>

#include "client_stub/session/call.hpp"
#include "schema/session.capnp.h"
#include "test/simulation/world.hpp"

namespace gpuwire::simulation {

namespace {

using client::Bulk;
using client::BulkSink;

// One thread of the program. Numbers are its own: thread, then a count.
class Caller {
 public:
  Caller(client::Session& session, const Scenario& scenario, unsigned thread, Verdict& verdict)
      : session_(session), scenario_(scenario), random_(scenario.seed * 1000 + thread), next_(uint64_t(thread) << 32), verdict_(verdict) {}

  void run() {
    for (unsigned i = 0; i < scenario_.calls && !verdict_.failed(); ++i) step();
    check(call(Ordinal::note, ++next_, {}, {}), "the last call");
  }

 private:
  void step() {
    uint64_t number = ++next_;
    switch (random_() % 8) {
      case 0: return echo(number);
      case 1: return answered_later(number);
      case 2: return check(post(Ordinal::notice, number, {}), "a post that a notice answers");
      case 3: return posted_from_here(number);
      default: return noted(number);
    }
  }

  std::vector<std::byte> bulk(uint64_t number) {
    size_t most = random_() % 6 ? 200 : scenario_.bulk_bytes_max;
    std::vector<std::byte> bytes(random_() % (most + 1));
    fill(number, bytes);
    return bytes;
  }

  void noted(uint64_t number) {
    auto bytes = bulk(number);
    bool posted = random_() % 4 && bytes.size() <= wire::kPostedBulkBytesMax;
    Bulk with{.data = bytes.data(), .bytes = bytes.size()};
    std::function<void(size_t, std::span<std::byte>)> gather = [&](size_t offset, std::span<std::byte> out) { std::memcpy(out.data(), bytes.data() + offset, out.size()); };
    if (random_() % 3 == 0) with = {.bytes = bytes.size(), .gather = &gather};
    check(posted ? post(Ordinal::note, number, with) : call(Ordinal::note, number, with, {}), "a noted call");
    // The memory is the program's again.
    std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
  }

  // Memory that stays, until finish_sending() has returned.
  void posted_from_here(uint64_t number) {
    std::vector<std::byte> bytes(scenario_.bulk_bytes_max);
    fill(number, bytes);
    check(post(Ordinal::note, number, {.data = bytes.data(), .bytes = bytes.size(), .stays = true}), "a post from memory that stays");
    session_.finish_sending();
    std::fill(bytes.begin(), bytes.end(), std::byte{0xee});
  }

  void echo(uint64_t number) {
    auto bytes = bulk(number);
    std::vector<std::byte> back(bytes.size());
    check(call(Ordinal::echo, number, {.data = bytes.data(), .bytes = bytes.size()}, {back.data(), back.size()}), "an echo");
    if (!verdict_.failed() && back != bytes) verdict_.fail("the echo of call " + std::to_string(number) + " is wrong");
  }

  void answered_later(uint64_t number) {
    std::vector<std::byte> back(answer_bytes(number));
    check(call(Ordinal::later, number, {}, {back.data(), back.size()}), "a call that a waiter answers");
    if (!verdict_.failed() && !is_bulk_of(number, back)) verdict_.fail("the answer to call " + std::to_string(number) + " is wrong");
  }

  CUresult post(Ordinal ordinal, uint64_t number, const Bulk& bulk) {
    return client::post<schema::Source>(session_, uint32_t(ordinal), 0, client::message_words<schema::Source>(), [&](auto params) { params.setBytes(number); }, bulk);
  }
  CUresult call(Ordinal ordinal, uint64_t number, const Bulk& bulk, const BulkSink& sink) {
    return client::call<schema::Source, schema::Result>(
        session_, uint32_t(ordinal), 0, client::message_words<schema::Source>(), [&](auto params) { params.setBytes(number); }, [](auto) {}, bulk, sink);
  }
  void check(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) verdict_.fail(std::string(what) + " failed with " + std::to_string(int(result)));
  }

  client::Session& session_;
  const Scenario& scenario_;
  std::mt19937_64 random_;
  uint64_t next_;
  Verdict& verdict_;
};

}  // namespace

void run_program(client::Session& session, const Scenario& scenario, Verdict& verdict) {
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < scenario.threads; ++thread)
    threads.emplace_back([&, thread] { Caller(session, scenario, thread, verdict).run(); });
  for (auto& thread : threads) thread.join();
}

void Notices::notice(wire::NoticeOrdinal ordinal, capnp::MessageReader&) { verdict_.fail("notice " + std::to_string(int(ordinal)) + " that nothing asked for"); }

client::BulkSink Notices::bulk_for(wire::NoticeOrdinal, capnp::MessageReader&, size_t bulk_bytes) {
  sink_.resize(bulk_bytes);
  return {sink_.data(), sink_.size()};
}

void Notices::bulk_stored(wire::NoticeOrdinal, capnp::MessageReader& message, std::span<const std::byte>) {
  uint64_t number = message.getRoot<schema::CopyData>().getSequence();
  if (sink_.size() != answer_bytes(number) || !is_bulk_of(number, sink_)) verdict_.fail("the notice of call " + std::to_string(number) + " is wrong");
  ++taken;
}

void Notices::ended(CUresult, std::string_view reason) { verdict_.fail("the session ended: " + std::string(reason)); }

}  // namespace gpuwire::simulation
