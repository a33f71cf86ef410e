#include "test/simulation/relay.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <random>
#include <utility>

namespace gpuwire::simulation {

namespace {

constexpr size_t kPieceBytesMax = 64 * 1024;

void wait_for(int socket, short what) {
  pollfd polled{socket, what, 0};
  ::poll(&polled, 1, -1);
}

// Returns false if the receiver has closed.
bool deliver(int socket, const std::byte* bytes, size_t count) {
  while (count != 0) {
    ssize_t sent = ::send(socket, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent < 0) {
      wait_for(socket, POLLOUT);
      continue;
    }
    bytes += sent;
    count -= size_t(sent);
  }
  return true;
}

}  // namespace

std::unique_ptr<Relay> Relay::between(int (&ends)[2], Options options) {
  int first[2], second[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, first) != 0) return nullptr;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, second) != 0) {
    for (int socket : first) ::close(socket);
    return nullptr;
  }
  ends[0] = first[0];
  ends[1] = second[0];
  std::unique_ptr<Relay> relay(new Relay(first[1], second[1], std::move(options)));
  for (unsigned direction : {0, 1})
    relay->threads_[direction] = std::thread([own = relay.get(), direction] { own->carry(direction); });
  return relay;
}

Relay::~Relay() {
  for (std::thread& thread : threads_) thread.join();
  for (int socket : sides_) ::close(socket);
}

void Relay::cut() {
  if (options_.was_cut) options_.was_cut();
  for (int socket : sides_) ::shutdown(socket, SHUT_RDWR);
}

void Relay::carry(unsigned direction) {
  const int from = sides_[direction], to = sides_[1 - direction];
  std::mt19937_64 random(options_.seed * 2 + direction);
  std::array<std::byte, kPieceBytesMax> piece;
  uint64_t until_cut = options_.cut[direction], until_swallow = options_.swallow[direction];
  while (until_cut != 0) {
    wait_for(from, POLLIN);
    size_t most = options_.piece_bytes_max ? 1 + random() % options_.piece_bytes_max : piece.size();
    most = size_t(std::min<uint64_t>({most, piece.size(), until_cut, until_swallow ? until_swallow : ~0ull}));
    ssize_t got = ::recv(from, piece.data(), most, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) break;
    if (swallows_) continue;
    if (!deliver(to, piece.data(), size_t(got))) break;
    until_cut -= size_t(got);
    until_swallow -= size_t(got);
    if (until_swallow == 0) swallows_ = true;
  }
  if (until_cut == 0) cut();
  // Passes on the end of the stream; and to the sender, that nothing is received any more.
  if (!swallows_) ::shutdown(to, SHUT_WR);
  ::shutdown(from, SHUT_RD);
  carrying_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace gpuwire::simulation
