#include <doctest/doctest.h>

#include <csignal>
#include <fstream>
#include <optional>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "server/broker/worker/worker_users.hpp"
#include "server/confinement/real_user.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire::server;

TEST_CASE("each worker has a user of its own, and one that is given back is lent again") {
  WorkerUsers users({100'000, 100'002});
  auto first = users.lend(), second = users.lend();
  CHECK(first.user() == 100'000);
  CHECK(second.user() == 100'001);
  {
    auto third = users.lend();
    CHECK(third.user() == 100'002);
  }
  std::optional<WorkerUsers::Loan> moved = std::move(first);
  CHECK(users.lend().user() == 100'002);
  moved.reset();
  CHECK(users.lend().user() == 100'000);
}

TEST_CASE("where there are more workers than users, the user that fewest workers have is shared") {
  WorkerUsers users({100'000, 100'001});
  std::vector<WorkerUsers::Loan> loans;
  for (int i = 0; i < 4; ++i) loans.push_back(users.lend());
  CHECK(loans[2].user() != loans[3].user());
  loans.erase(loans.begin() + 1);  // one of 100001's two
  CHECK(users.lend().user() == 100'001);
}

TEST_CASE("a worker of an earlier server keeps its user, which nobody else gets before it is adopted or after") {
  if (!may_give_users()) return;
  const UserRange range{1'600'000'200, 1'600'000'202};
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t worker = ::fork();
  if (worker == 0) {
    if (!take_real_user(range.first) || ::write(ready[1], "x", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  WorkerUsers users(range);
  auto before = users.lend();
  CHECK(before.user() == range.first + 1);
  {
    auto adopted = users.adopt(worker);
    REQUIRE(adopted);
    CHECK(adopted->user() == range.first);
    CHECK(users.lend().user() == range.first + 2);
  }
  CHECK(users.lend().user() == range.first);
  CHECK_FALSE(WorkerUsers({200'000, 200'009}).adopt(worker));
  // A user of a worker that is never adopted is lent when no other is left.
  WorkerUsers crowded(range);
  auto one = crowded.lend(), other = crowded.lend(), third = crowded.lend();
  CHECK(third.user() == range.first);
  ::kill(worker, SIGKILL);
  ::waitpid(worker, nullptr, 0);
  CHECK_FALSE(users.adopt(worker));
  for (int end : ready) ::close(end);
}

TEST_CASE("the largest range of a user's subordinate users counts, named by name or number, and nothing malformed") {
  gpuwire::test::TemporaryDirectory folder;
  const auto file = folder.path() / "subuid";
  std::ofstream(file) << "# a comment\nsomebody:100000:65536\nroot:200000:10\n0:300000:65536\nroot:400000\n"
                         "root:500000:0\nroot:x:65536\nroot:70000:4294967295\nroot:10:99999\n0x:600000:99999\n";
  auto found = subordinate_users(file, 0);
  REQUIRE(found);
  CHECK(*found == UserRange{300'000, 365'535});
  CHECK(subordinate_users(file, 77'777).error().find("77777") != std::string::npos);
  CHECK_FALSE(subordinate_users(folder.path() / "none", 0));
}
