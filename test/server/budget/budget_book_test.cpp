// The book of budgets: months; and the sum of its charges equals the charged time in all cases.
#include <doctest/doctest.h>

#include <cstdlib>
#include <ctime>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "server/budget/budget_book.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;
using std::chrono::nanoseconds;
using std::chrono::system_clock;

namespace {

system_clock::time_point at(int year, unsigned month, unsigned day, unsigned hour = 0) {
  using namespace std::chrono;
  return sys_days(std::chrono::year(year) / std::chrono::month(month) / std::chrono::day(day)) + hours(hour);
}

// A server and its sessions over some months. Time passes; sessions are charged, begin and end; the server polls,
// writes, is killed and reads its file; its wall clock leaps.
class Months {
 public:
  explicit Months(uint64_t seed) : random_(seed) {}

  void run() {
    for (unsigned step = 0; step < kSteps; ++step) {
      true_time_ += std::chrono::minutes(pick(1, 600));
      work();
      switch (pick(0, 9)) {
        case 0: begin(); break;
        case 1: end(); break;
        case 2: kill(); break;
        case 3: leap(); break;
        default: poll();
      }
      if (pick(0, 2) == 0) written_ = book_.text();
      CAPTURE(step);
      hold();
    }
    while (!sessions_.empty()) end();
    CHECK(book_.charged_in_all() == charged_);
    hold();
  }

 private:
  static constexpr unsigned kSteps = 1500;
  struct Session {
    std::string name, tenant, user;
    nanoseconds charged{};
  };

  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  Month now() const { return Month(true_time_ + leapt_); }

  void begin() {
    const std::string tenant = pick(0, 1) ? "course" : "lab";
    const std::string user = pick(0, 3) ? tenant + "/user" + std::to_string(pick(0, 4)) : std::string();
    sessions_.push_back({"session" + std::to_string(begun_++), tenant, user, {}});
  }
  void work() {
    for (Session& session : sessions_) {
      const nanoseconds more(pick(0, 1) ? pick(0, 1'000'000'000) : 0);
      session.charged += more;
      charged_ += more;
    }
  }
  void poll() {
    for (const Session& session : sessions_)
      book_.charge(session.name, session.tenant, session.user, session.charged, now());
  }
  // An ended session is written at once.
  void end() {
    if (sessions_.empty()) return;
    const auto one = sessions_.begin() + pick(0, int(sessions_.size()) - 1);
    book_.charge(one->name, one->tenant, one->user, one->charged, now());
    book_.forget(one->name);
    sessions_.erase(one);
    written_ = book_.text();
  }
  void kill() {
    auto book = BudgetBook::parse(written_);
    REQUIRE(book.has_value());
    CHECK(book->text() == written_);
    book_ = std::move(*book);
    std::set<std::string> there;
    for (const Session& session : sessions_) there.insert(session.name);
    book_.keep_only(there);
    poll();
  }
  // The clock leaps by an hour, as by daylight saving time in local time, or by months.
  void leap() {
    leapt_ = pick(0, 1) ? nanoseconds{} : pick(0, 1) ? nanoseconds(1h) * pick(-1, 1) : nanoseconds(24h) * pick(-70, 70);
    poll();
  }

  void hold() {
    nanoseconds counted{};
    for (const Session& session : sessions_) counted += session.charged;
    // Only time since the last poll may be missing.
    CHECK(book_.charged_in_all() <= charged_);
    CHECK(book_.charged_in_all() >= charged_ - counted);
    BudgetBook looked = book_;
    for (const Session& session : sessions_)
      looked.charge(session.name, session.tenant, session.user, session.charged, now());
    CHECK(looked.charged_in_all() == charged_);
    // A month's use never decreases, whatever the clock does.
    for (const char* tenant : {"course", "lab"}) {
      const nanoseconds used = looked.used(tenant, now());
      nanoseconds users{};
      for (const std::string& user : looked.users_of(tenant, now()))
        users += looked.used(std::string(tenant) + "/" + user, now());
      CHECK(users <= used);
      CHECK(used >= (most_of_written_.contains({tenant, now()}) ? most_of_written_[{tenant, now()}] : nanoseconds{}));
    }
    auto written = BudgetBook::parse(written_);
    if (!written) return;
    for (const char* tenant : {"course", "lab"}) most_of_written_[{tenant, now()}] = written->used(tenant, now());
  }

  std::mt19937_64 random_;
  system_clock::time_point true_time_ = at(2026, 9, 20);
  nanoseconds leapt_{};
  BudgetBook book_;
  std::string written_ = BudgetBook().text();
  std::vector<Session> sessions_;
  unsigned begun_ = 0;
  nanoseconds charged_{};  // all charges of the GPU scheduler
  std::map<std::pair<std::string, Month>, nanoseconds> most_of_written_;
};

}  // namespace

TEST_CASE("a month is one of the calendar in UTC, whatever the machine's time zone is") {
  for (const char* zone : {"UTC", "Europe/Berlin", "America/New_York", "Pacific/Kiritimati"}) {
    ::setenv("TZ", zone, 1);
    ::tzset();
    CHECK(Month(at(2026, 11, 30, 23)).text() == "2026-11");
    CHECK(Month(at(2026, 11, 30, 23) + 59min + 59s + 999ms).text() == "2026-11");
    CHECK(Month(at(2026, 12, 1)).text() == "2026-12");
    CHECK(Month(at(2026, 12, 31, 23)).end() == at(2027, 1, 1));
    // The hours of the clock changes in Europe and New York.
    CHECK(Month(at(2026, 10, 25, 1)).end() == at(2026, 11, 1));
    CHECK(Month(at(2026, 3, 8, 7)).end() == at(2026, 4, 1));
  }
  ::unsetenv("TZ");
  ::tzset();
  CHECK(Month::parse("2026-11").value() == Month(at(2026, 11, 5)));
  for (const char* text : {"", "2026", "2026-13", "2026-00", "2026-11-1", "1960-01", "november"})
    CHECK_FALSE(Month::parse(text).has_value());
}

TEST_CASE("over months with kills, leaps of the clock and daylight saving time, the charges are the charged time") {
  constexpr uint64_t kSeeds = 20;
  const char* given = std::getenv("GPUWIRE_SEED");
  const uint64_t first = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
  MESSAGE("seeds from ", first);
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    CAPTURE(seed);
    Months(seed).run();
  }
}

TEST_CASE("a clock that leaps over the end of the month and back finds the account that it left") {
  BudgetBook book;
  const Month november(at(2026, 11, 20)), december(at(2026, 12, 5));
  book.charge("one", "course", "course/anna", 5s, november);
  book.charge("one", "course", "course/anna", 6s, december);
  book.charge("one", "course", "course/anna", 8s, november);
  CHECK(book.used("course", november) == 7s);
  CHECK(book.used("course", december) == 1s);
  CHECK(book.used("course/anna", november) == 7s);
  book.charge("one", "course", "course/anna", 8s, december);
  CHECK(book.used("course", december) == 1s);
}

TEST_CASE("charges from before there were budgets are nobody's, and a count that goes back is no refund") {
  BudgetBook book;
  const Month november(at(2026, 11, 20));
  book.begin_at("one", 100s);
  book.charge("one", "course", "", 101s, november);
  book.charge("one", "course", "", 50s, november);
  CHECK(book.used("course", november) == 1s);
  book.charge("one", "course", "", 103s, november);
  CHECK(book.used("course", november) == 3s);
}

TEST_CASE("an account keeps two years of months, those that are nearest, and a leap of a century costs it one") {
  BudgetBook book;
  nanoseconds charged{};
  for (int month = 0; month < 40; ++month)
    book.charge("one", "course", "", charged += 1s, Month(at(2026 + month / 12, unsigned(month % 12 + 1), 1)));
  const Month last(at(2029, 4, 1));
  book.charge("one", "course", "", charged += 1s, Month(at(2130, 1, 1)));
  book.charge("one", "course", "", charged += 1s, last);
  CHECK(book.used("course", last) == 2s);
  CHECK(book.used("course", Month(at(2026, 1, 1))) == 0s);
  // 40 months were charged; the book keeps the last 23 of them beside the one that the clock leapt to.
  CHECK(book.used("course", Month(at(2027, 5, 1))) == 0s);
  CHECK(book.used("course", Month(at(2027, 6, 1))) == 1s);
}

TEST_CASE("a text that is no book is refused with the reason") {
  for (const char* text :
       {"", "{}", "[]", R"({"format":2,"accounts":{},"sessions":{}})",
        R"({"format":1,"accounts":{"a":1},"sessions":{}})", R"({"format":1,"accounts":{"a":{"soon":1}},"sessions":{}})",
        R"({"format":1,"accounts":{},"sessions":{"a":"b"}})"}) {
    auto book = BudgetBook::parse(text);
    REQUIRE_FALSE(book.has_value());
    CHECK_FALSE(book.error().empty());
  }
}
