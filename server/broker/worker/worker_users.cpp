#include "server/broker/worker/worker_users.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include "server/confinement/real_user.hpp"

namespace gpuwire::server {
namespace {

constexpr const char* kSubordinateUsers = "/etc/subuid";

std::string name_of(uid_t user) {
  const passwd* entry = ::getpwuid(user);
  return entry ? entry->pw_name : "";
}

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "gpuwire:100000:65536": the name or number of a user, the first subordinate one, how many.
std::optional<UserRange> range_in(std::string_view line, std::string_view name, uid_t user) {
  const size_t first_colon = line.find(':'), second_colon = line.find(':', first_colon + 1);
  if (first_colon == line.npos || second_colon == line.npos) return std::nullopt;
  const std::string_view whose = line.substr(0, first_colon);
  if (whose.empty() || (whose != name && number(whose) != uint64_t{user})) return std::nullopt;
  const auto first = number(line.substr(first_colon + 1, second_colon - first_colon - 1)),
             users = number(line.substr(second_colon + 1));
  if (!first || !users || *users == 0) return std::nullopt;
  return user_range(*first, *first + (*users - 1));
}

// The process's real user as the kernel reports it: the first number of its line.
std::optional<uid_t> real_user_of(pid_t process) {
  std::ifstream status(fmt::format("/proc/{}/status", process));
  for (std::string word; status >> word;) {
    uid_t user = 0;
    if (word == "Uid:" && status >> user) return user;
  }
  return std::nullopt;
}

bool within(const UserRange& range, uid_t user) { return range.first <= user && user <= range.last; }

std::set<uid_t> users_of_processes(const UserRange& range) {
  std::set<uid_t> users;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto process = number(entry.path().filename().native());
    const auto user = process ? real_user_of(pid_t(*process)) : std::nullopt;
    if (user && within(range, *user)) users.insert(*user);
  }
  return users;
}

}  // namespace

WorkerUsers::WorkerUsers(UserRange range) : range_(range), others_(users_of_processes(range)) {}

std::optional<uid_t> WorkerUsers::free() const {
  for (uint64_t user = range_.first; user <= range_.last; ++user)
    if (!workers_.contains(uid_t(user)) && !others_.contains(uid_t(user))) return uid_t(user);
  return std::nullopt;
}

WorkerUsers::Loan WorkerUsers::lend() {
  if (auto user = free()) return {*this, *user};
  others_.clear();  // the remaining ones belong to no adopted worker
  if (auto user = free()) return {*this, *user};
  auto fewest = std::ranges::min_element(workers_, {}, [](const auto& entry) { return entry.second; });
  return {*this, fewest->first};
}

std::optional<WorkerUsers::Loan> WorkerUsers::adopt(pid_t worker) {
  auto user = real_user_of(worker);
  if (!user || !within(range_, *user)) return std::nullopt;
  others_.erase(*user);
  return Loan(*this, *user);
}

void WorkerUsers::give_back(uid_t user) {
  auto found = workers_.find(user);
  if (--found->second == 0) workers_.erase(found);
}

tl::expected<UserRange, std::string> subordinate_users(const std::filesystem::path& file, uid_t user) {
  std::ifstream lines(file);
  if (!lines) return tl::unexpected(fmt::format("{}: {}", file.string(), std::strerror(errno)));
  const std::string name = name_of(user);
  std::optional<UserRange> largest;
  for (std::string line; std::getline(lines, line);) {
    auto found = range_in(line, name, user);
    if (found && (!largest || found->last - found->first > largest->last - largest->first)) largest = found;
  }
  if (largest) return *largest;
  return tl::unexpected(
      fmt::format("{} has no users for {}", file.string(), name.empty() ? std::to_string(user) : name));
}

tl::expected<UserRange, std::string> range_for_workers(const WorkerUsersChoice& choice) {
  tl::expected<UserRange, std::string> range = choice.range;
  if (choice.from == WorkerUsersChoice::From::subordinate) range = subordinate_users(kSubordinateUsers, ::geteuid());
  if (range && !may_give_users())
    range = tl::unexpected(std::string("the server may not change users: it needs CAP_SETUID (docs/security.md)"));
  return range.map_error([](const std::string& why) { return "worker_users: " + why; });
}

}  // namespace gpuwire::server
