// Every generated call: from the program's arguments through the bytes of the frame to the driver, and back.
#include <doctest/doctest.h>

#include <cstdio>
#include <string>

#include "test/protocol/api/round_trip.hpp"

namespace gpuwire::test {
namespace {

constexpr uint64_t kSeed = 20261121;
constexpr unsigned kRoundsPerCall = 8;
constexpr unsigned kCorruptionsPerCall = 150;
constexpr unsigned kForgedRepliesPerCall = 40;
// Bounds on what one frame may make the server allocate, whatever it says. The largest list is kDataBytesMax, and some
// calls have three.
constexpr size_t kLargestAllocationBytes = 1 << 20;
constexpr size_t kAllocatedBytes = 16 << 20;

const std::vector<GeneratedCall>& calls() {
  static const std::vector<GeneratedCall> kCalls = generated_calls();
  return kCalls;
}

void check_survived(const Outcome& outcome) {
  CHECK_MESSAGE(outcome.unexpected.empty(), outcome.unexpected);
  CHECK(outcome.largest_allocation <= kLargestAllocationBytes);
  CHECK(outcome.allocated <= kAllocatedBytes);
}

// One word changed: any bits, a small number, one bit, or what a neighbour holds.
Words corrupted(Source& random, Words words) {
  uint64_t& word = words[random.bits() % words.size()];
  switch (random.bits() % 4) {
    case 0: word = random.bits(); break;
    case 1: word = random.bits() % 8; break;
    case 2: word ^= uint64_t(1) << random.bits() % 64; break;
    default: word = words[random.bits() % words.size()]; break;
  }
  return words;
}

TEST_CASE("every generated call brings its arguments to the driver and the driver's answers back") {
  MESSAGE("seed " << kSeed);
  CHECK(calls().size() > 150);
  for (const GeneratedCall& call : calls()) {
    INFO(std::string(call.name));
    for (unsigned round = 0; round < kRoundsPerCall; ++round) {
      World world(kSeed + round);
      world.run(call);
      CHECK(world.driver.function == call.name);
      CHECK(world.header.ordinal == call.ordinal);
      CHECK((world.header.kind == uint8_t(wire::FrameKind::posted)) == call.posted);
      CHECK(world.program.result == CUDA_SUCCESS);
      CHECK(world.program.reached);
      CHECK((world.program.expected.bytes() == world.driver.seen.bytes()));
      CHECK((world.program.got.bytes() == world.driver.gave.bytes()));
      check_survived(world.outcome);
    }
  }
}

TEST_CASE("a call that the driver refuses fails with the driver's result and leaves no handle behind") {
  for (const GeneratedCall& call : calls()) {
    INFO(std::string(call.name));
    World reference(kSeed), world(kSeed);
    world.driver.result = CUDA_ERROR_INVALID_IMAGE;
    world.run(call);
    check_survived(world.outcome);
    if (call.posted) {
      CHECK(world.outcome.posted_failure == CUDA_ERROR_INVALID_IMAGE);
    } else {
      CHECK(world.program.result == CUDA_ERROR_INVALID_IMAGE);
      // All handles that are left are those that the arguments needed: the server has as many.
      size_t on_server = 0;
      for (unsigned kind = 0; kind < wire::kHandleKinds; ++kind)
        on_server += world.server_handles(wire::HandleKind(kind));
      CHECK(world.client_handles() == on_server);
    }
  }
}

TEST_CASE("a called frame of a posted call is answered, and a posted frame of a called one is a fault") {
  for (const GeneratedCall& call : calls()) {
    INFO(std::string(call.name));
    World world(kSeed);
    world.run(call);
    Words request = world.request;
    World fresh(kSeed);
    Outcome outcome = fresh.replay(call, call.posted ? wire::FrameKind::called : wire::FrameKind::posted, request);
    if (call.posted) {
      CHECK(outcome.replied);
    } else {
      CHECK(outcome.fault);
    }
  }
}

TEST_CASE("a handle that was never given out is the call's failure and never reaches the driver") {
  for (const GeneratedCall& call : calls()) {
    INFO(std::string(call.name));
    World world(kSeed);
    world.run(call);
    if (world.program.expected.bytes().empty()) continue;
    World stranger(kSeed);  // its handle table is empty, so whatever handle the frame holds is unknown
    bool has_handle = world.request_has_handle();
    Outcome outcome = stranger.replay(call, wire::FrameKind(world.header.kind), world.request);
    check_survived(outcome);
    if (has_handle) CHECK(stranger.driver.function.empty());
  }
}

TEST_CASE("every truncation of every message is a fault or a failed call") {
  for (const GeneratedCall& call : calls()) {
    INFO(std::string(call.name));
    World world(kSeed + 1);
    world.run(call);
    Words request = world.request;
    for (size_t words = 0; words < request.size(); ++words) {
      check_survived(
          world.replay(call, wire::FrameKind(world.header.kind), Words(request.begin(), request.begin() + words)));
    }
  }
}

TEST_CASE("corrupted messages neither crash the replay nor make it allocate without bound") {
  MESSAGE("seed " << kSeed);
  for (const GeneratedCall& call : calls()) {
    INFO(std::string(call.name));
    World world(kSeed + 2);
    world.run(call);
    if (world.request.empty()) continue;
    Words request = world.request;
    Source random(kSeed + call.ordinal);
    for (unsigned i = 0; i < kCorruptionsPerCall; ++i) {
      Words words = corrupted(random, request);
      if (random.coin()) words = corrupted(random, words);
      check_survived(world.replay(call, wire::FrameKind(world.header.kind), words));
    }
  }
}

TEST_CASE("truncated and corrupted replies neither crash the client nor leave the call without a result") {
  for (const GeneratedCall& call : calls()) {
    if (call.posted) continue;
    INFO(std::string(call.name));
    World first(kSeed + 3);
    first.run(call);
    const Words reply = first.outcome.reply;
    CHECK(!reply.empty());
    Source random(kSeed + call.ordinal);
    for (unsigned i = 0; i < kForgedRepliesPerCall + reply.size(); ++i) {
      Words forged = i < reply.size() ? Words(reply.begin(), reply.begin() + i) : corrupted(random, reply);
      World world(kSeed + 3);
      world.forged_reply = &forged;
      world.run(call);
      check_survived(world.outcome);
    }
  }
}

}  // namespace
}  // namespace gpuwire::test
