#include "protocol/link/link.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "protocol/wire/frame.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::link {

namespace {

using transport::IoStatus;
using transport::kReadable;
using transport::kWoken;
using transport::kWritable;

constexpr size_t kBounceBytes = 256u << 10;
// The longest sleep of a thread that waits for bytes of lanes and cannot be notified of them.
constexpr std::chrono::milliseconds kLanesPoll{1};
// The longest sleep of a thread that waits to send. Nothing notifies the thread while the peer does not read.
constexpr std::chrono::milliseconds kPushPoll{50};
// Sent in place of bulk whose owner has taken its memory back. Never written.
std::byte g_zeros[64u << 10];

}  // namespace

Link::Link(std::unique_ptr<transport::Transport> first, const LinkLimits& limits)
    : window_(limits.ring_bytes, limits.bulk_bytes_max),
      transport_(std::move(first)),
      bulk_in_ring_max_(limits.bulk_in_ring_max),
      lane_part_bytes_min_(limits.lane_part_bytes_min) {}

Link::~Link() {
  end();
  // finish() delivers the last callbacks of the sets to this link.
  for (auto& lanes : retired_) lanes->finish();
}

// --- appending -----------------------------------------------------------------------------------------------------

std::byte* Link::reserve(size_t bytes, size_t external_bytes, size_t reserve_bytes) {
  if (external_bytes && !window_.external_allowed(external_bytes)) return nullptr;
  return window_.reserve(bytes, reserve_bytes + kAcknowledgeReserveBytes);
}

bool Link::publish(size_t bytes, const ExternalBulk* external) {
  if (!window_.publish(bytes, external)) return false;
  if (state_.load(std::memory_order_relaxed) == State::ended && !sending_) drop_unsent();
  return true;
}

bool Link::await_room(uint64_t seen, Nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  auto over = [&] { return interrupted_ || state_.load(std::memory_order_relaxed) == State::ended; };
  changed_.wait_for(lock, timeout, [&] { return over() || room_changes() != seen; });
  return !over();
}

// --- sending -------------------------------------------------------------------------------------------------------

bool Link::pump() {
  std::unique_lock lock(mutex_);
  pump(lock);
  return everything_sent();
}

void Link::pump(std::unique_lock<std::mutex>& lock) {
  // The sending thread checks again before it leaves, so it sends all bytes that have been appended until now.
  if (sending_) return;
  sending_ = true;
  sender_ = pthread_self();
  while (sends() && !drop_when_back_ && send_some(lock)) {}
  if (lanes_sending_.load(std::memory_order_relaxed))
    // The lanes have the sending role now. The last lane continues here.
    return;
  sending_ = false;
  if (drop_when_back_) drop_unsent();
  if (state_.load(std::memory_order_relaxed) != State::attached) changed_.notify_all();
}

void Link::push(uint64_t position, Nanoseconds stall) {
  using Clock = std::chrono::steady_clock;
  std::unique_lock lock(mutex_);
  push_until_ = std::max(push_until_, position);
  if (pushing_) return;
  pushing_ = true;
  Clock::time_point moved{};
  for (uint64_t before = 0;;) {
    pump(lock);
    if (!sends() || window_.sent() >= push_until_) break;
    auto now = Clock::now();
    if (moved == Clock::time_point{} || window_.sent() != before) moved = now;
    before = window_.sent();
    if (now - moved >= stall) {
      send_failure_ = {IoStatus::failed, 0, ETIMEDOUT};
      break_sending();
      break;
    }
    lock.unlock();
    // Waits only for this connection: a new connection may itself wait for the thread that pushes over this one.
    wait(kWritable, std::min<Nanoseconds>(stall - (now - moved), kPushPoll), WaitFor::this_connection);
    lock.lock();
  }
  pushing_ = false;
}

bool Link::send_some(std::unique_lock<std::mutex>& lock) {
  // Bulk that no lanes carry is sent together with the frames before it: each system call may wake the peer.
  const SendWindow::Next next = window_.next(std::max(bulk_in_ring_max_, lane_part_bytes_min_ - 1));
  if (!next.external && !next.ring_pieces) {
    blocked_.store(false, std::memory_order_relaxed);
    return false;
  }
  const bool in_parts =
      next.external && sends_parts_.load(std::memory_order_relaxed) && next.external->bytes > bulk_in_ring_max_;
  const uint64_t position = window_.sent() + next.ring_bytes;
  if (in_parts && position >= part_until_ && part_header_left_ == 0) begin_part(next, position);
  if (next.external && part_header_left_ != 0 && part_header_.way == uint8_t(wire::PartWay::lanes))
    return send_lane_header(lock, next);
  // Bytes stay in place until they have been sent and acknowledged. The owner of external bulk may take it back, but
  // first waits for the thread that reads it.
  ExternalBulk external;
  if (next.external) {
    external.data = next.external->data;
    external.gather = next.external->gather;
    external.bytes = next.external->bytes;
    reading_until_ = position - next.offset + external.bytes;
  }
  transport::Transport& transport = *transport_;
  lock.unlock();
  iovec all[kRingPiecesMax + 2];
  size_t count = size_t(std::copy_n(next.ring, next.ring_pieces, all) - all);
  size_t header = in_parts ? part_header_left_ : 0;
  if (header != 0) all[count++] = part_header_rest();
  if (next.external) {
    iovec& bulk = all[count++] = external_piece(external, next.offset, position);
    if (in_parts) bulk.iov_len = std::min<size_t>(bulk.iov_len, part_until_ - position);
  }
  std::span<const iovec> pieces(all, count);
  IoResult result = transport.try_send(pieces);
  lock.lock();
  if (reading_until_) changed_.notify_all();
  reading_until_ = 0;
  blocked_.store(result.status == IoStatus::would_block, std::memory_order_relaxed);
  if (result.status == IoStatus::would_block) return false;
  if (result.status != IoStatus::ok) {
    // The peer's last bytes may still be readable and may name the cause. The receiving thread reads them up to the
    // end.
    send_failure_ = result;
    break_sending();
    return false;
  }
  count_step(result.bytes, next.ring_bytes, header, in_parts);
  return true;
}

void Link::count_step(size_t bytes, size_t ring_bytes, size_t header, bool in_parts) {
  const size_t of_ring = std::min(ring_bytes, bytes);
  header = std::min(header, bytes - of_ring);
  part_header_left_ -= header;
  count_sent(bytes);
  if (in_parts)
    bulk_sent_.store(bulk_sent_.load(std::memory_order_relaxed) + bytes - of_ring - header, std::memory_order_relaxed);
  if (bytes != header) publish_positions(window_.sent(bytes - header));
}

bool Link::publish_at_end(size_t bytes) noexcept {
  return state_.load(std::memory_order_relaxed) != State::ended && !window_.must_grow() &&
         window_.publish(bytes, nullptr);
}

// Stops at bulk outside the ring, whose owner, parts and lanes have locks of their own. The next sender frees memory
// that is no longer needed.
void Link::send_at_end() noexcept {
  while (sends() && !drop_when_back_ && part_header_left_ == 0) {
    const SendWindow::Next next = window_.next(0);
    if (!next.ring_pieces) return;
    IoResult result = transport_->try_send({next.ring, next.ring_pieces});
    if (result.status != IoStatus::ok) return;
    count_sent(result.bytes);
    window_.advance(result.bytes);
    sent_.store(window_.sent(), std::memory_order_release);
  }
}

void Link::count_sent(size_t bytes) {
  bytes_sent_.store(bytes_sent() + bytes, std::memory_order_relaxed);
  writes_.store(writes() + 1, std::memory_order_relaxed);
}

void Link::break_sending() {
  send_broken_.store(true, std::memory_order_relaxed);
  transport_->shutdown();
  announce();
}

void Link::notify(State state) {
  if (!observer_) return;
  std::lock_guard telling(notifying_);
  if (this->state() == state) observer_(state);
}

void Link::announce() noexcept {
  { std::lock_guard slot(slot_mutex_); }
  slot_changed_.notify_all();
}

iovec Link::external_piece(const ExternalBulk& bulk, size_t offset, uint64_t position) {
  size_t left = bulk.bytes - offset;
  if (bulk.data) return {const_cast<std::byte*>(bulk.data) + offset, left};
  if (!bulk.gather) return {g_zeros, std::min(left, sizeof g_zeros)};
  if (position < bounce_begin_ || position >= bounce_end_) {
    if (!bounce_) bounce_ = std::make_unique<std::byte[]>(kBounceBytes);
    bounce_begin_ = position;
    bounce_end_ = position + std::min(left, kBounceBytes);
    (*bulk.gather)(offset, {bounce_.get(), size_t(bounce_end_ - bounce_begin_)});
  }
  return {bounce_.get() + (position - bounce_begin_), size_t(bounce_end_ - position)};
}

// Lock: mutex_ is held. Called after any change of the window.
void Link::publish_positions(bool room) {
  sent_.store(window_.sent(), std::memory_order_release);
  acknowledged_.store(window_.acknowledged(), std::memory_order_release);
  if (!room) return;
  room_changes_.store(room_changes() + 1, std::memory_order_relaxed);
  changed_.notify_all();
}

void Link::drop_unsent() {
  window_.drop_unsent();
  drop_when_back_ = false;
  again_until_.store(0, std::memory_order_relaxed);
  blocked_.store(false, std::memory_order_relaxed);
  publish_positions(true);
}

void Link::forget_external(uint64_t position) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return reading_until_ != position; });
  window_.forget_external(position);
}

bool Link::holds_external() const {
  std::lock_guard lock(mutex_);
  return window_.external_bytes() != 0;
}

Link::Kept Link::kept() const {
  std::lock_guard lock(mutex_);
  return {window_.used_ring_bytes(), window_.external_bytes()};
}

// --- receiving -----------------------------------------------------------------------------------------------------

// Returns null if there is no connection. Otherwise the connection stays valid until leave_receiving().
transport::Transport* Link::enter_receiving() noexcept {
  receiving_.store(true, std::memory_order_seq_cst);
  if (state_.load(std::memory_order_seq_cst) == State::attached) [[likely]]
    return transport_.get();
  leave_receiving();
  return nullptr;
}

void Link::leave_receiving() noexcept {
  receiving_.store(false, std::memory_order_seq_cst);
  if (state_.load(std::memory_order_seq_cst) == State::attached) [[likely]]
    return;
  std::lock_guard lock(mutex_);
  changed_.notify_all();
}

IoResult Link::receive(std::span<std::byte> out, Taking taking) noexcept {
  if (stop_receiving_.load(std::memory_order_relaxed)) [[unlikely]]
    return {IoStatus::closed};
  transport::Transport* transport = enter_receiving();
  if (!transport) return {state() == State::ended ? IoStatus::closed : IoStatus::would_block};
  IoResult result = parts_.on()             ? receive_parts(*transport, out, taking)
                    : taking == Taking::all ? transport->receive_bulk(out)
                                            : transport->try_receive(out);
  if (result.status == IoStatus::ok) {
    received_.store(received() + result.bytes, std::memory_order_relaxed);
    if (!parts_.on())
      scanner_.scan(out.first(result.bytes), [this](uint64_t position) { found_acknowledgement(position); });
    short_frame_bytes_.store(scanner_.short_frame_bytes(), std::memory_order_relaxed);
    if (scanner_.goodbye()) [[unlikely]]
      sent_goodbye_.store(true, std::memory_order_relaxed);
  }
  leave_receiving();
  if (result.status == IoStatus::closed || result.status == IoStatus::failed)
    return connection_ended(transport, result);
  return result;
}

void Link::found_acknowledgement(uint64_t position) {
  std::lock_guard lock(mutex_);
  if (state_.load(std::memory_order_relaxed) == State::ended) return;
  if (!window_.acknowledge(position)) return bad_acknowledgement_.store(true, std::memory_order_relaxed);
  publish_positions(true);
}

namespace {

// After the peer's end, a reset is reported as EPIPE: the reset answers bytes that this side sent meanwhile.
Loss kind_of(transport::Transport& connection, const IoResult& end) {
  if (end.status == IoStatus::closed || end.error == EPIPE || connection.peer_closed()) return Loss::closed;
  return end.error == ECONNRESET ? Loss::reset : Loss::broken;
}

}  // namespace

IoResult Link::connection_ended(const transport::Transport* which, const IoResult& result) noexcept {
  std::unique_lock lock(mutex_);
  if (!outlives_.load(std::memory_order_relaxed)) {
    interrupted_ = true;
    changed_.notify_all();
    return result;
  }
  if (transport_.get() == which && state_.load(std::memory_order_relaxed) == State::attached) {
    // The sending thread may have received the connection's error; the receiving thread then reads an end of file only.
    loss_ = send_failure_.status == IoStatus::failed ? send_failure_ : result;
    kind_of_loss_ = kind_of(*transport_, loss_);
    why_given_up_.clear();
    detach_locked();
    lock.unlock();
    notify(State::detached);
  }
  return {state_.load(std::memory_order_relaxed) == State::ended ? IoStatus::closed : IoStatus::would_block};
}

bool Link::input() noexcept {
  if (stop_receiving_.load(std::memory_order_relaxed)) return true;
  transport::Transport* transport = enter_receiving();
  if (!transport) return state() == State::ended;
  bool there = parts_.keeps() || parts_.lanes_left() != 0 || transport->input();
  leave_receiving();
  return there;
}

void Link::append_heartbeat() {
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                           .ordinal = uint32_t(wire::ControlOrdinal::heartbeat)};
  std::lock_guard lock(mutex_);
  // Waiting bytes act as a heartbeat when they are sent. More heartbeats behind them would only take room.
  if (!sends() || !everything_sent()) return;
  std::byte* at = window_.reserve(sizeof header, 0);
  if (!at) return;
  std::memcpy(at, &header, sizeof header);
  publish(sizeof header);
}

uint64_t Link::consumed(uint64_t position, bool now) {
  const uint64_t short_frames = short_frame_bytes_.load(std::memory_order_relaxed);
  const bool enough = position - notified_ >= wire::kAcknowledgeBytes ||
                      short_frames - acknowledged_short_frames_ >= wire::kAcknowledgeShortFrameBytes;
  if (!(enough || now) || position == notified_) [[likely]]
    return 0;
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::acknowledge), .sequence = position};
  std::lock_guard lock(mutex_);
  std::byte* at = window_.reserve(sizeof header, 0);
  if (!at) return 0;  // the next frame tries again
  std::memcpy(at, &header, sizeof header);
  if (!publish(sizeof header)) return 0;
  notified_ = position;
  acknowledged_short_frames_ = short_frames;
  return window_.appended();
}

// --- any thread ----------------------------------------------------------------------------------------------------

unsigned Link::wait(unsigned interest, Nanoseconds timeout) noexcept {
  return wait(interest, timeout, WaitFor::any_connection);
}

unsigned Link::wait(unsigned interest, Nanoseconds timeout, WaitFor what) noexcept {
  std::shared_ptr<transport::Transport> transport;
  {
    std::unique_lock slot(slot_mutex_);
    const bool was_broken = send_broken_.load(std::memory_order_relaxed);
    auto over = [&] {
      return state() == State::ended || ((interest & kReadable) && stop_receiving_.load(std::memory_order_relaxed));
    };
    auto woken = [&] { return woken_ && (interest & kWoken); };
    auto gone = [&] {
      return what == WaitFor::this_connection &&
             (state() == State::detached || send_broken_.load(std::memory_order_relaxed));
    };
    // A connection that accepts nothing any more would be reported as writable again and again until the receiving
    // thread has read its end. While lanes send, the connection accepts none of the following bytes.
    auto takes_nothing = [&] {
      return send_broken_.load(std::memory_order_relaxed) || lanes_sending_.load(std::memory_order_relaxed);
    };
    auto nothing = [&] { return state() == State::detached || (takes_nothing() && !(interest & kReadable)); };
    // A thread that waits to send is notified once that sending has failed.
    auto breaks = [&] { return send_broken_.load(std::memory_order_relaxed) != was_broken; };
    if (!over() && !woken() && nothing())
      slot_changed_.wait_for(slot, timeout, [&] { return over() || woken() || gone() || breaks() || !nothing(); });
    if (over()) return interest & (kReadable | kWritable);
    if (woken()) {
      woken_ = false;
      return kWoken;
    }
    // Evaluated once, because the value may change meanwhile: a wait without any interest would end only with its
    // timeout.
    const bool takes = !takes_nothing();
    if (state() == State::detached || (!takes && !(interest & kReadable))) return 0;
    if (!takes) interest &= ~unsigned(kWritable);
    transport = transport_;
  }
  if ((interest & kReadable) && lanes_are_next_.load(std::memory_order_relaxed)) [[unlikely]]
    return kReadable | transport->wait(interest & kWoken, std::min<Nanoseconds>(timeout, kLanesPoll));
  return transport->wait(interest, timeout);
}

void Link::wake() noexcept {
  {
    std::lock_guard slot(slot_mutex_);
    if (state() == State::attached) {
      transport_->wake();
      if (!lanes_sending_.load(std::memory_order_relaxed)) return;
    }
    woken_ = true;
  }
  slot_changed_.notify_all();
}

std::shared_ptr<transport::Transport> Link::transport() const {
  std::lock_guard slot(slot_mutex_);
  return transport_;
}

std::string Link::failure() const { return transport()->failure(); }

std::string Link::loss() const {
  std::string said = failure();
  std::lock_guard lock(mutex_);
  if (!damage_.empty()) return damage_;
  if (!why_given_up_.empty()) return why_given_up_;
  return said.empty() ? transport::describe(loss_) : said;
}

Loss Link::kind_of_loss() const {
  std::lock_guard lock(mutex_);
  return kind_of_loss_;
}

// --- replacing the connection --------------------------------------------------------------------------------------

void Link::detach_locked(GivingUp how) noexcept {
  state_.store(State::detached, std::memory_order_seq_cst);
  blocked_.store(false, std::memory_order_relaxed);
  switch (how) {
    case GivingUp::closes: transport_->shutdown(); break;
    case GivingUp::resets: transport_->reset(); break;
    case GivingUp::leaves: transport_->stop_receiving(); break;
  }
  retire_lanes(how != GivingUp::closes);
  transport_->wake();
  changed_.notify_all();
  {
    // An earlier wake() may have gone to the connection before the wait() that it is meant for, which is here now.
    std::lock_guard slot(slot_mutex_);
    woken_ = true;
  }
  slot_changed_.notify_all();
}

uint64_t Link::detach() noexcept {
  std::unique_lock lock(mutex_);
  bool lost = state_.load(std::memory_order_relaxed) == State::attached;
  if (lost) {
    kind_of_loss_ = Loss::given_up;
    why_given_up_ = "another connection takes its place";
    detach_locked();
  }
  changed_.wait(lock, [&] { return !sending_ && !receiving_.load(std::memory_order_seq_cst); });
  lock.unlock();
  if (lost) notify(State::detached);
  return received();
}

bool Link::give_up(const transport::Transport& which, std::string why, GivingUp how) {
  {
    std::lock_guard lock(mutex_);
    if (transport_.get() != &which || state_.load(std::memory_order_relaxed) != State::attached ||
        !outlives_.load(std::memory_order_relaxed))
      return false;
    kind_of_loss_ = Loss::given_up;
    why_given_up_ = std::move(why);
    detach_locked(how);
  }
  notify(State::detached);
  return true;
}

bool Link::attach(std::unique_ptr<transport::Transport> next, uint64_t peer_received) {
  std::shared_ptr<transport::Transport> old;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !sending_ && !receiving_.load(std::memory_order_seq_cst); });
    uint64_t sent = window_.sent();
    if (state_.load(std::memory_order_relaxed) != State::detached || !window_.rewind(peer_received)) return false;
    if (peer_received < sent) {
      again_until_.store(std::max(sent, again_until_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
      bytes_sent_again_.store(bytes_sent_again() + sent - peer_received, std::memory_order_relaxed);
    }
    bounce_begin_ = bounce_end_ = 0;
    part_until_ = part_header_left_ = lanes_until_ = expected_until_ = 0;
    parts_.begin_connection();
    lanes_are_next_.store(false, std::memory_order_relaxed);
    publish_positions(true);
    std::lock_guard slot(slot_mutex_);
    old = std::exchange(transport_, std::shared_ptr<transport::Transport>(std::move(next)));
    send_broken_.store(false, std::memory_order_relaxed);
    send_failure_ = {};
    state_.store(State::attached, std::memory_order_seq_cst);
  }
  // Wakes a thread that still waits for the connection, if this side has left it open.
  old->shutdown();
  slot_changed_.notify_all();
  notify(State::attached);
  pump();
  return true;
}

// --- ends ----------------------------------------------------------------------------------------------------------

void Link::interrupt() noexcept {
  stop_receiving_.store(true, std::memory_order_relaxed);
  {
    std::lock_guard lock(mutex_);
    interrupted_ = true;
    changed_.notify_all();
  }
  wake();
}

void Link::end() noexcept {
  std::lock_guard lock(mutex_);
  if (state_.load(std::memory_order_relaxed) == State::ended) return;
  state_.store(State::ended, std::memory_order_seq_cst);
  retire_lanes(comes_back_);
  transport_->shutdown();
  transport_->wake();
  // A thread that is sending now may be reading a caller's memory. It drops the remaining bytes itself when it returns.
  if (sending_) drop_when_back_ = true;
  else drop_unsent();
  changed_.notify_all();
  announce();
}

bool Link::take_back_from_left_call(bool had_received) noexcept {
  take_from_this_thread(slot_mutex_);
  take_from_this_thread(notifying_);
  bool well = !take_from_this_thread(mutex_);
  auto connection = transport();
  std::unique_lock lock(mutex_);
  const bool sent =
      sending_ && !lanes_sending_.load(std::memory_order_relaxed) && pthread_equal(sender_, pthread_self());
  const bool received = had_received && receiving_.exchange(false, std::memory_order_seq_cst);
  if (sent) {
    sending_ = false;
    reading_until_ = 0;
    if (drop_when_back_) drop_unsent();
  }
  changed_.notify_all();
  if (connection->take_back_from_left_call(sent, received)) return well;
  if (state_.load(std::memory_order_relaxed) != State::attached) return well;
  if (!outlives_.load(std::memory_order_relaxed) || !connection->can_be_left()) return false;
  kind_of_loss_ = Loss::given_up;
  why_given_up_ = "the program left a call in the middle";
  detach_locked(GivingUp::leaves);
  lock.unlock();
  notify(State::detached);
  return well;
}

void Link::abandon_after_fork() noexcept {
  transport_->abandon_after_fork();
  if (LaneSet* lanes = lanes_at_fork_.load(std::memory_order_relaxed)) lanes->abandon_after_fork();
}

}  // namespace gpuwire::link
