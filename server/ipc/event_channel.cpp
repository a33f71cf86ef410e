#include "server/ipc/event_channel.hpp"

#include <utility>

#include <fmt/format.h>

namespace gpuwire::server::ipc {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

EventChannel::EventChannel(boost::asio::io_context& io, OwnedDescriptor descriptor, Speaker other, size_t waiting_max,
                           Trust trust, Events events)
    : channel_(std::move(descriptor), other, waiting_max, [this] { await_room(); }),
      readable_(io, channel_.descriptor()),
      pause_(io),
      events_(std::move(events)) {
  if (events_.unwelcome) channel_.only_shareable(events_.unwelcome);
  if (trust == Trust::budget) budget_.emplace(std::chrono::steady_clock::now());
  listen();
}

EventChannel::~EventChannel() { readable_.release(); }

void EventChannel::listen() {
  readable_.async_wait(stream_descriptor::wait_read, lifetime_.guard([this](error_code error) {
    if (error || over_) return;
    size_t received = 0;
    const Lifetime::Watch life = lifetime_.watch();
    const Turn turn = receive(kMessagesPerTurn, received);
    if (!life.gone() && turn == Turn::done) turn_over(received);
  }));
}

EventChannel::Turn EventChannel::receive(size_t messages_max, size_t& received) {
  const Lifetime::Watch life = lifetime_.watch();
  const std::function<void(Message)> notify = events_.on_message;  // outlives the channel, which it may destroy
  for (received = 0; received < messages_max; ++received) {
    std::optional<Message> message;
    switch (channel_.try_receive(message)) {
      case Channel::Received::none_yet: return Turn::done;
      case Channel::Received::closed: return end({}), Turn::over;
      case Channel::Received::nonsense: return end(channel_.fault()), Turn::over;
      case Channel::Received::message: break;
    }
    notify(std::move(*message));
    if (life.gone() || over_) return Turn::over;
  }
  return Turn::done;
}

void EventChannel::hear_rest(size_t messages_max) {
  size_t received = 0;
  if (!over_) receive(messages_max, received);
}

void EventChannel::turn_over(size_t received) {
  auto verdict = MessageBudget::Verdict::go_on;
  if (budget_) verdict = budget_->turn(received, std::chrono::steady_clock::now());
  if (verdict == MessageBudget::Verdict::go_on) return listen();
  if (verdict == MessageBudget::Verdict::flood)
    return end(fmt::format("more than {} messages a second", kBudgetPerSecond));
  pause_.expires_after(std::chrono::milliseconds(kBudgetPauseMs));
  pause_.async_wait(lifetime_.guard([this](error_code error) {
    if (!error && !over_) listen();
  }));
}

void EventChannel::await_room() {
  if (std::exchange(awaiting_room_, true)) return;
  readable_.async_wait(stream_descriptor::wait_write, lifetime_.guard([this](error_code error) {
    awaiting_room_ = false;
    if (!error && !channel_.drain()) await_room();
  }));
}

void EventChannel::end(const std::string& why) {
  over_ = true;
  pause_.cancel();
  const std::function<void(const std::string&)> over = events_.over;  // outlives the channel, which it may destroy
  const std::string reason = why;  // NOLINT(performance-unnecessary-copy-initialization): so may this
  if (over) over(reason);
}

}  // namespace gpuwire::server::ipc
