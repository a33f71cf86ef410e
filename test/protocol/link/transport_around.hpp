// A transport around another, of which a test replaces what it is about.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "protocol/transport/transport.hpp"

namespace gpuwire::test {

// Hands every call on, but for the descriptor: nobody passes by it.
class TransportAround : public transport::Transport {
 public:
  explicit TransportAround(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  transport::IoResult try_send(std::span<const iovec> pieces) noexcept override { return inner_->try_send(pieces); }
  transport::IoResult try_receive(std::span<std::byte> out) noexcept override { return inner_->try_receive(out); }
  unsigned wait(unsigned interest, transport::Nanoseconds timeout) noexcept override {
    return inner_->wait(interest, timeout);
  }
  size_t unread() noexcept override { return inner_->unread(); }
  void wake() noexcept override { inner_->wake(); }
  void finish() noexcept override { inner_->finish(); }
  void shutdown() noexcept override { inner_->shutdown(); }
  void reset() noexcept override { inner_->reset(); }
  void stop_receiving() noexcept override { inner_->stop_receiving(); }
  bool peer_closed() noexcept override { return inner_->peer_closed(); }
  int descriptor() const noexcept override { return -1; }
  void abandon_after_fork() noexcept override {}
  std::string peer() const override { return "around " + inner_->peer(); }

 protected:
  const std::unique_ptr<Transport> inner_;
};

}  // namespace gpuwire::test
