// The user's line about long transfers, with a clock, a connection and a terminal of the test's own.
#include "client_stub/session/transfer_progress.hpp"

#include <doctest/doctest.h>

#include <string>

using namespace gpuwire::client;
using namespace std::chrono_literals;

namespace {

constexpr uint64_t kMiB = 1 << 20;
const std::string kErase = "\r\x1b[K";

TransferProgress::Clock::time_point g_now;

struct Connection final : Traffic {
  uint64_t moved_bytes(Direction direction) const noexcept override { return moved[size_t(direction)]; }
  bool has_left(uint64_t position) const noexcept override { return position <= left; }
  uint64_t moved[2] = {5000, 7000};
  uint64_t left = 0;
};

// The written bytes, and a user's view of them.
struct Screen {
  std::string written;
  bool ready = true;
  size_t columns = 80;
  unsigned writes = 0;

  std::string seen() const { return written.substr(written.rfind('\r') + 4); }
};

struct Line final : ProgressLine {
  explicit Line(Screen& screen) : screen(screen) {}
  bool is_ready() noexcept override { return screen.ready; }
  size_t columns() noexcept override { return screen.columns; }
  void write(std::string_view text) noexcept override {
    screen.written += text;
    ++screen.writes;
  }
  Screen& screen;
};

struct Fixture {
  Connection connection;
  Screen screen;
  std::shared_ptr<TransferProgress> progress =
      std::make_shared<TransferProgress>(connection, std::make_unique<Line>(screen), []() noexcept { return g_now; });

  void after(std::chrono::milliseconds time) {
    g_now += time;
    progress->poll();
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a copy that has taken 2 s has a line, which goes with it") {
  {
    LongTransfer copy(progress, Direction::to_gpu, 40 * kMiB);
    connection.moved[0] += 10 * kMiB;
    after(1999ms);
    CHECK(screen.writes == 0);
    after(1ms);
    CHECK(screen.written == kErase + "gpuwire: 10.0 MiB of 40.0 MiB to the GPU, 5.0 MiB/s");
    connection.moved[0] += 20 * kMiB;
    after(1000ms);
    CHECK(screen.seen() == "gpuwire: 30.0 MiB of 40.0 MiB to the GPU, 10.0 MiB/s");
  }
  CHECK(screen.seen().empty());
  const unsigned writes = screen.writes;
  after(10s);
  CHECK(screen.writes == writes);
}

TEST_CASE_FIXTURE(Fixture, "the line changes five times a second at most") {
  LongTransfer copy(progress, Direction::from_gpu, 40 * kMiB);
  after(2000ms);
  CHECK(screen.seen() == "gpuwire: 0 B of 40.0 MiB from the GPU, 0 B/s");
  for (int i = 0; i < 1000; ++i) after(1ms);
  CHECK(screen.writes == 6);
}

TEST_CASE_FIXTURE(Fixture, "copies one after the other that are short are not told of, however many they are") {
  for (int i = 0; i < 100; ++i) {
    LongTransfer copy(progress, Direction::to_gpu, kMiB);
    after(1900ms);
  }
  CHECK(screen.writes == 0);
}

TEST_CASE_FIXTURE(Fixture, "copies that overlap are one, and each direction has its part of the line") {
  auto first = std::make_unique<LongTransfer>(progress, Direction::to_gpu, 2048 * kMiB);
  g_now += 1500ms;
  LongTransfer second(progress, Direction::to_gpu, 1024 * kMiB);
  connection.moved[0] += 2048 * kMiB;
  first.reset();
  LongTransfer back(progress, Direction::from_gpu, 300 * kMiB);
  after(500ms);
  CHECK(screen.seen() == "gpuwire: 2.0 GiB of 3.0 GiB to the GPU, 1.0 GiB/s");
  connection.moved[1] += 150 * kMiB;
  after(2000ms);
  CHECK(screen.seen() == "gpuwire: 2.0 GiB of 3.0 GiB to the GPU, 512 MiB/s; 150 MiB of 300 MiB from the ");
  screen.columns = 200;
  after(500ms);
  CHECK(screen.seen() ==
        "gpuwire: 2.0 GiB of 3.0 GiB to the GPU, 455 MiB/s; 150 MiB of 300 MiB from the GPU, 50.0 MiB/s");
}

TEST_CASE_FIXTURE(
    Fixture, "bytes that did not have to be sent count when their copy is done, and others' bytes never more than it") {
  LongTransfer other(progress, Direction::to_gpu, 10 * kMiB);
  { LongTransfer named(progress, Direction::to_gpu, 30 * kMiB); }
  after(2000ms);
  CHECK(screen.seen() == "gpuwire: 30.0 MiB of 40.0 MiB to the GPU, 15.0 MiB/s");
  connection.moved[0] += 500 * kMiB;
  after(2000ms);
  CHECK(screen.seen() == "gpuwire: 40.0 MiB of 40.0 MiB to the GPU, 10.0 MiB/s");
}

TEST_CASE_FIXTURE(Fixture, "posted bulk is reported until it has left") {
  progress->posted(16 * kMiB, 1000);
  progress->posted(16 * kMiB, 2000);
  connection.moved[0] += 4 * kMiB;
  after(2000ms);
  CHECK(screen.seen() == "gpuwire: 4.0 MiB of 32.0 MiB to the GPU, 2.0 MiB/s");
  connection.left = 1999;
  after(1000ms);
  CHECK_FALSE(screen.seen().empty());
  connection.left = 2000;
  after(1000ms);
  CHECK(screen.seen().empty());

  SUBCASE("and what comes after it is another transfer, also when nobody has looked in between") {
    progress->posted(kMiB, 3000);
    connection.left = 3000;
    g_now += 5s;
    progress->posted(kMiB, 4000);
    after(1999ms);
    CHECK(screen.seen().empty());
    after(1ms);
    CHECK(screen.seen() == "gpuwire: 0 B of 1.0 MiB to the GPU, 0 B/s");
  }
  SUBCASE("an upload whose last bytes are in the window is, too") {
    LongTransfer upload(progress, Direction::to_gpu, 8 * kMiB);
    upload.posted(5000);
    connection.moved[0] += 2 * kMiB;
    after(2000ms);
    CHECK(screen.seen() == "gpuwire: 2.0 MiB of 8.0 MiB to the GPU, 1.0 MiB/s");
    connection.left = 5000;
    after(1ms);
    CHECK(screen.seen().empty());
  }
}

TEST_CASE_FIXTURE(Fixture,
                  "a line that is not ready is not written to, and nothing is said twice to one that is again") {
  LongTransfer copy(progress, Direction::to_gpu, 8 * kMiB);
  screen.ready = false;
  after(3000ms);
  CHECK(screen.writes == 0);
  screen.ready = true;
  after(100ms);
  CHECK(screen.writes == 1);
}

TEST_CASE_FIXTURE(Fixture, "another message clears the line, and the end of the session ends it") {
  auto copy = std::make_unique<LongTransfer>(progress, Direction::to_gpu, 8 * kMiB);
  after(2000ms);
  progress->clear();
  CHECK(screen.seen().empty());
  after(200ms);
  CHECK_FALSE(screen.seen().empty());
  progress->stop();
  CHECK(screen.seen().empty());
  const unsigned writes = screen.writes;
  after(1000ms);
  copy.reset();
  LongTransfer late(progress, Direction::to_gpu, 8 * kMiB);
  after(3000ms);
  CHECK(screen.writes == writes);
}

TEST_CASE_FIXTURE(Fixture, "looks are wanted five times a second while something is on its way, and never else") {
  CHECK(progress->left() == std::chrono::nanoseconds::max());
  {
    LongTransfer copy(progress, Direction::to_gpu, 8 * kMiB);
    CHECK(progress->left() == 200ms);
  }
  CHECK(progress->left() == std::chrono::nanoseconds::max());
}
