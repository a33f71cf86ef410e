// Memory that earlier runs of a program have allocated: its stored profile, and its prefetch.
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/warm_start/profiled_allocations.hpp"

#include <string>
#include <vector>

#include "client/forward.hpp"
#include "client_stub/driver/state/memory/profiled_demand.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "test/client_stub/driver/state/memory/keeping.hpp"
#include "test/client_stub/driver/state/warm_start/warm_start_user.hpp"

namespace gpuwire::client {
namespace {

using namespace std::chrono_literals;
using Sizes = std::vector<uint64_t>;

constexpr uint64_t kMiB = 1 << 20, kLarge = 40 * kMiB;
static_assert(kLarge > CachedMemory::kBlockBytesMax);
constexpr SubjectDigest kProgram{7};

struct User : test::WarmStartUser {
  User() : WarmStartUser("memory") {}

  ProfiledAllocations known() const { return ProfiledAllocations(store(kProgram)); }
};

// A run of the program that allocates these, on device 0.
struct Run : Keeping {
  explicit Run(const Sizes& sizes = {}, const char* prefetch = "on", const char* wish = "64MiB")
      : Keeping(wish, prefetch) {
    for (uint64_t bytes : sizes) allocate(bytes);
  }

  static void end() { test::server_session().end(); }
  size_t asks() const { return session->count(kAllocateKnown); }
  size_t waits() const { return session->count(test::kMemAlloc); }
};

void run_once(const Sizes& sizes) { Run{sizes}; }

}  // namespace

// --- what is written down ------------------------------------------------------------------------------------------

TEST_CASE("A run's allocations are known to the next one, by device, in order, each as often as it was made") {
  User user;
  {
    ProfiledAllocations first = user.known();
    CHECK(first.awaited(0).empty());
    for (uint64_t bytes : {kMiB, kLarge, kMiB}) first.used(0, bytes);
    first.used(1, 2 * kMiB);
  }
  CHECK(user.text() == "0 1048576 1\n0 41943040 1\n0 1048576 2\n1 2097152 1\n");
  ProfiledAllocations next = user.known();
  CHECK(next.awaited(0) == Sizes{kMiB, kLarge, kMiB});
  CHECK(next.awaited(1) == Sizes{2 * kMiB});
  CHECK(next.awaited(2).empty());
  next.used(0, kMiB);
  CHECK(next.awaited(0) == Sizes{kLarge, kMiB});
  next.used(0, 3 * kMiB);
  CHECK(next.awaited(0) == Sizes{kLarge, kMiB});
  CHECK(user.known().awaited(0) == Sizes{kMiB, kLarge, kMiB, 3 * kMiB});
}

TEST_CASE("A program of one block needs no file, and processes that run at the same time write the same lines") {
  User user;
  ProfiledAllocations one = user.known(), other = user.known();
  one.used(0, kMiB);
  CHECK(user.files().empty());
  one.used(0, kMiB);
  other.used(0, kMiB);
  other.used(0, kMiB);
  CHECK(user.known().awaited(0) == Sizes{kMiB, kMiB});
}

TEST_CASE("Profiled blocks of a device are bounded in number and bytes, and unreadable lines are skipped") {
  User user;
  {
    ProfiledAllocations first = user.known();
    first.used(0, kMiB);
    first.used(0, kMiB);
  }
  const auto file = user.file();
  auto known_of = [&](const std::string& text) {
    user.write(file, text, std::ios::trunc);
    return user.known().awaited(0);
  };
  for (const char* nothing :
       {"", "\n", "0\n", "0 1048576\n", "0 1048576 \n", "0 1048576 0\n", "0 0 1\n", "0 1048576 1 1\n", "0 -5 1\n",
        " 0 1048576 1\n", "0  1048576 1\n", "64 1048576 1\n", "0 1048576 65\n", "0 1073741825 1\n", "0 1048576 1",
        "0 99999999999999999999 1\n", "library x y\n"})
    CHECK(known_of(nothing).empty());
  CHECK(known_of("0 7 1\n0 7 1\nx\n0 8 1\n") == Sizes{7, 8});
  CHECK(known_of("0 536870912 1\n0 536870912 2\n0 1 1\n1 536870912 1\n") == Sizes{512 * kMiB, 512 * kMiB});
  std::string many;
  for (unsigned bytes = 1; bytes <= 2 * wire::kProfiledBlocksMax; ++bytes)
    many += "0 " + std::to_string(bytes) + " 1\n";
  CHECK(known_of(many).size() == wire::kProfiledBlocksMax);
  ProfiledAllocations full = user.known();
  full.used(0, kMiB);
  CHECK(user.text() == many);
}

TEST_CASE("Allocations that most runs do not make are forgotten, but for other devices") {
  User user;
  {
    ProfiledAllocations first = user.known();
    for (uint64_t bytes : {kMiB, 2 * kMiB, 3 * kMiB, 40 * kMiB}) first.used(0, bytes);
    first.used(1, kMiB);
  }
  ProfiledAllocations next = user.known();
  CHECK_FALSE(next.mostly_unused());  // it has used no device
  next.used(0, 40 * kMiB);
  CHECK(next.mostly_unused());  // of the blocks
  next.used(0, 3 * kMiB);
  CHECK_FALSE(next.mostly_unused());
  next.forget_unused();
  ProfiledAllocations after = user.known();
  CHECK(after.awaited(0) == Sizes{3 * kMiB, 40 * kMiB});
  CHECK(after.awaited(1) == Sizes{kMiB});
  after.used(0, 3 * kMiB);
  CHECK(after.mostly_unused());  // of the bytes
}

TEST_CASE("Blocks of earlier runs are requested at the first block, and again where the program repeats those runs") {
  User user;
  test::DeviceProcess process(1, "0", "on");
  ProfiledDemand::Clock::time_point now{1h};
  {
    ProfiledDemand first;
    for (uint64_t bytes : {kMiB, 2 * kMiB, 3 * kMiB, 4 * kMiB}) {
      CHECK(first.missed(0, bytes, {}, now).empty());
      first.allocated(0, bytes, now);
    }
  }
  ProfiledDemand demand;
  CHECK(demand.missed(0, 9 * kMiB, {}, now) == Sizes{kMiB, 2 * kMiB, 3 * kMiB, 4 * kMiB});
  CHECK(demand.missed(0, 8 * kMiB, {}, now).empty());  // a size that is not in the profile
  CHECK(demand.missed(0, 2 * kMiB, {3 * kMiB}, now) == Sizes{kMiB, 4 * kMiB});
  demand.allocated(0, 2 * kMiB, now);
  CHECK(demand.missed(0, 2 * kMiB, {}, now).empty());  // one more than earlier runs had
  CHECK(demand.missed(1, kMiB, {}, now).empty());      // another device
  for (unsigned asks = 2; asks < ProfiledDemand::kAsksMax; ++asks)
    CHECK(demand.missed(0, kMiB, {}, now) == Sizes{3 * kMiB, 4 * kMiB});
  CHECK(demand.missed(0, kMiB, {}, now).empty());
}

TEST_CASE("After the first while nothing is written down or asked for") {
  User user;
  test::DeviceProcess process(1, "0", "on");
  const ProfiledDemand::Clock::time_point now{1h}, later = now + ProfiledDemand::kFirstWhile;
  ProfiledDemand first;
  first.allocated(0, kMiB, now);
  first.allocated(0, kMiB, later - 1ms);
  CHECK_FALSE(first.over());
  first.allocated(0, kMiB, later);
  CHECK(first.over());
  CHECK(user.text() == "0 1048576 1\n0 1048576 2\n");
  ProfiledDemand next;
  CHECK(next.missed(0, kMiB, {}, now) == Sizes{kMiB});
  CHECK(next.missed(0, kMiB, {}, later).empty());
}

// --- how it is asked for -------------------------------------------------------------------------------------------

TEST_CASE("The next run of a program asks for all in front of its first block, and finds the others here") {
  User user;
  const Sizes sizes{kMiB, 3 * kMiB, kLarge, kMiB};
  run_once(sizes);
  Run run;
  const size_t before = run.session->total();
  run.allocate(kMiB);
  CHECK(run.sent_since(before) == std::vector{kAllocateKnown, kKeepingMemory, test::kMemAlloc});
  CHECK(run.asked_as_profiled() == Sizes{3 * kMiB, kLarge, kMiB});
  const auto addresses = run.answer_as_profiled();
  const size_t sent = run.session->total();
  CHECK(run.allocate(kMiB) == addresses[2]);
  CHECK(run.allocate(kLarge) == addresses[1]);
  CHECK(run.allocate(3 * kMiB) == addresses[0]);
  CHECK(run.session->total() == sent);
  CHECK(run.waits() == 1);
  CHECK(user.text() == "0 1048576 1\n0 3145728 1\n0 41943040 1\n0 1048576 2\n");
}

TEST_CASE("A block that was allocated ahead is like any other, also when it is freed") {
  User user;
  run_once({kMiB, kMiB, kLarge});
  Run run({kMiB});
  const auto addresses = run.answer_as_profiled();
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CHECK(custom::cuMemGetAddressRange_v2(&base, nullptr, addresses[1]) == CUDA_ERROR_NOT_FOUND);
  const CUdeviceptr large = run.allocate(kLarge), small = run.allocate(kMiB);
  CHECK(custom::cuMemGetAddressRange_v2(&base, &bytes, large + kLarge - 1) == CUDA_SUCCESS);
  CHECK(bytes == kLarge);
  run.free(large);
  CHECK(run.session->newest().ordinal == test::kMemFree);
  run.free(small);
  CHECK(run.allocate(kMiB) == small);
  run.free(small);
  run.kept().poll(Clock::now() + CachedMemory::kCachedTime);
  CHECK(run.told_to_leave() == std::vector{small});  // not cached for longer than the program's own freed memory
}

TEST_CASE("A program that does something else this time asks once, and all goes back after a time") {
  User user;
  run_once({kMiB, 2 * kMiB, kLarge});
  {
    Run run({5 * kMiB});
    CHECK(run.asked_as_profiled() == Sizes{kMiB, 2 * kMiB, kLarge});
    const auto addresses = run.answer_as_profiled();
    run.allocate(6 * kMiB);
    run.allocate(7 * kMiB);
    CHECK(run.asks() == 1);
    CHECK(run.waits() == 3);
    run.kept().poll(Clock::now() + CachedMemory::kCachedTime);
    CHECK(run.session->count(kFreeAtRest) == 0);
    run.kept().poll(Clock::now() + CachedMemory::kProfiledTime);
    CHECK(run.told_to_leave() == addresses);
    run.answer_at_rest(true);
    CHECK(address_reservations().reserved_bytes() == (5 + 6 + 7) * kMiB);
    run.end();
  }
  CHECK(user.text() == "0 5242880 1\n0 6291456 1\n0 7340032 1\n");
}

TEST_CASE("Blocks that went back in the meantime are asked for again, with the next that the program awaits") {
  User user;
  run_once({kMiB, 2 * kMiB, 3 * kMiB});
  Run run({kMiB});
  const auto addresses = run.answer_as_profiled();
  run.kept().poll(Clock::now() + CachedMemory::kProfiledTime);
  run.allocate(2 * kMiB);  // there is no answer yet: the prefetched blocks are not usable
  CHECK(run.asked_as_profiled() == Sizes{3 * kMiB});
  CHECK(run.asks() == 2);
  run.answer_at_rest(true);
  const auto again = run.answer_as_profiled();
  CHECK(run.allocate(3 * kMiB) == again[0]);
}

TEST_CASE(
    "Fewer blocks than were asked for are taken in the order in which they were asked for, and no more than that") {
  User user;
  run_once({kMiB, 2 * kMiB, 3 * kMiB});
  Run run({kMiB});
  SUBCASE("fewer") {
    const auto addresses = run.answer_as_profiled(1);
    CHECK(run.allocate(2 * kMiB) == addresses[0]);
    run.allocate(3 * kMiB);
    CHECK(run.waits() == 2);
  }
  SUBCASE("more, and again") {
    const uint64_t one = run.new_address(), other = run.new_address();
    run.answer_ahead({one, other, run.new_address()}, kAllocateKnown);
    run.answer_ahead({run.new_address()}, kAllocateKnown);
    run.kept().poll(Clock::now() + CachedMemory::kProfiledTime);
    CHECK(run.told_to_leave() == std::vector<CUdeviceptr>{one, other});
  }
}

TEST_CASE("Calls that report the amount of memory count profiled blocks as free, and loading code leaves them") {
  User user;
  run_once({kMiB, 2 * kMiB, 3 * kMiB});
  Run run({kMiB});
  const auto addresses = run.answer_as_profiled();
  run.free(run.allocate(5 * kMiB));
  run.kept().give_back_but_profiled(enter(Needs::context));
  CHECK(run.told_to_leave().size() == 1);
  CHECK(run.session->count(kFreeAtRest) == 1);
  run.answer_at_rest(true);
  size_t free_bytes = 0, total = 0;
  REQUIRE(custom::cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS);
  CHECK(run.session->newest().ordinal == kMemGetInfo);
  CHECK(run.session->count(kFreeAtRest) == 1);
  CHECK(run.allocate(2 * kMiB) == addresses[0]);
}

TEST_CASE("An allocation for which there is no memory comes again when what earlier runs had has been given back") {
  User user;
  run_once({kMiB, 2 * kMiB});
  Run run;
  std::vector<CUdeviceptr> ahead;
  run.session->serve(kPing, [&](const auto&, capnp::MessageBuilder& reply, const BulkSink&) {
    ahead = run.answer_as_profiled();
    reply.initRoot<schema::Result>();
  });
  run.session->serve(test::kMemAlloc, [&](const auto&, capnp::MessageBuilder& reply, const BulkSink&) {
    auto results = reply.initRoot<schema::CuMemAllocV2Results>();
    if (run.session->count(test::kMemFree) == 0) results.setResult(CUDA_ERROR_OUT_OF_MEMORY);
    else results.setDptr(run.new_address());
  });
  run.allocate(kMiB);
  CHECK(ahead.size() == 1);
  CHECK(run.waits() == 2);
}

TEST_CASE("Memory of earlier runs is neither asked for nor written down when that is switched off, or none is kept") {
  User user;
  const Sizes sizes{kMiB, 2 * kMiB};
  { Run off(sizes, "off"); }
  { Run none(sizes, "on", "0"); }
  CHECK(user.files().empty());
  run_once(sizes);
  CHECK(user.files().size() == 1);
  for (auto [prefetch, wish] : {std::pair{"off", "64MiB"}, std::pair{"on", "0"}}) {
    Run run(sizes, prefetch, wish);
    CHECK(run.asks() == 0);
    CHECK(run.waits() == 2);
  }
  {
    Run run;
    const Captures::Changing changing(test::part<client::Captures>());
    run.kept().misses(enter(Needs::context), {.context = enter(Needs::context).context_handle, .bytes = kMiB});
    CHECK(run.asks() == 0);
  }
}

TEST_CASE("Blocks that were requested for earlier runs end with the context") {
  User user;
  run_once({kMiB, 2 * kMiB});
  Run run({kMiB});
  REQUIRE(run.asks() == 1);
  REQUIRE(custom::cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  run.answer_as_profiled();
  CHECK(address_reservations().reserved_bytes() == 0);
}

}  // namespace gpuwire::client
