#include "protocol/transport/simulated.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <utility>

#include "protocol/threads/condition.hpp"

namespace gpuwire::transport {

namespace {

struct Direction {
  std::deque<std::byte> bytes;
  size_t visible = 0;       // the number of `bytes` that the receiver may take
  unsigned polls_left = 0;  // until the other bytes become visible
  uint64_t delivered = 0;
  uint64_t cut_after = ~0ull;
  uint64_t sent = 0;
  size_t swallowed = 0;
  uint64_t swallow_after = ~0ull;
  bool finished = false;  // the sender sends no more
  bool closed = false;    // the sender has shut down
};

struct Link {
  explicit Link(const SimulatedOptions& settings) : options(settings), random(settings.seed) {
    directions[0].cut_after = settings.cut_first_to_second;
    directions[1].cut_after = settings.cut_second_to_first;
    directions[0].swallow_after = settings.swallow_first_to_second;
    directions[1].swallow_after = settings.swallow_second_to_first;
    swallows = !settings.swallow_first_to_second || !settings.swallow_second_to_first;
    broken = !settings.cut_first_to_second || !settings.cut_second_to_first;
    if (broken && settings.was_cut) settings.was_cut();
  }

  const SimulatedOptions options;
  std::mutex mutex;
  Condition changed;
  std::mt19937_64 random;
  Direction directions[2];
  bool broken = false;
  bool swallows = false;  // all bytes that are sent from now on vanish
  bool woken[2] = {};
  bool stopped[2] = {};  // this side receives nothing any more

  size_t up_to(size_t bytes) {
    if (options.piece_bytes_max) bytes = std::min(bytes, options.piece_bytes_max);
    return options.piece_bytes_max && bytes > 1 ? 1 + random() % bytes : bytes;
  }
  void sent(Direction& direction) {
    if (!options.delay_polls_max) direction.visible = direction.bytes.size();
    else if (!direction.polls_left) direction.polls_left = 1 + random() % options.delay_polls_max;
  }
  void poll(Direction& direction, unsigned count) {
    if (!direction.polls_left) return;
    direction.polls_left -= std::min(count, direction.polls_left);
    if (!direction.polls_left) direction.visible = direction.bytes.size();
  }
};

class SimulatedTransport final : public Transport {
 public:
  SimulatedTransport(std::shared_ptr<Link> link, int side) : link_(std::move(link)), side_(side) {}
  ~SimulatedTransport() override { shutdown(); }

  IoResult try_send(std::span<const iovec> pieces) noexcept override {
    std::lock_guard lock(link_->mutex);
    Direction& out = outgoing();
    if (link_->broken) return {IoStatus::failed, 0, ECONNRESET};
    if (out.finished || out.closed || (incoming().closed && !link_->swallows)) return {IoStatus::failed, 0, EPIPE};
    size_t offered = 0;
    for (const iovec& piece : pieces.first(std::min(pieces.size(), kPiecesMax))) offered += piece.iov_len;
    if (link_->swallows) return swallow(out, offered);
    size_t room = link_->options.window_bytes - std::min(link_->options.window_bytes, out.bytes.size());
    size_t total = size_t(std::min<uint64_t>(offered, out.swallow_after - out.sent));
    if (!total || !room) return {IoStatus::would_block};
    size_t moved = link_->up_to(std::min(total, room)), left = moved;
    out.sent += moved;
    link_->swallows = out.sent == out.swallow_after;
    for (const iovec& piece : pieces) {
      size_t step = std::min(left, piece.iov_len);
      auto from = static_cast<const std::byte*>(piece.iov_base);
      out.bytes.insert(out.bytes.end(), from, from + step);
      if (!(left -= step)) break;
    }
    link_->sent(out);
    link_->changed.notify_all();
    return {IoStatus::ok, moved};
  }

  IoResult try_receive(std::span<std::byte> into) noexcept override {
    std::lock_guard lock(link_->mutex);
    Direction& in = incoming();
    if (link_->stopped[side_]) return {IoStatus::closed};
    link_->poll(in, 1);
    size_t uncut = size_t(std::min<uint64_t>(in.cut_after - in.delivered, in.bytes.size()));
    size_t visible = std::min({in.visible, uncut, into.size()});
    if (visible) {
      size_t moved = link_->up_to(visible);
      std::copy_n(in.bytes.begin(), moved, into.begin());
      in.bytes.erase(in.bytes.begin(), in.bytes.begin() + ptrdiff_t(moved));
      in.visible -= moved;
      in.delivered += moved;
      if (in.delivered == in.cut_after && !std::exchange(link_->broken, true) && link_->options.was_cut)
        link_->options.was_cut();
      link_->changed.notify_all();
      return {IoStatus::ok, moved};
    }
    if (link_->broken) return {IoStatus::failed, 0, ECONNRESET};
    if (!in.bytes.empty()) return {IoStatus::would_block};
    return {ended(in) || outgoing().closed ? IoStatus::closed : IoStatus::would_block};
  }

  size_t unread() noexcept override {
    std::lock_guard lock(link_->mutex);
    return incoming().bytes.size();
  }

  bool peer_closed() noexcept override {
    std::lock_guard lock(link_->mutex);
    return !link_->broken && ended(incoming());
  }

  void reset() noexcept override {
    std::lock_guard lock(link_->mutex);
    // The reset is lost, too, where everything is.
    if (link_->swallows) outgoing().closed = true;
    else link_->broken = true;
    link_->changed.notify_all();
  }

  unsigned wait(unsigned interest, Nanoseconds timeout) noexcept override {
    std::unique_lock lock(link_->mutex);
    unsigned ready = 0;
    auto there = [&] { return (ready = ready_now(interest)) != 0; };
    if (!there() && timeout.count() > 0) link_->changed.wait_for(lock, timeout, there);
    if (ready & kWoken) link_->woken[side_] = false;
    return ready;
  }

  void wake() noexcept override {
    std::lock_guard lock(link_->mutex);
    link_->woken[side_] = true;
    link_->changed.notify_all();
  }

  void finish() noexcept override {
    std::lock_guard lock(link_->mutex);
    outgoing().finished = true;
    link_->poll(outgoing(), ~0u);
    link_->changed.notify_all();
  }

  void shutdown() noexcept override {
    std::lock_guard lock(link_->mutex);
    outgoing().closed = true;
    // Undelivered bytes still arrive when a side closes, as with TCP, and arrive at once.
    link_->poll(outgoing(), ~0u);
    link_->changed.notify_all();
  }

  void stop_receiving() noexcept override {
    std::lock_guard lock(link_->mutex);
    link_->stopped[side_] = true;
    link_->changed.notify_all();
  }

  int descriptor() const noexcept override { return -1; }
  void abandon_after_fork() noexcept override {}
  std::string peer() const override { return "simulated"; }

 private:
  // Returns whether the receiver sees an end.
  bool ended(const Direction& in) const { return !link_->swallows && (in.finished || in.closed); }

  // The sender's system accepts as much as its buffer holds, and waits for acknowledgements that never arrive.
  IoResult swallow(Direction& out, size_t offered) {
    size_t moved =
        std::min(offered, link_->options.window_bytes - std::min(link_->options.window_bytes, out.swallowed));
    if (!moved) return {IoStatus::would_block};
    out.swallowed += moved;
    return {IoStatus::ok, moved};
  }

  Direction& outgoing() const { return link_->directions[side_]; }
  Direction& incoming() const { return link_->directions[1 - side_]; }

  unsigned ready_now(unsigned interest) {
    unsigned ready = 0;
    Direction& in = incoming();
    Direction& out = outgoing();
    bool over = link_->broken || out.closed || (in.closed && ended(in));
    // A delay ends as soon as a thread waits for it: virtual time jumps forward.
    if (interest & kReadable) link_->poll(in, ~0u);
    if (in.visible || ended(in) || over || link_->stopped[side_]) ready |= kReadable;
    size_t under_way = link_->swallows ? out.swallowed : out.bytes.size();
    if (under_way < link_->options.window_bytes || over) ready |= kWritable;
    if (link_->woken[side_]) ready |= kWoken;
    return ready & interest;
  }

  std::shared_ptr<Link> link_;
  int side_;
};

}  // namespace

std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>> simulated_pair(const SimulatedOptions& options) {
  auto link = std::make_shared<Link>(options);
  return {std::make_unique<SimulatedTransport>(link, 0), std::make_unique<SimulatedTransport>(link, 1)};
}

}  // namespace gpuwire::transport
