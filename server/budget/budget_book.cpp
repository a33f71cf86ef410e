#include "server/budget/budget_book.hpp"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "protocol/units/json.hpp"

namespace gpuwire::server {
namespace {

using nlohmann::json;
using std::chrono::nanoseconds;

constexpr int kFormat = 1;
constexpr int kMonthsOfYear = 12;

}  // namespace

Month::Month(std::chrono::system_clock::time_point when) {
  const std::chrono::year_month_day date(std::chrono::floor<std::chrono::days>(when));
  number_ = int(date.year()) * kMonthsOfYear + int(unsigned(date.month())) - 1;
}

tl::expected<Month, std::string> Month::parse(const std::string& text) {
  int year = 0, read = 0;
  unsigned month = 0;
  if (std::sscanf(text.c_str(), "%4d-%2u%n", &year, &month, &read) != 2 || size_t(read) != text.size() || year < 1970 ||
      month < 1 || month > kMonthsOfYear)
    return tl::unexpected(fmt::format("\"{:.16}\" is no month", text));
  Month parsed;
  parsed.number_ = year * kMonthsOfYear + int(month) - 1;
  return parsed;
}

std::string Month::text() const {
  return fmt::format("{:04}-{:02}", number_ / kMonthsOfYear, number_ % kMonthsOfYear + 1);
}

std::chrono::system_clock::time_point Month::end() const {
  using namespace std::chrono;
  const int next = number_ + 1;
  return sys_days(year(next / kMonthsOfYear) / month(unsigned(next % kMonthsOfYear + 1)) / day(1));
}

void BudgetBook::charge(const std::string& session, const Account& tenant, const Account& user, nanoseconds charged,
                        Month now) {
  int64_t& counted = sessions_[session];
  const int64_t ns = charged.count() - counted;
  if (ns <= 0) return;
  counted = charged.count();
  ++changes_;
  add(tenant, ns, now);
  if (!user.empty()) add(user, ns, now);
}

void BudgetBook::begin_at(const std::string& session, nanoseconds charged) {
  sessions_[session] = charged.count();
  ++changes_;
}

void BudgetBook::add(const Account& account, int64_t ns, Month now) {
  auto [at, added] = accounts_.try_emplace(account);
  Months& months = at->second;
  months[now] += ns;
  // Removes the months that are farthest from now, but never the present one: a clock that leaps a century ahead
  // removes the oldest month.
  auto farthest = [&] {
    return months.begin()->first.distance(now) > months.rbegin()->first.distance(now) ? months.begin()
                                                                                      : std::prev(months.end());
  };
  while (months.size() > kBudgetMonthsMax) months.erase(farthest());
  if (!added || accounts_.size() <= kBudgetAccountsMax) return;
  // Finds the account without a charge for the longest time.
  auto oldest = std::ranges::min_element(accounts_, {}, [](const auto& one) { return one.second.rbegin()->first; });
  accounts_.erase(oldest);
}

void BudgetBook::keep_only(const std::set<std::string>& sessions) {
  changes_ += std::erase_if(sessions_, [&](const auto& one) { return !sessions.contains(one.first); });
}

nanoseconds BudgetBook::used(const Account& account, Month month) const {
  auto found = accounts_.find(account);
  if (found == accounts_.end()) return {};
  auto in = found->second.find(month);
  return nanoseconds(in == found->second.end() ? 0 : in->second);
}

std::vector<std::string> BudgetBook::users_of(const std::string& tenant, Month month) const {
  const std::string prefix = tenant + "/";
  std::vector<std::string> users;
  for (auto at = accounts_.lower_bound(prefix); at != accounts_.end() && at->first.starts_with(prefix); ++at)
    if (at->second.contains(month)) users.push_back(at->first.substr(prefix.size()));
  return users;
}

nanoseconds BudgetBook::charged_in_all() const {
  int64_t ns = 0;
  for (const auto& [account, months] : accounts_) {
    if (account.find('/') != account.npos) continue;
    for (const auto& [month, used] : months) ns += used;
  }
  return nanoseconds(ns);
}

std::string BudgetBook::text() const {
  json accounts = json::object(), sessions = json::object();
  for (const auto& [account, months] : accounts_)
    for (const auto& [month, ns] : months) accounts[account][month.text()] = ns;
  for (const auto& [session, ns] : sessions_) sessions[session] = ns;
  return dump_json(json{{"format", kFormat}, {"accounts", accounts}, {"sessions", sessions}}, 1) + "\n";
}

tl::expected<BudgetBook, std::string> BudgetBook::parse(const std::string& text) {
  const json root = parse_json(text);
  BudgetBook book;
  try {
    if (root.at("format") != kFormat) return tl::unexpected(fmt::format("its format is not {}", kFormat));
    for (const auto& [account, months] : root.at("accounts").items()) {
      for (const auto& [name, ns] : months.items()) {
        auto month = Month::parse(name);
        if (!month) return tl::unexpected(month.error());
        book.accounts_[account][*month] = std::max<int64_t>(ns.get<int64_t>(), 0);
      }
    }
    for (const auto& [session, ns] : root.at("sessions").items()) book.sessions_[session] = ns.get<int64_t>();
  } catch (const json::exception& error) {
    return tl::unexpected(std::string(error.what()));
  }
  if (book.accounts_.size() > kBudgetAccountsMax || book.sessions_.size() > kBudgetSessionsMax)
    return tl::unexpected(std::string("it has more accounts or sessions than there can be"));
  return book;
}

}  // namespace gpuwire::server
