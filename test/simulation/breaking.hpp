// BreakingTransport wraps a connection and breaks it, for its receiver, after a number of bytes: bytes in flight then
// never arrive.
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
  // `receives`: the bytes until the break; ~0: never. `resets`: a break without an orderly end. `was_cut` is called
  // after the break.
  BreakingTransport(std::unique_ptr<transport::Transport> inside, uint64_t receives, bool resets,
                    std::function<void()> was_cut)
      : inside_(std::move(inside)), was_cut_(std::move(was_cut)), resets_(resets), left_(receives) {
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
  std::string binding() override { return inside_->binding(); }
  const char* road() const noexcept override { return inside_->road(); }
  bool damaged() const noexcept override { return inside_->damaged(); }
  std::string failure() const override { return inside_->failure(); }
  bool peer_closed() noexcept override { return inside_->peer_closed(); }
  size_t unread() noexcept override { return inside_->unread(); }
  void stop_receiving() noexcept override { inside_->stop_receiving(); }
  void reset() noexcept override { inside_->reset(); }

 private:
  template <class Receive>
  transport::IoResult count(std::span<std::byte> out, Receive&& receive) noexcept {
    if (left_ != 0) {
      auto got = receive(out.first(size_t(std::min<uint64_t>(out.size(), left_))));
      if (got.status == transport::IoStatus::ok) left_ -= got.bytes;
      // The break comes now: the next read would wait for further bytes.
      if (left_ == 0) {
        end();
        was_cut_();
      }
      return got;
    }
    end();
    return {transport::IoStatus::failed, 0, ECONNRESET};
  }
  void end() noexcept { resets_ ? inside_->reset() : inside_->shutdown(); }

  const std::unique_ptr<transport::Transport> inside_;
  const std::function<void()> was_cut_;
  const bool resets_;
  uint64_t left_;  // only the receiving thread uses it
};

}  // namespace gpuwire::simulation
