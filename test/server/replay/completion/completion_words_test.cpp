#include "server/replay/completion/completion_words.hpp"

#include <doctest/doctest.h>

#include <string_view>
#include <vector>

#include "server/replay/completion/completion_mark.hpp"
#include "server/replay/completion/passed_marks.hpp"
#include "test/server/replay/fake_session.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using server::CompletionMark;
using server::CompletionWord;
using server::CompletionWords;
using server::kCompletionWordsMax;

namespace {

struct Fixture {
  FakeDriver driver;
  CompletionWords words{driver.table, &FakeDriver::write_word};

  bool reached_at_once(CompletionWord word) {
    word.mark(nullptr);
    return word.reached();
  }
};

}  // namespace

TEST_CASE_FIXTURE(Fixture, "a word is reached when the stream has passed its mark, and not before, each time") {
  CompletionWord word = words.take();
  CHECK_FALSE(word.reached());
  for (int i = 0; i < 3; ++i) {
    driver.hold = true;
    word.mark(nullptr);
    CHECK_FALSE(word.reached());
    driver.release();
    CHECK(word.reached());
  }
}

TEST_CASE_FIXTURE(Fixture, "a mark that was given up and is written late is taken for no other") {
  driver.hold = true;
  words.take().mark(nullptr);
  CompletionWord next = words.take();
  driver.release();
  CHECK_FALSE(next.reached());
  next.mark(nullptr);
  CHECK_FALSE(next.reached());
  driver.release();
  CHECK(next.reached());
}

TEST_CASE_FIXTURE(Fixture, "a waiter that finds all words taken has none, and a returned one is there for the next") {
  std::vector<CompletionWord> taken(kCompletionWordsMax);
  for (CompletionWord& word : taken) word = words.take();
  CHECK_FALSE(reached_at_once(words.take()));
  taken.pop_back();
  CHECK(reached_at_once(words.take()));
}

TEST_CASE_FIXTURE(Fixture, "a word that the GPU cannot write is never reached, and can be tried again") {
  CompletionWord word = words.take();
  driver.failures["cuStreamWriteValue32_v2"] = CUDA_ERROR_NOT_SUPPORTED;
  word.mark(nullptr);
  CHECK_FALSE(word.marked());
  CHECK_FALSE(word.reached());
  driver.failures.clear();
  word.mark(nullptr);
  CHECK(word.reached());
}

TEST_CASE_FIXTURE(Fixture, "where memory cannot be pinned there are no words") {
  driver.failures["cuMemHostRegister_v2"] = CUDA_ERROR_OUT_OF_MEMORY;
  CHECK_FALSE(reached_at_once(words.take()));
  CHECK(driver.registered.empty());
}

TEST_CASE_FIXTURE(Fixture, "where the driver knows no such words there are none, and no memory is pinned") {
  CompletionWords none(driver.table, nullptr);
  CHECK_FALSE(reached_at_once(none.take()));
  CHECK(driver.registered.empty());
}

TEST_CASE_FIXTURE(Fixture, "their memory is pinned until the context goes, after which none is given out") {
  CHECK(reached_at_once(words.take()));
  CHECK(driver.registered.size() == 1);
  words.abandon();
  CHECK(driver.registered.empty());
  CHECK_FALSE(reached_at_once(words.take()));
}

TEST_CASE("their memory is pinned no longer than they are there") {
  FakeDriver driver;
  {
    CompletionWords words(driver.table, &FakeDriver::write_word);
    words.take();
    CHECK(driver.registered.size() == 1);
  }
  CHECK(driver.registered.empty());
}

TEST_CASE("a mark asks the driver first, and then only now and then, so that a failure is noticed") {
  FakeDriver driver;
  auto pool = std::make_shared<server::EventPool>(driver.table, &FakeDriver::write_word);
  CUresult result = CUDA_ERROR_UNKNOWN;
  driver.hold = true;
  CompletionMark mark = server::mark_stream(driver.table, *pool, nullptr, result);
  REQUIRE(result == CUDA_SUCCESS);
  CHECK(mark.poll(driver.table) == CUDA_ERROR_NOT_READY);
  driver.failures["cuEventQuery"] = CUDA_ERROR_ILLEGAL_ADDRESS;
  for (unsigned poll = 1; poll < server::kPollsPerQuery; ++poll) CHECK(mark.poll(driver.table) == CUDA_ERROR_NOT_READY);
  CHECK(mark.poll(driver.table) == CUDA_ERROR_ILLEGAL_ADDRESS);
  driver.release();
  CHECK(mark.poll(driver.table) == CUDA_SUCCESS);
}

TEST_CASE("a mark without a word asks the driver each time") {
  FakeDriver driver;
  auto pool = std::make_shared<server::EventPool>(driver.table);
  CUresult result = CUDA_ERROR_UNKNOWN;
  driver.hold = true;
  CompletionMark mark = server::mark_stream(driver.table, *pool, nullptr, result);
  for (int i = 0; i < 3; ++i) CHECK(mark.poll(driver.table) == CUDA_ERROR_NOT_READY);
  driver.release();
  CHECK(mark.poll(driver.table) == CUDA_SUCCESS);
}

TEST_CASE("the driver catches up with every stream whose word was seen, once, and with the newest mark of each") {
  FakeDriver driver;
  auto pool = std::make_shared<server::EventPool>(driver.table);
  static std::vector<CUevent> asked;
  asked.clear();
  driver.table.cuEventQuery = [](CUevent event) {
    asked.push_back(event);
    return asked.size() % 3 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
  };
  server::PassedMarks passed;
  auto stream = [](uintptr_t number) { return reinterpret_cast<CUstream>(number); };
  auto add = [&](uintptr_t number) {
    server::PooledEvent event = pool->take();
    CUevent native = event.get();
    passed.add(driver.table, stream(number), std::move(event));
    return native;
  };
  add(1);
  const CUevent second = add(2), newest = add(1);
  passed.catch_up(driver.table);
  CHECK(asked == std::vector<CUevent>{newest, newest, newest, second, second, second});
  passed.catch_up(driver.table);
  CHECK(asked.size() == 6);
  CHECK(pool->all_returned(std::chrono::milliseconds(0)));
}

TEST_CASE("the driver catches up with the oldest stream at once when there are more than are remembered") {
  FakeDriver driver;
  auto pool = std::make_shared<server::EventPool>(driver.table);
  server::PassedMarks passed;
  static size_t asked;
  asked = 0;
  driver.table.cuEventQuery = [](CUevent) {
    ++asked;
    return CUDA_SUCCESS;
  };
  for (uintptr_t number = 0; number <= server::PassedMarks::kStreamsMax; ++number)
    passed.add(driver.table, reinterpret_cast<CUstream>(number), pool->take());
  CHECK(asked == 1);
  passed.clear();
  CHECK(pool->all_returned(std::chrono::milliseconds(0)));
}

TEST_CASE_FIXTURE(Fixture,
                  "words are asked for and given back while the driver registers or unregisters their memory") {
  size_t asked = 0;
  driver.during = [&](std::string_view function) {
    if (function == "cuMemHostRegister_v2") asked += done_elsewhere([&] { words.take(); });
  };
  CompletionWord word = words.take();
  CHECK(asked == 1);
  size_t given = 0;
  driver.during = [&](std::string_view function) {
    if (function == "cuMemHostUnregister") given += done_elsewhere([&] { CompletionWord gone = std::move(word); });
  };
  words.abandon();
  CHECK(given == 1);
}
