// WorkerUsers assigns a real user to each worker (server/confinement/real_user.hpp).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <sys/types.h>
#include <tl/expected.hpp>

#include "server/config/configuration.hpp"

namespace gpuwire::server {

// It lends the users of `range`, one to each worker. It does not lend a user that a process of the machine has already:
// the workers of an earlier broker exist before they are adopted. If there are more workers than users, it shares the
// user with the fewest workers. The broker's thread only; outlives its loans.
class WorkerUsers {
 public:
  // A lent user. It is destroyed when its process is gone.
  class Loan {
   public:
    Loan(Loan&& other) noexcept : users_(std::exchange(other.users_, nullptr)), user_(other.user_) {}
    Loan& operator=(Loan&& other) noexcept {
      std::swap(users_, other.users_);
      std::swap(user_, other.user_);
      return *this;
    }
    ~Loan() {
      if (users_) users_->give_back(user_);
    }
    uid_t user() const { return user_; }

   private:
    friend WorkerUsers;
    Loan(WorkerUsers& users, uid_t user) : users_(&users), user_(user) { ++users.workers_[user]; }
    WorkerUsers* users_;
    uid_t user_;
  };

  explicit WorkerUsers(UserRange range);

  Loan lend();
  // Returns the loan of an adopted worker's user; nothing: its user is not of the range.
  std::optional<Loan> adopt(pid_t worker);

 private:
  std::optional<uid_t> free() const;
  void give_back(uid_t user);

  const UserRange range_;
  // Users of processes at the start, and not adopted since.
  std::set<uid_t> others_;
  // The number of workers of each user, never 0.
  std::map<uid_t, unsigned> workers_;
};

// The largest range of subordinate users that the file gives to the user, who may be listed by number, too (subuid(5)).
// The error names the missing part.
tl::expected<UserRange, std::string> subordinate_users(const std::filesystem::path& file, uid_t user);

// The users that this process may give to workers by the choice, which is not "off". The error names the missing part.
tl::expected<UserRange, std::string> range_for_workers(const WorkerUsersChoice& choice);

}  // namespace gpuwire::server
