// Which real user each worker gets (server/confinement/real_user.hpp).
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

// The users of `range`, one for each worker. A user that a process of the machine has already stays with it: the
// workers of an earlier broker exist before they are adopted. If there are more workers than users, the one with the
// fewest workers is shared. On the broker's thread; outlives the users that it has lent.
class WorkerUsers {
 public:
  // A user, until it is destroyed, which is when its process is gone.
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
  // The user of a worker of an earlier broker. None: the worker has none of the range.
  std::optional<Loan> adopt(pid_t worker);

 private:
  std::optional<uid_t> free() const;
  void give_back(uid_t user);

  const UserRange range_;
  std::set<uid_t> others_;             // had by processes when this began, and not adopted since
  std::map<uid_t, unsigned> workers_;  // that have each user; none of them 0
};

// The largest range of subordinate users that the file gives to the user, who may be listed by number, too (subuid(5)).
// The error names the missing part.
tl::expected<UserRange, std::string> subordinate_users(const std::filesystem::path& file, uid_t user);

// The users that this process may give to workers by the choice, which is not "off". The error names the missing part.
tl::expected<UserRange, std::string> range_for_workers(const WorkerUsersChoice& choice);

}  // namespace gpuwire::server
