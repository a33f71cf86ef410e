#include "test/protocol/tls/handshakes.hpp"

#include <poll.h>

namespace gpuwire::test {

namespace {

void wait_for(int descriptor, short events) {
  pollfd ready{descriptor, events, 0};
  poll(&ready, 1, int(std::chrono::milliseconds(kLimit).count()));
}

}  // namespace

transport::IoResult receive_some(tls::TlsChannel& channel, int descriptor, std::span<std::byte> out) {
  auto deadline = std::chrono::steady_clock::now() + kLimit;
  for (;;) {
    auto result = channel.try_receive(out);
    if (result.status != transport::IoStatus::would_block || std::chrono::steady_clock::now() > deadline) return result;
    if (!channel.pending()) wait_for(descriptor, POLLIN);
  }
}

bool send_all(tls::TlsChannel& channel, int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    auto result = channel.try_send({&piece, 1});
    if (result.status == transport::IoStatus::would_block) wait_for(descriptor, POLLOUT);
    else if (result.status != transport::IoStatus::ok) return false;
    bytes = bytes.subspan(result.bytes);
  }
  return true;
}

}  // namespace gpuwire::test
