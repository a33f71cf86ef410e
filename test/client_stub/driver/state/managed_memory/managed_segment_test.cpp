#include "client_stub/driver/state/managed_memory/managed_segment.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace gpuwire::client {
namespace {

constexpr uint64_t kChunk = ManagedSegment::kChunkBytes;

// Pages without a program: records the access rights, and refuses on the test's order.
struct FakePages final : SegmentPages {
  explicit FakePages(uint64_t bytes) : bytes_of(bytes), access(bytes, PageAccess::write) {}
  std::byte* memory() noexcept override { return bytes_of.data(); }
  bool protect(uint64_t offset, uint64_t bytes, PageAccess to) noexcept override {
    if (refuse) return false;
    ++calls;
    std::fill_n(access.begin() + long(offset), bytes, to);
    return true;
  }
  bool touched(uint64_t offset, uint64_t& begin, uint64_t& end) noexcept override {
    for (auto [first, last] : touched_at) {
      if (last <= offset) continue;
      begin = std::max(offset, first);
      end = last;
      return true;
    }
    return false;
  }
  std::vector<std::byte> bytes_of;
  std::vector<PageAccess> access;
  std::vector<std::pair<uint64_t, uint64_t>> touched_at;
  unsigned calls = 0;
  bool refuse = false;
};

struct Segment {
  explicit Segment(uint64_t bytes, bool fresh = false) : pages(bytes), chunks(pages, bytes, fresh), server(bytes) {
    if (!fresh) std::fill(pages.access.begin(), pages.access.end(), PageAccess::none);
  }
  // Handles a fault like the owner.
  void fault(uint64_t offset, bool write, bool early = false) {
    ManagedSegment::Window window;
    bool refused = false;
    if (chunks.fault(offset, write, window, refused) == ManagedSegment::Need::data) {
      fetched = window;
      REQUIRE(chunks.store(window, std::span(server).subspan(window.offset, window.bytes), early));
      if (write && !chunks.writable(offset)) chunks.fault(offset, true, window, refused);
    }
    CHECK_FALSE(refused);
  }
  void write(uint64_t offset, uint8_t value) {
    if (pages.access[offset] != PageAccess::write) fault(offset, true);
    REQUIRE(pages.access[offset] == PageAccess::write);
    pages.bytes_of[offset] = std::byte(value);
  }
  uint8_t read(uint64_t offset) {
    if (pages.access[offset] == PageAccess::none) fault(offset, false);
    REQUIRE(pages.access[offset] != PageAccess::none);
    return uint8_t(pages.bytes_of[offset]);
  }
  // Sends the changes to the server; returns the number of pieces.
  size_t show(uint64_t bytes_max = ~0ull) {
    size_t pieces = 0;
    while (chunks.show(bytes_max, [&](wire::ByteChanges& changes) {
      ++pieces;
      wire::write_changed(server.data() + changes.offset, changes.bytes, changes.mask);
    })) {}
    return pieces;
  }
  size_t hand_over() {
    chunks.close(false);
    return show();
  }

  FakePages pages;
  ManagedSegment chunks;
  std::vector<std::byte> server;
  ManagedSegment::Window fetched;
};

}  // namespace

TEST_CASE("Fresh memory is the program's without a fault, and only what it touched and filled is shown") {
  Segment segment(5 * kChunk, true);
  segment.pages.touched_at = {{kChunk, kChunk + 8192}, {3 * kChunk - 4096, 3 * kChunk + 4096}};
  segment.write(kChunk + 5, 1);
  segment.write(3 * kChunk, 2);
  CHECK(segment.pages.calls == 0);
  CHECK(segment.hand_over() == 2);
  CHECK(segment.server == segment.pages.bytes_of);
  CHECK(std::all_of(segment.pages.access.begin(), segment.pages.access.end(),
                    [](PageAccess access) { return access == PageAccess::none; }));
  CHECK(segment.pages.calls == 1);
  CHECK_FALSE(segment.chunks.valid());
}

TEST_CASE("The device's changes are fetched when they are read, and once") {
  Segment segment(3 * kChunk + 100);
  segment.server[kChunk + 7] = std::byte{9};
  CHECK(segment.read(kChunk + 7) == 9);
  unsigned calls = segment.pages.calls;
  CHECK(segment.read(kChunk + 8) == 0);
  CHECK(segment.pages.calls == calls);
  CHECK(segment.pages.access[0] == PageAccess::none);
  CHECK(segment.read(3 * kChunk + 99) == 0);
  CHECK(segment.fetched.bytes == 100);
}

TEST_CASE("Reading on fetches more each time, up to a bound") {
  Segment segment(300 * kChunk);
  std::vector<uint64_t> windows;
  for (uint64_t chunk = 0; chunk < 300; ++chunk) {
    if (segment.pages.access[chunk * kChunk] != PageAccess::none) continue;
    segment.read(chunk * kChunk);
    windows.push_back(segment.fetched.bytes / kChunk);
  }
  CHECK(windows == std::vector<uint64_t>{2, 4, 8, 16, 32, 64, 64, 64, 46});
  segment.hand_over();
  segment.read(200 * kChunk);
  CHECK(segment.fetched.bytes == kChunk);
}

TEST_CASE("Only bytes that the program changed are shown") {
  Segment segment(2 * kChunk);
  segment.write(10, 1);
  segment.write(12, 3);
  segment.server[11] = std::byte{77};  // written by the device meanwhile
  CHECK(segment.hand_over() == 1);
  CHECK(segment.server[10] == std::byte{1});
  CHECK(segment.server[11] == std::byte{77});
  CHECK(segment.server[12] == std::byte{3});
  CHECK(segment.hand_over() == 0);
  CHECK(segment.read(11) == 77);
}

TEST_CASE("Nothing is closed twice: handing over what is not accessible costs no call to the system") {
  Segment segment(10 * kChunk);
  segment.read(0);
  segment.hand_over();
  unsigned calls = segment.pages.calls;
  for (int i = 0; i < 5; ++i) segment.hand_over();
  CHECK(segment.pages.calls == calls);
}

TEST_CASE("Chunks that were fetched beside running work are fetched again when the work is done") {
  Segment segment(2 * kChunk);
  segment.fault(5, false, true);
  CHECK(segment.chunks.early());
  segment.server[5] = std::byte{4};
  segment.chunks.close(true);
  CHECK_FALSE(segment.chunks.valid());
  CHECK(segment.read(5) == 4);
  CHECK_FALSE(segment.chunks.early());
  segment.chunks.close(true);
  CHECK(segment.pages.access[5] == PageAccess::read);
}

TEST_CASE("Memory that is accessible when work is sent is no longer current when work is done") {
  Segment segment(2 * kChunk);
  segment.read(5);
  segment.chunks.note_work();
  segment.server[5] = std::byte{4};
  segment.chunks.close(true);
  CHECK(segment.read(5) == 4);
}

TEST_CASE("The program's changes beside running work are stored and joined with the device's") {
  Segment segment(2 * kChunk);
  segment.fault(5, true, true);
  segment.write(5, 50);
  segment.server[6] = std::byte{60};
  segment.chunks.close(true);
  CHECK(segment.chunks.hidden());
  CHECK(segment.pages.access[5] == PageAccess::none);
  CHECK(segment.read(6) == 60);
  CHECK(segment.read(5) == 50);
  CHECK(segment.hand_over() == 1);
  CHECK(segment.server[5] == std::byte{50});
  CHECK(segment.server[6] == std::byte{60});
}

TEST_CASE("Hidden changes are shown even when they are never read again") {
  Segment segment(2 * kChunk);
  segment.fault(5, true, true);
  segment.write(5, 50);
  segment.chunks.close(true);
  CHECK(segment.chunks.valid());
  CHECK(segment.hand_over() == 1);
  CHECK(segment.server[5] == std::byte{50});
}

TEST_CASE("A held chunk stays accessible, what is written to it is shown, and it closes when it is let go") {
  Segment segment(3 * kChunk, true);
  segment.pages.touched_at = {{0, 3 * kChunk}};
  segment.chunks.hold(kChunk);
  segment.write(kChunk, 1);
  segment.write(0, 2);
  CHECK(segment.hand_over() == 2);
  CHECK(segment.pages.access[0] == PageAccess::none);
  CHECK(segment.pages.access[kChunk] == PageAccess::write);
  segment.write(kChunk + 1, 3);
  segment.chunks.release(kChunk);
  CHECK(segment.hand_over() == 1);
  CHECK(segment.pages.access[kChunk] == PageAccess::none);
  CHECK(segment.server[kChunk] == std::byte{1});
  CHECK(segment.server[kChunk + 1] == std::byte{3});
}

TEST_CASE("Much is shown in portions") {
  Segment segment(40 * kChunk, true);
  segment.pages.touched_at = {{0, 40 * kChunk}};
  std::fill(segment.pages.bytes_of.begin(), segment.pages.bytes_of.end(), std::byte{1});
  segment.chunks.close(false);
  size_t shown = 0;
  CHECK(segment.chunks.show(4 * kChunk, [&](wire::ByteChanges& changes) { shown += changes.bytes.size(); }));
  CHECK(shown == 4 * kChunk);
  CHECK(segment.show(4 * kChunk) == 36);
  CHECK_FALSE(segment.chunks.valid());
}

TEST_CASE("A system that opens no page is told, and nothing is lost") {
  Segment segment(2 * kChunk);
  segment.read(0);
  segment.pages.refuse = true;
  ManagedSegment::Window window;
  bool refused = false;
  CHECK(segment.chunks.fault(0, true, window, refused) == ManagedSegment::Need::nothing);
  CHECK(refused);
  CHECK_FALSE(segment.chunks.writable(0));
  segment.pages.refuse = false;
  segment.write(0, 5);
  CHECK(segment.hand_over() == 1);
  CHECK(segment.server[0] == std::byte{5});
}

}  // namespace gpuwire::client
