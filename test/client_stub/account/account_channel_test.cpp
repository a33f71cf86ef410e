#include "client_stub/account/account_channel.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace gpuwire::client;

namespace {

constexpr int kLimitMs = 120'000;  // only ends a test that hangs

bool becomes_ready(const OwnedDescriptor& descriptor) {
  pollfd one{descriptor.get(), POLLIN, 0};
  return poll(&one, 1, kLimitMs) == 1;
}

ino_t number_of(int descriptor) {
  struct stat found {};
  fstat(descriptor, &found);
  return found.st_ino;
}

}  // namespace

TEST_CASE("a process that has handed its page over may end: the page, its standard error and its end arrive") {
  AccountListener listener = listen_for_accounts();
  REQUIRE(listener.socket);
  OwnedDescriptor page(memfd_create("page", MFD_CLOEXEC));
  int send_end[2];
  REQUIRE(pipe(send_end) == 0);
  const pid_t child = fork();
  if (child == 0) {
    close(send_end[1]);
    const bool handed = hand_account_over(listener.name.c_str(), page.get());
    char nothing;
    while (read(send_end[0], &nothing, 1) > 0) {}
    _exit(handed ? 0 : 1);
  }
  close(send_end[0]);
  REQUIRE(becomes_ready(listener.socket));
  OwnedDescriptor connection = accept_account(listener.socket);
  REQUIRE(connection);
  REQUIRE(becomes_ready(connection));
  auto account = receive_account(connection);
  REQUIRE(account);
  CHECK(number_of(account->page.get()) == number_of(page.get()));
  CHECK(number_of(account->error.get()) == number_of(STDERR_FILENO));
  pollfd ended{account->process.get(), POLLIN, 0};
  CHECK(poll(&ended, 1, 0) == 0);
  close(send_end[1]);
  CHECK(becomes_ready(account->process));
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(status == 0);
}

TEST_CASE("where nobody listens, or the name is none, nothing is handed over") {
  std::string gone = listen_for_accounts().name;  // the listener ends here
  REQUIRE(!gone.empty());
  CHECK(!hand_account_over(gone.c_str(), STDERR_FILENO));
  CHECK(!hand_account_over("", STDERR_FILENO));
  CHECK(!hand_account_over(std::string(200, 'x').c_str(), STDERR_FILENO));
}

TEST_CASE("a connection that brings nothing is no account") {
  AccountListener listener = listen_for_accounts();
  REQUIRE(!accept_account(listener.socket));
  int pair[2];
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
  OwnedDescriptor reader(pair[0]);
  {
    OwnedDescriptor writer(pair[1]);
    CHECK(write(writer.get(), "x", 1) == 1);
  }
  CHECK(!receive_account(reader));
  CHECK(!receive_account(reader));
}
