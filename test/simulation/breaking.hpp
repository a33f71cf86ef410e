// A connection of another kind that breaks, as its receiver sees it, after a number of bytes: what is under way then
// never arrives.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "protocol/transport/transport.hpp"

namespace gpuwire::simulation {

class BreakingTransport final : public transport::Transport {
 public:
  // ~0: never. `was_cut` is told when it has broken there.
  BreakingTransport(std::unique_ptr<transport::Transport> inside, uint64_t receives, std::function<void()> was_cut)
      : inside_(std::move(inside)), was_cut_(std::move(was_cut)), left_(receives) {
    if (left_ == 0) was_cut_();
  }

  transport::IoResult try_send(std::span<const iovec> pieces) noexcept override { return inside_->try_send(pieces); }
  transport::IoResult try_receive(std::span<std::byte> out) noexcept override {
    return count(out, [&](auto part) { return inside_->try_receive(part); });
  }
  transport::IoResult receive_bulk(std::span<std::byte> out) noexcept override {
    return count(out, [&](auto part) { return inside_->receive_bulk(part); });
  }
  bool input() noexcept override { return inside_->input(); }
  unsigned wait(unsigned interest, transport::Nanoseconds timeout) noexcept override {
    return inside_->wait(interest, timeout);
  }
  void wake() noexcept override { inside_->wake(); }
  void finish() noexcept override { inside_->finish(); }
  void shutdown() noexcept override { inside_->shutdown(); }
  int descriptor() const noexcept override { return inside_->descriptor(); }
  void abandon_after_fork() noexcept override { inside_->abandon_after_fork(); }
  std::string peer() const override { return inside_->peer(); }

 private:
  template <class Receive>
  transport::IoResult count(std::span<std::byte> out, Receive&& receive) noexcept {
    if (left_ != 0) {
      auto got = receive(out.first(size_t(std::min<uint64_t>(out.size(), left_))));
      if (got.status == transport::IoStatus::ok) left_ -= got.bytes;
      // Now, and not with the next look: for that, something would have to come.
      if (left_ == 0) {
        inside_->shutdown();
        was_cut_();
      }
      return got;
    }
    inside_->shutdown();
    return {transport::IoStatus::failed, 0, ECONNRESET};
  }

  const std::unique_ptr<transport::Transport> inside_;
  const std::function<void()> was_cut_;
  uint64_t left_;  // the receiving thread's
};

}  // namespace gpuwire::simulation
