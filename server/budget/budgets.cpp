#include "server/budget/budgets.hpp"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "server/identity/register.hpp"

namespace gpuwire::server {
namespace {

std::string name_of(const SessionRecord& session) {
  std::string name;
  for (uint8_t byte : session.wire_id) name += fmt::format("{:02x}", byte);
  return name;
}

std::string user_account(const SessionRecord& session) {
  return session.user.empty() ? std::string() : label_of(session.tenant, session.user);
}

std::chrono::nanoseconds time_of(const MonthlyBudget& budget) { return std::chrono::milliseconds(int64_t(budget.ms)); }

std::string hours(uint64_t ms) { return fmt::format("{:g} h", double(ms) / 3'600'000); }

uint64_t count(std::chrono::nanoseconds time) { return uint64_t(std::max<int64_t>(time.count(), 0)); }

}  // namespace

Budgets::Budgets(boost::asio::io_context& io, SessionRegistry& registry, std::filesystem::path file, Deps around)
    : registry_(registry),
      path_(file.empty() ? default_budget_file() : std::move(file)),
      around_(std::move(around)),
      timer_(io) {
  registry.observe(lifetime_.guard([this](const SessionEvent&) { poll_later(); }));
}

Budgets::~Budgets() = default;

// --- settings ------------------------------------------------------------------------------------------------------

void Budgets::tenants_changed(const TenantDirectory& tenants) {
  tenants_.clear();
  wanted_ = false;
  for (const Tenant& tenant : tenants.all()) {
    tenants_[tenant.settings.name] = tenant.settings;
    wanted_ |= tenant.known && has_budget(tenant.settings);
  }
  if (wanted_) open();
  if (opened_) poll();
}

// Sessions that began before anybody had a budget are charged from now on.
void Budgets::open() {
  if (std::exchange(opened_, true)) return;
  fresh_ = true;
  if (auto file = BudgetFile::open(path_); !file) {
    spdlog::error("what is used of budgets is forgotten when the server ends: {}", file.error());
  } else {
    file_ = std::move(*file);
    auto read = file_->read();
    if (!read) spdlog::error("budgets begin anew: {}", read.error());
    else if (*read) book_ = std::move(**read), fresh_ = false, saved_ = book_.changes();
  }
  begin_here();
}

// The earlier charges of sessions that the book does not have belong to no account.
void Budgets::begin_here() {
  for (const auto& [number, session] : registry_.all()) {
    auto charged = around_.charged(number);
    if (charged && !book_.knows(name_of(session))) book_.begin_at(name_of(session), *charged);
  }
}

// --- sessions ------------------------------------------------------------------------------------------------------

tl::expected<void, std::string> Budgets::attach(const SessionRecord& session, SessionSpec&, ipc::SessionDescriptors&) {
  fresh_ = false;
  scavengers_[session.number] = false;
  apply(session);
  return {};
}

tl::expected<void, std::string> Budgets::adopt(const SessionRecord& session, const KeptSession&, KeptEntry&) {
  if (!session.management) scavengers_[session.number] = false;
  return {};
}

// The configuration was applied before, so the book is open if somebody has a budget.
void Budgets::all_adopted() {
  if (!opened_) return;
  if (std::exchange(fresh_, false)) begin_here();
  std::set<std::string> there;
  for (const auto& [number, session] : registry_.all()) there.insert(name_of(session));
  book_.keep_only(there);
  poll();
}

void Budgets::ended(const SessionRecord& session) {
  if (opened_) {
    charge(session);
    book_.forget(name_of(session));
    save();
    poll_later();
  }
  scavengers_.erase(session.number);
}

void Budgets::charge(const SessionRecord& session) {
  if (session.management) return;
  if (auto charged = around_.charged(session.number))
    book_.charge(name_of(session), session.tenant, user_account(session), *charged, month());
}

// --- consequences --------------------------------------------------------------------------------------------------

void Budgets::poll() {
  if (!opened_) return;
  for (const auto& [number, session] : registry_.all()) charge(session);
  save();
  judge();
  poll_later();
}

Budgets::UsedUp Budgets::used_up_now() const {
  UsedUp found;
  auto check = [&](const std::string& account, const MonthlyBudget& budget) {
    if (is_used_up(account, budget)) found[account] = budget.hard;
  };
  for (const auto& [name, tenant] : tenants_) check(name, tenant.budget);
  // Only of users with running or waiting programs.
  for (const auto& [number, session] : registry_.all()) {
    auto tenant = tenants_.find(session.tenant);
    if (tenant == tenants_.end() || session.user.empty()) continue;
    check(user_account(session), bounds_of_user(tenant->second, session.user).budget);
  }
  return found;
}

void Budgets::judge() {
  for (const auto& [number, session] : registry_.all()) apply(session);
  UsedUp now = used_up_now();
  if (now == used_up_) return;
  for (const auto& [account, hard] : now)
    if (!used_up_.contains(account))
      spdlog::info("{} has used the GPU time of this month: {}", account,
                   hard ? "its programs wait for the next" : "its programs are scavengers until the next");
  used_up_ = std::move(now);
  // Posted for later: the caller may be in the middle of a notification of the admission.
  boost::asio::post(timer_.get_executor(), lifetime_.guard([this] { around_.changed(); }));
}

bool Budgets::is_used_up(const BudgetBook::Account& account, const MonthlyBudget& budget) const {
  return budget.ms != 0 && book_.used(account, month()) >= time_of(budget);
}

void Budgets::apply(const SessionRecord& session) {
  auto one = scavengers_.find(session.number);
  if (one == scavengers_.end()) return;
  const bool falls = used_up(session);
  if (std::exchange(one->second, falls) != falls) around_.set_scavenger(session.number, falls);
}

bool Budgets::used_up(const SessionRecord& session) const {
  auto tenant = tenants_.find(session.tenant);
  if (tenant == tenants_.end()) return false;
  return is_used_up(session.tenant, tenant->second.budget) ||
         (!session.user.empty() &&
          is_used_up(user_account(session), bounds_of_user(tenant->second, session.user).budget));
}

std::string Budgets::why_held(const SessionRecord& session) const {
  auto tenant = tenants_.find(session.tenant);
  if (tenant == tenants_.end()) return {};
  auto held = [&](const std::string& account, const MonthlyBudget& budget, const char* who) {
    if (!budget.hard || !is_used_up(account, budget)) return std::string();
    return fmt::format("{} has used the GPU time of this month ({}); the next begins on {}", who, hours(budget.ms),
                       to_words(month().end()));
  };
  std::string why = held(session.tenant, tenant->second.budget, "the tenant");
  if (!why.empty() || session.user.empty()) return why;
  return held(user_account(session), bounds_of_user(tenant->second, session.user).budget, "the user");
}

// --- the file ------------------------------------------------------------------------------------------------------

void Budgets::save() {
  if (!file_) return;
  if (book_.changes() == saved_) return;
  if (auto written = file_->write(book_); !written) {
    if (save_error_ != written.error()) spdlog::error("what is used of budgets cannot be kept: {}", written.error());
    save_error_ = written.error();
    return;
  }
  save_error_.clear();
  saved_ = book_.changes();
}

void Budgets::poll_later() {
  if (!opened_ || registry_.all().empty() || std::exchange(polling_, true)) return;
  timer_.expires_after(kBudgetPollTime);
  timer_.async_wait(lifetime_.guard([this](boost::system::error_code error) {
    polling_ = false;
    if (!error) poll();
  }));
}

// --- figures -------------------------------------------------------------------------------------------------------

void Budgets::add(Snapshot& snapshot) {
  const Month now = month();
  for (TenantMetrics& figures : snapshot.tenants) {
    auto tenant = tenants_.find(figures.name);
    // If nobody has a budget, no usage is counted.
    if (tenant == tenants_.end() || !(opened_ || bounds_memory_of_users(tenant->second))) continue;
    figures.budget_ns = count(time_of(tenant->second.budget));
    figures.budget_used_ns = count(book_.used(figures.name, now));
    figures.budget_hard = tenant->second.budget.hard;
    std::map<std::string, UserMetrics> users;
    auto user = [&](const std::string& name) -> UserMetrics& {
      UserMetrics& one = users[name];
      one.name = name;
      return one;
    };
    for (const auto& [name, bounds] : tenant->second.users) user(name);
    for (const std::string& name : book_.users_of(figures.name, now)) user(name);
    for (const auto& [number, session] : registry_.all())
      if (session.tenant == figures.name && !session.user.empty()) ++user(session.user).sessions;
    for (auto& [name, one] : users) {
      const UserConfiguration bounds = bounds_of_user(tenant->second, name);
      one.sessions_max = bounds.sessions_max;
      one.budget_ns = count(time_of(bounds.budget));
      one.budget_used_ns = count(book_.used(label_of(figures.name, name), now));
      one.budget_hard = bounds.budget.hard;
      figures.users.push_back(std::move(one));
    }
    if (figures.users.size() <= kUsersShownMax) continue;
    std::ranges::stable_sort(figures.users, std::greater{}, &UserMetrics::budget_used_ns);
    figures.users.resize(kUsersShownMax);
  }
}

}  // namespace gpuwire::server
