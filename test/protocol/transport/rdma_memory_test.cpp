// Which memory a fabric may use where it is, and how long; without a fabric.
#include <doctest/doctest.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "protocol/transport/rdma_memory.hpp"
#include "test/protocol/transport/pairs.hpp"

struct GpuwireRdmaRegion {};

using namespace gpuwire;
using transport::RdmaMemory;

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr std::chrono::seconds kLimit{120};

// Registers what it is told to, and knows what is registered.
struct Card {
  RdmaMemory::Registrar registrar() {
    return {.add = [this](std::byte* memory, size_t bytes) -> GpuwireRdmaRegion* {
              if (bytes > largest) return nullptr;
              std::lock_guard lock(mutex);
              bytes_of[memory] = bytes;
              return region_of.emplace(memory, new GpuwireRdmaRegion).first->second;
            },
            .remove =
                [this](GpuwireRdmaRegion* region) {
                  std::lock_guard lock(mutex);
                  for (auto at = region_of.begin(); at != region_of.end(); ++at) {
                    if (at->second != region) continue;
                    bytes_of.erase(at->first);
                    region_of.erase(at);
                    break;
                  }
                  delete region;
                }};
  }
  std::mutex mutex;
  size_t largest = ~size_t(0);
  std::map<std::byte*, size_t> bytes_of;
  std::map<std::byte*, GpuwireRdmaRegion*> region_of;
};

}  // namespace

TEST_CASE("memory is registered whole with the first use of any part of it, once, until its owner takes it back") {
  Card card;
  std::vector<std::byte> bytes(4 * kMiB);
  RdmaMemory memory;
  memory.offer(bytes.data(), bytes.size());
  CHECK_FALSE(memory.offers({bytes.data(), 1}));  // no fabric
  memory.begin(card.registrar());
  CHECK(memory.offers({bytes.data(), bytes.size()}));
  CHECK(card.bytes_of.empty());
  for (int i = 0; i < 3; ++i) {
    auto use = memory.use({bytes.data() + kMiB, kMiB});
    REQUIRE(use);
    CHECK(use.region() == card.region_of[bytes.data()]);
  }
  CHECK(card.bytes_of[bytes.data()] == bytes.size());
  CHECK(memory.figures().registrations == 1);
  CHECK(memory.figures().registered_bytes == bytes.size());
  CHECK(memory.forget(bytes.data(), kLimit));
  CHECK(card.bytes_of.empty());
  CHECK_FALSE(memory.use({bytes.data(), 1}));
  CHECK(memory.figures().registered_bytes == 0);
}

TEST_CASE("what is not in one piece of offered memory is not used, nor what is too short for an entry") {
  Card card;
  RdmaMemory memory;
  memory.begin(card.registrar());
  std::vector<std::byte> bytes(4 * kMiB);
  std::byte* at = bytes.data();
  memory.offer(at, kMiB);
  memory.offer(at + kMiB, kMiB);
  memory.offer(at + kMiB / 2, kMiB);      // overlaps with two
  memory.offer(at + 3 * kMiB, kMiB - 1);  // too short
  CHECK(memory.offers({at, kMiB}));
  CHECK(memory.offers({at + 2 * kMiB - 1, 1}));
  for (auto [offset, length] : {std::pair<size_t, size_t>{kMiB - 1, 2},
                                {2 * kMiB - 1, 2},
                                {2 * kMiB, 1},
                                {3 * kMiB, 1},
                                {0, 2 * kMiB},
                                {1, ~size_t(0)}}) {
    INFO(offset, " ", length);
    CHECK_FALSE(memory.offers({at + offset, length}));
    CHECK_FALSE(memory.use({at + offset, length}));
  }
  CHECK(card.bytes_of.empty());
}

TEST_CASE("together no more is registered than the bound, and what is refused is asked for again when there is room") {
  Card card;
  std::vector<std::byte> bytes(3 * kMiB);
  RdmaMemory by_bytes(2 * kMiB), by_ranges(~0ull, 2);
  for (RdmaMemory* memory : {&by_bytes, &by_ranges}) {
    memory->begin(card.registrar());
    for (size_t i = 0; i < 3; ++i) memory->offer(bytes.data() + i * kMiB, kMiB);
    for (size_t i = 0; i < 3; ++i) CHECK(bool(memory->use({bytes.data() + i * kMiB, kMiB})) == (i < 2));
    CHECK(memory->figures().refused == 1);
    CHECK_FALSE(memory->offers({bytes.data() + 2 * kMiB, kMiB}));
    CHECK(card.bytes_of.size() == 2);
    CHECK(memory->forget(bytes.data(), kLimit));
    CHECK(memory->use({bytes.data() + 2 * kMiB, kMiB}));
    memory->end();
    CHECK(card.bytes_of.empty());
  }
}

TEST_CASE("an owner that takes memory back waits for who uses it, and nobody begins to meanwhile") {
  Card card;
  std::vector<std::byte> bytes(kMiB);
  RdmaMemory memory;
  memory.begin(card.registrar());
  memory.offer(bytes.data(), bytes.size());
  auto use = memory.use({bytes.data(), 1});
  REQUIRE(use);
  std::atomic<bool> back{false};
  std::thread owner([&] {
    CHECK(memory.forget(bytes.data(), kLimit));
    back = true;
  });
  while (memory.offers({bytes.data(), 1})) std::this_thread::yield();  // it waits
  CHECK_FALSE(memory.use({bytes.data(), 1}));
  CHECK_FALSE(back);
  CHECK(card.bytes_of.size() == 1);
  use = {};
  owner.join();
  CHECK(back);
  CHECK(card.bytes_of.empty());
}

TEST_CASE("memory that a device does not let go of stays registered for good, and is nobody else's") {
  Card card;
  std::vector<std::byte> bytes(kMiB);
  RdmaMemory memory;
  memory.begin(card.registrar());
  memory.offer(bytes.data(), bytes.size());
  auto use = memory.use({bytes.data(), 1});
  REQUIRE(use);
  use.leave();
  use = {};
  CHECK_FALSE(memory.forget(bytes.data(), std::chrono::nanoseconds(0)));
  CHECK(card.bytes_of.size() == 1);
  memory.offer(bytes.data(), bytes.size());
  CHECK_FALSE(memory.offers({bytes.data(), 1}));
  memory.end();
  CHECK(card.bytes_of.size() == 1);
  // Nor is it its owner's when the fabric has gone, or another one has come.
  CHECK_FALSE(memory.forget(bytes.data(), std::chrono::nanoseconds(0)));
  memory.begin(card.registrar());
  CHECK_FALSE(memory.offers({bytes.data(), 1}));
  CHECK_FALSE(memory.use({bytes.data(), 1}));
  memory.end();
  for (auto& [at, region] : card.region_of) delete region;
}

TEST_CASE("many threads that use, offer and take back the same memory find it registered whenever they use it") {
  Card card;
  RdmaMemory memory(8 * kMiB);
  memory.begin(card.registrar());
  std::vector<std::byte> bytes(16 * kMiB);
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(test::test_seed() + thread);
      for (int step = 0; step < 3000; ++step) {
        // Each has four pieces of its own to offer, and uses anybody's.
        std::byte* own = bytes.data() + (thread * 4 + random() % 4) * kMiB;
        std::byte* any = bytes.data() + random() % 16 * kMiB;
        if (random() % 4 == 0) memory.offer(own, kMiB);
        if (random() % 4 == 0 && !memory.forget(own, kLimit)) std::abort();
        if (auto use = memory.use({any, kMiB})) {
          std::lock_guard lock(card.mutex);
          if (card.region_of[any] != use.region()) std::abort();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(memory.figures().registrations > 100);
  CHECK(memory.figures().registered_bytes <= 8 * kMiB);
  memory.end();
  CHECK(card.bytes_of.empty());
}

TEST_CASE("where the limit of locked memory refuses, bytes are not used in place, and are when there is room again") {
  pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // As a card's driver does it, without the right to lock what it likes.
    rlimit limit{kMiB * 3 / 2, kMiB * 3 / 2};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)) _exit(10);
    void* at = mmap(nullptr, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto* bytes = static_cast<std::byte*>(at);
    static GpuwireRdmaRegion region;
    RdmaMemory memory;
    // By the system's calls: the sanitizers' mlock() does nothing.
    memory.begin({.add = [](std::byte* from,
                            size_t length) { return syscall(SYS_mlock, from, length) == 0 ? &region : nullptr; },
                  .remove = [&](GpuwireRdmaRegion*) { syscall(SYS_munlock, bytes, kMiB); }});
    memory.offer(bytes, kMiB);
    memory.offer(bytes + kMiB, kMiB);
    if (!memory.use({bytes, kMiB})) _exit(1);
    if (memory.use({bytes + kMiB, kMiB})) _exit(2);
    if (memory.offers({bytes + kMiB, kMiB}) || memory.figures().refused != 1) _exit(3);
    if (!memory.forget(bytes, kLimit)) _exit(4);
    if (!memory.use({bytes + kMiB, kMiB})) _exit(5);
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
