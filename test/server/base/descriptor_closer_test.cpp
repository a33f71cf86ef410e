#include "server/base/descriptor_closer.hpp"
#include "protocol/transport/connecting.hpp"

#include <array>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

using namespace gpuwire::server;

namespace {

// The two ends of a TCP connection on this machine.
std::array<OwnedDescriptor, 2> connection() {
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof where;
  OwnedDescriptor listening(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  OwnedDescriptor near(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(listening.get(), reinterpret_cast<const sockaddr*>(&where), bytes) == 0);
  REQUIRE(::listen(listening.get(), 1) == 0);
  REQUIRE(::getsockname(listening.get(), reinterpret_cast<sockaddr*>(&where), &bytes) == 0);
  REQUIRE(gpuwire::transport::connect_through_signals(near.get(), reinterpret_cast<const sockaddr*>(&where), bytes) ==
          0);
  return {std::move(near), OwnedDescriptor(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC))};
}

}  // namespace

TEST_CASE("a socket that would keep its closer until its data are sent keeps nobody") {
  auto [near, far] = connection();
  const linger long_time{1, 3600};
  REQUIRE(::setsockopt(near.get(), SOL_SOCKET, SO_LINGER, &long_time, sizeof long_time) == 0);
  std::array<char, 65536> data{};
  while (::send(near.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {}
  {
    DescriptorCloser closer;
    closer.close(std::move(near));
    CHECK_FALSE(near);
  }
  // All bytes arrive, and then the end of the stream.
  ssize_t got;
  do got = ::recv(far.get(), data.data(), data.size(), 0);
  while (got > 0);
  CHECK(got == 0);
}

TEST_CASE("every descriptor that is handed over is closed, also those that still wait at the closer's end") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  OwnedDescriptor stays(ends[1]);
  {
    DescriptorCloser closer;
    for (unsigned i = 0; i < 2 * DescriptorCloser::kWaitingMax; ++i)
      closer.close(OwnedDescriptor(::fcntl(ends[0], F_DUPFD_CLOEXEC, 0)));
    closer.close(OwnedDescriptor(ends[0]));
    closer.close({});
  }
  pollfd watched{stays.get(), POLLIN, 0};
  REQUIRE(::poll(&watched, 1, 120'000) == 1);
  CHECK((watched.revents & POLLHUP) != 0);
}
