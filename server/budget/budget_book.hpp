// The GPU time that was charged to each tenant and user in each month.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <tl/expected.hpp>

namespace gpuwire::server {

// A calendar month in UTC.
class Month {
 public:
  Month() = default;
  explicit Month(std::chrono::system_clock::time_point when);
  static tl::expected<Month, std::string> parse(const std::string& text);

  // "2026-11".
  std::string text() const;
  // Returns the end of the month, which is the beginning of the next month.
  std::chrono::system_clock::time_point end() const;
  int distance(Month other) const {
    return number_ > other.number_ ? number_ - other.number_ : other.number_ - number_;
  }
  auto operator<=>(const Month&) const = default;

 private:
  // Months since the year 0.
  int number_ = 0;
};

inline constexpr size_t kBudgetMonthsMax = 24;         // of an account
inline constexpr size_t kBudgetAccountsMax = 100'000;  // of tenants and users together
inline constexpr size_t kBudgetSessionsMax = 200'000;
inline constexpr size_t kBudgetTextBytesMax = 64u << 20;

// A value; no locks. Two books with the same text are the same.
class BudgetBook {
 public:
  // The name of an account: "course", "course/anna".
  using Account = std::string;

  // Updates the charge of a session, which has a unique name. The charge counts from the session's beginning and only
  // grows. The part that the book has not counted yet is charged to the session's tenant and, if that is not empty, to
  // its user.
  void charge(const std::string& session, const Account& tenant, const Account& user, std::chrono::nanoseconds charged,
              Month now);
  // The session's charge until now belongs to no account: the session began when nobody had a budget.
  void begin_at(const std::string& session, std::chrono::nanoseconds charged);
  bool knows(const std::string& session) const { return sessions_.contains(session); }
  void forget(const std::string& session) { changes_ += sessions_.erase(session); }
  // Removes all sessions but these: the others ended without a notification.
  void keep_only(const std::set<std::string>& sessions);

  std::chrono::nanoseconds used(const Account& account, Month month) const;
  // Returns the tenant's users that were charged in this month.
  std::vector<std::string> users_of(const std::string& tenant, Month month) const;
  // Returns the sum of all tenants' accounts in all months. For tests.
  std::chrono::nanoseconds charged_in_all() const;

  // Grows with each change.
  uint64_t changes() const { return changes_; }
  std::string text() const;
  static tl::expected<BudgetBook, std::string> parse(const std::string& text);

 private:
  // Nanoseconds.
  using Months = std::map<Month, int64_t>;
  void add(const Account& account, int64_t ns, Month now);

  std::map<Account, Months> accounts_;
  // The counted charge of each session.
  std::map<std::string, int64_t> sessions_;
  uint64_t changes_ = 0;
};

}  // namespace gpuwire::server
