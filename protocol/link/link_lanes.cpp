// Link's handling of parts and lanes. README.md describes the threads.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "protocol/link/link.hpp"

namespace gpuwire::link {

namespace {

// A waiting thread considers lanes dead if they deliver nothing in this many of its checks (every half second, LaneSet)
// while the peer sends over the connection.
constexpr unsigned kSilentLanePollsMax = 20;

}  // namespace

bool Link::begin_parts(bool comes_back) {
  if (!parts_.begin(bulk_in_ring_max_)) return false;
  comes_back_ = comes_back;
  sends_parts_.store(true, std::memory_order_relaxed);
  return true;
}

// --- which lanes there are -----------------------------------------------------------------------------------------

std::shared_ptr<LaneSet> Link::lane_set() const {
  std::lock_guard slot(slot_mutex_);
  return lanes_;
}

size_t Link::lanes() const {
  auto lanes = lane_set();
  return lanes ? lanes->lanes() : 0;
}

uint64_t Link::bytes_come() const {
  auto lanes = lane_set();
  return received() + (lanes ? lanes->bytes_received() : 0);
}

bool Link::damaged() const {
  if (transport()->damaged()) return true;
  std::lock_guard lock(mutex_);
  return !damage_.empty();
}

void Link::set_lanes(std::shared_ptr<LaneSet> lanes) noexcept {
  lanes_at_fork_.store(lanes.get(), std::memory_order_relaxed);
  std::lock_guard slot(slot_mutex_);
  lanes_.swap(lanes);
}

// The threads of a set may themselves call this function, so another thread waits for them later.
void Link::retire_lanes(bool resets) noexcept {
  if (!lanes_) return;
  lanes_->close(resets);
  retired_.push_back(lanes_);
  set_lanes(nullptr);
}

bool Link::add_lanes(const transport::Transport& beside, std::shared_ptr<LaneSet> lanes) {
  std::vector<std::shared_ptr<LaneSet>> over;
  {
    std::lock_guard lock(mutex_);
    if (!sends_parts_.load(std::memory_order_relaxed) || transport_.get() != &beside ||
        state_.load(std::memory_order_relaxed) != State::attached)
      return false;
    retire_lanes(comes_back_);
    over.swap(retired_);
    retired_.reserve(2);  // makes retiring the new set unable to fail
  }
  // Delivers the last callbacks of the old sets now, so that they are not attributed to the new set.
  for (auto& set : over) set->finish();
  std::unique_lock lock(mutex_);
  if (transport_.get() != &beside || state_.load(std::memory_order_relaxed) != State::attached || lanes_) return false;
  set_lanes(lanes);
  LaneSet& set = *lanes;
  lock.unlock();
  return set.start({.sent = [this](uint64_t position, bool all) { lanes_sent(position, all); },
                    .over = [this, &set] { lanes_over(set); }});
}

// --- sending: with the lock ----------------------------------------------------------------------------------------

void Link::begin_part(const SendWindow::Next& next, uint64_t position) {
  uint64_t left = next.external->bytes - next.offset;
  bool by_lanes =
      left >= lane_part_bytes_min_ && next.external->data && lanes_ && lanes_->can_send() && !lanes_->closed();
  part_header_ = {.way = uint8_t(by_lanes ? wire::PartWay::lanes : wire::PartWay::here),
                  .lane_set = by_lanes ? lanes_->number() : 0,
                  .bytes = by_lanes ? left : std::min<uint64_t>(left, wire::kInlinePartBytesMax)};
  part_header_left_ = sizeof part_header_;
  part_until_ = position + part_header_.bytes;
}

iovec Link::part_header_rest() {
  return {reinterpret_cast<std::byte*>(&part_header_) + (sizeof part_header_ - part_header_left_), part_header_left_};
}

// Announces a part and hands it to the lanes, which have the sending role from then on.
bool Link::send_lane_header(std::unique_lock<std::mutex>& lock, const SendWindow::Next& next) {
  // From here on, the owner of the bulk cannot take its memory back.
  reading_until_ = window_.sent() - next.offset + next.external->bytes;
  const std::byte* data = next.external->data;
  iovec rest = part_header_rest();
  transport::Transport& transport = *transport_;
  lock.unlock();
  IoResult result = transport.try_send({&rest, 1});
  lock.lock();
  blocked_.store(result.status == IoStatus::would_block, std::memory_order_relaxed);
  bool handed = false;
  if (result.status == IoStatus::ok) {
    count_sent(result.bytes);
    part_header_left_ -= result.bytes;
    if (part_header_left_ == 0 && sends()) {
      handed = data && lanes_ && lanes_->number() == part_header_.lane_set &&
               lanes_->send(window_.sent(), {data + next.offset, size_t(part_header_.bytes)});
      if (handed) {
        lanes_until_ = part_until_;
        lanes_in_use_.store(lanes_->lanes_in_use(), std::memory_order_relaxed);
        lanes_sending_.store(true, std::memory_order_relaxed);
      } else {
        give_up_for_lanes(lock, "the lanes were lost");
      }
    }
  } else if (result.status != IoStatus::would_block) {
    send_failure_ = result;
    break_sending();
  }
  if (!handed) {
    reading_until_ = 0;
    changed_.notify_all();
  }
  return result.status == IoStatus::ok && !handed && sends();
}

void Link::stop_lane_sending() {
  lanes_sending_.store(false, std::memory_order_relaxed);
  sending_ = false;
  reading_until_ = 0;
  if (drop_when_back_) drop_unsent();
  changed_.notify_all();
  announce();
}

// Thread: a lane's.
void Link::lanes_sent(uint64_t position, bool all) {
  {
    std::unique_lock lock(mutex_);
    if (!lanes_sending_.load(std::memory_order_relaxed)) return;
    if (position > window_.sent()) {
      size_t bytes = size_t(position - window_.sent());
      count_sent(bytes);
      lane_bytes_sent_.store(lane_bytes_sent_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
      publish_positions(window_.sent(bytes));
    }
    if (!all) return;
    stop_lane_sending();
    pump(lock);
    if (everything_sent() || lanes_sending_.load(std::memory_order_relaxed)) return;
  }
  // Another thread has to send the remaining bytes and may not have been notified of them.
  wake();
}

// Thread: the last lane's. No other callback follows.
void Link::lanes_over(const LaneSet& set) {
  std::unique_lock lock(mutex_);
  bool was_sending = lanes_sending_.load(std::memory_order_relaxed);
  if (was_sending) stop_lane_sending();
  bool current = lanes_.get() == &set;
  if (current) retire_lanes(comes_back_);
  // The lanes were given up with their connection.
  if (state_.load(std::memory_order_relaxed) != State::attached) return;
  // Other lanes have replaced this set, but the part that it was sending is incomplete.
  if (!current && !was_sending) return;
  std::string fault = set.fault();
  // The side that reconnects detects missing bytes of lanes when it reads the part's header. The other side cannot
  // request those bytes, so the side that reconnects does so at once.
  bool outstanding = was_sending || (comes_back_ && window_.acknowledged() < lanes_until_) || !fault.empty();
  damage_ = fault;
  if (outstanding)
    give_up_for_lanes(lock, fault.empty() ? "a lane was lost: " + transport::describe(set.failure()) : fault);
  else pump(lock);
}

// Lock: held. This side does not know how many bytes of the lanes the peer has received, so the streams continue over
// another connection, which one side opens and the other waits for. The side that opens it detects the loss when it
// reads the header of a part over lanes, has not received all of the part, and no longer has those lanes. So the
// connection must carry such a header.
void Link::give_up_for_lanes(std::unique_lock<std::mutex>& lock, std::string why) {
  if (state_.load(std::memory_order_relaxed) != State::attached) return;
  if (!comes_back_ && damage_.empty()) {
    // If the peer's program has ended, the connection reports that end as usual.
    retire_lanes(false);
    send_broken_.store(true, std::memory_order_relaxed);
    announce();
    return;
  }
  kind_of_loss_ = Loss::given_up;
  why_given_up_ = std::move(why);
  detach_locked(damage_.empty() ? GivingUp::leaves : GivingUp::closes);
  lock.unlock();
  notify(State::detached);
  lock.lock();
}

// --- receiving, on the receiving thread ----------------------------------------------------------------------------

IoResult Link::receive_parts(transport::Transport& transport, std::span<std::byte> out, Taking taking) noexcept {
  for (;;) {
    if (parts_.lanes_left() != 0) return receive_from_lanes(transport, out, taking);
    std::span<std::byte> room = parts_.room(out);
    IoResult result{IoStatus::ok};
    if (parts_.keeps()) result.bytes = parts_.take_cached(room);
    else result = taking == Taking::all ? transport.receive_bulk(room) : transport.try_receive(room);
    if (result.status != IoStatus::ok) return result;
    uint64_t passed = parts_.passed();
    size_t got = parts_.take(room.first(result.bytes), [this](uint64_t position) { found_acknowledgement(position); });
    bulk_received_.store(bulk_received_.load(std::memory_order_relaxed) + parts_.passed() - passed,
                         std::memory_order_relaxed);
    lanes_are_next_.store(parts_.lanes_left() != 0, std::memory_order_relaxed);
    if (parts_.faulty()) {
      std::lock_guard lock(mutex_);
      damage_ = parts_.fault();
      return {IoStatus::failed, 0, EPROTO};
    }
    if (got != 0) return {IoStatus::ok, got};
  }
}

IoResult Link::receive_from_lanes(transport::Transport& transport, std::span<std::byte> out, Taking taking) noexcept {
  out = out.first(size_t(std::min<uint64_t>(out.size(), parts_.lanes_left())));
  auto lanes = lane_set();
  if (!lanes || lanes->number() != parts_.lane_set()) return lanes_are_gone(transport);
  if (uint64_t until = received() + parts_.lanes_left(); until != expected_until_) {
    lanes->expect(received(), parts_.lanes_left());
    expected_until_ = until;
  }
  struct Waiting {
    Link& link;
    LaneSet& lanes;
    transport::Transport& transport;
    uint64_t come;
    unsigned silent_polls = 0;
  } waiting{*this, *lanes, transport, lanes->bytes_received()};
  IoResult result = lanes->receive(
      received(), out, taking == Taking::now ? LaneSet::Order::as_sent : LaneSet::Order::any, [&waiting] {
        if (waiting.link.poll_) waiting.link.poll_();
        uint64_t come = waiting.lanes.bytes_received();
        bool silent = come == std::exchange(waiting.come, come) && waiting.transport.unread() != 0;
        waiting.silent_polls = silent ? waiting.silent_polls + 1 : 0;
        return waiting.silent_polls >= kSilentLanePollsMax ||
               waiting.link.stop_receiving_.load(std::memory_order_relaxed) || waiting.link.state() != State::attached;
      });
  if (result.status != IoStatus::ok) return result;
  parts_.came_over_lanes(result.bytes);
  lane_bytes_received_.store(lane_bytes_received_.load(std::memory_order_relaxed) + result.bytes,
                             std::memory_order_relaxed);
  lanes_are_next_.store(parts_.lanes_left() != 0, std::memory_order_relaxed);
  return result;
}

// The following bytes of the connection cannot be received, but its end can.
IoResult Link::lanes_are_gone(transport::Transport& transport) noexcept {
  {
    std::unique_lock lock(mutex_);
    // This side creates the sets of lanes, so a missing set will not arrive later.
    bool lost = !lanes_ || lanes_->number() != parts_.lane_set();
    if (lost && comes_back_ && transport_.get() == &transport) give_up_for_lanes(lock, "a lane was lost");
    if (state_.load(std::memory_order_relaxed) != State::attached) return {IoStatus::would_block};
  }
  std::byte thrown_away[4096];
  IoResult result = transport.try_receive(thrown_away);
  return result.status == IoStatus::ok ? IoResult{IoStatus::would_block} : result;
}

}  // namespace gpuwire::link
