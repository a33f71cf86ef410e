#include "protocol/link/lane_set.hpp"

#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

#include "protocol/threads/polling.hpp"

namespace gpuwire::link {

namespace {

using Clock = std::chrono::steady_clock;
using transport::kReadable;
using transport::kWoken;
using transport::kWritable;

// An event ends a sleep. This bound limits the delay if an event was missed.
constexpr std::chrono::seconds kSleep{10};
constexpr std::chrono::milliseconds kInOrderWait{1};
constexpr std::chrono::milliseconds kStopWait{500};
constexpr uint32_t kNoStripe = ~0u;

}  // namespace

LaneSet::LaneSet(std::vector<std::unique_ptr<transport::Transport>> lanes, uint32_t number, bool sends_first)
    : number_(number),
      sends_first_(sends_first),
      poll_(brief_poll()),
      count_(std::min<size_t>(lanes.size(), wire::kLanesMax)) {
  for (auto& connection : lanes) {
    if (lanes_.size() == wire::kLanesMax) break;
    auto& lane = *lanes_.emplace_back(std::make_unique<Lane>());
    lane.transport = std::move(connection);
    if (!sends_first) continue;
    lane.out_header = {.lane_set = number};
    lane.out_header_left = sizeof lane.out_header;
    lane.out_stripe = kNoStripe;
    lane.sending = true;
  }
}

void LaneSet::simulate(size_t stripe_bytes, std::function<bool()> others) {
  poll_ = {};
  stripe_bytes_ = stripe_bytes;
  others_ = std::move(others);
}

LaneSet::~LaneSet() {
  close(sends_first_);
  finish();
}

void LaneSet::finish() {
  for (auto& lane : lanes_) {
    if (lane->thread.joinable()) lane->thread.join();
    else if (others_ && events_.over && !lane->over) end(*lane);
  }
}

bool LaneSet::start(Events events) {
  events_ = std::move(events);
  // Blocks the program's signals in lane threads, except those for memory faults. A new thread inherits the mask of the
  // thread that creates it.
  sigset_t all, before;
  sigfillset(&all);
  sigdelset(&all, SIGSEGV);
  sigdelset(&all, SIGBUS);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  size_t started = 0;
  {
    MutexLock lock(mutex_);
    running_ = lanes_.size();
  }
  try {
    for (auto& lane : lanes_) {
      if (!others_) lane->thread = std::thread([this, &lane = *lane] { run(lane); });
      ++started;
    }
  } catch (const std::exception&) {
    close(sends_first_);
    for (size_t i = started; i < lanes_.size(); ++i) thread_over();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started != lanes_.size()) return false;
  MutexLock lock(mutex_);
  if (sends_first_) can_send_.store(true, std::memory_order_release);
  return true;
}

// --- a lane's thread -----------------------------------------------------------------------------------------------

void LaneSet::run(Lane& lane) noexcept {
  pthread_setname_np(pthread_self(), "gpuwire-lane");
  Clock::time_point idle{};
  while (!closed()) {
    uint64_t changes = changes_.load(std::memory_order_seq_cst);
    bool sent = send_some(lane);
    if (receive_some(lane) || sent) {
      idle = {};
      continue;
    }
    if (poll_.count() != 0) {
      auto now = Clock::now();
      if (idle == Clock::time_point{}) idle = now;
      if (now - idle < poll_) {
        relax();
        continue;
      }
    }
    sleep(lane, changes);
  }
  end(lane);
}

bool LaneSet::turn(size_t index) noexcept {
  Lane& lane = *lanes_[index];
  if (lane.over) return false;
  if (closed()) {
    end(lane);
    return true;
  }
  bool sent = send_some(lane);
  return receive_some(lane) || sent;
}

void LaneSet::end(Lane& lane) noexcept {
  lane.over = true;
  resets_ ? lane.transport->reset() : lane.transport->shutdown();
  thread_over();
}

void LaneSet::sleep(Lane& lane, uint64_t changes) noexcept {
  lane.sleeps.store(true, std::memory_order_seq_cst);
  if (changes_.load(std::memory_order_seq_cst) == changes && !closed())
    lane.transport->wait(kWoken | (lane.input_waits ? 0u : kReadable) | (lane.sending ? kWritable : 0u), kSleep);
  lane.sleeps.store(false, std::memory_order_seq_cst);
}

void LaneSet::changed() noexcept {
  changes_.fetch_add(1, std::memory_order_seq_cst);
  for (auto& lane : lanes_)
    if (lane->sleeps.load(std::memory_order_seq_cst)) lane->transport->wake();
}

void LaneSet::thread_over() noexcept {
  bool last;
  {
    MutexLock lock(mutex_);
    last = --running_ == 0;
    placed_changed_.notify_all();
  }
  if (last && events_.over) events_.over();
}

// --- sending -------------------------------------------------------------------------------------------------------

bool LaneSet::send(uint64_t position, std::span<const std::byte> part) {
  {
    MutexLock lock(mutex_);
    if (closed() || out_active_ || running_ != lanes_.size()) return false;
    out_ = {};
    out_.position = position;
    out_.data = part.data();
    out_.bytes = part.size();
    out_.stripes = uint32_t((part.size() + stripe_bytes_ - 1) / stripe_bytes_);
    out_active_ = true;
    out_began_ = Clock::now();
    in_use_.store(count_.now(), std::memory_order_relaxed);
  }
  changed();
  return true;
}

// Takes the next stripe that no lane has taken, if this lane is in use.
bool LaneSet::take_stripe(Lane& lane) noexcept {
  MutexLock lock(mutex_);
  if (!out_active_ || out_.next == out_.stripes || closed()) return false;
  for (size_t i = 0; i < count_.now(); ++i) {
    if (lanes_[i].get() != &lane) continue;
    size_t offset = size_t(out_.next) * stripe_bytes_;
    lane.out_stripe = out_.next++;
    lane.out_data = out_.data + offset;
    lane.out_left = std::min(stripe_bytes_, out_.bytes - offset);
    lane.out_header = {.lane_set = number_, .position = out_.position + offset, .bytes = uint32_t(lane.out_left)};
    lane.out_header_left = sizeof lane.out_header;
    return lane.sending = true;
  }
  return false;
}

// Returns true if bytes were sent.
bool LaneSet::send_some(Lane& lane) noexcept {
  if (!lane.sending && !take_stripe(lane)) return false;
  size_t header_sent = sizeof lane.out_header - lane.out_header_left;
  iovec pieces[2] = {{reinterpret_cast<std::byte*>(&lane.out_header) + header_sent, lane.out_header_left},
                     {const_cast<std::byte*>(lane.out_data), lane.out_left}};
  size_t skip = lane.out_header_left == 0, count = lane.out_left == 0 ? 1 : 2;
  IoResult result = lane.transport->try_send(std::span<const iovec>(pieces).first(count).subspan(skip));
  if (result.status == IoStatus::would_block) return false;
  if (result.status != IoStatus::ok) {
    lose(lane, result);
    return false;
  }
  size_t of_header = std::min(result.bytes, lane.out_header_left);
  lane.out_header_left -= of_header;
  lane.out_data += result.bytes - of_header;
  lane.out_left -= result.bytes - of_header;
  if (lane.out_header_left == 0 && lane.out_left == 0) stripe_sent(lane);
  return true;
}

void LaneSet::stripe_sent(Lane& lane) noexcept {
  lane.sending = false;
  lane.out_data = nullptr;
  if (lane.out_stripe == kNoStripe) return;
  uint64_t position;
  bool all, more;
  {
    MutexLock lock(mutex_);
    out_.left.set(lane.out_stripe);
    uint32_t before = out_.before;
    while (out_.before < out_.stripes && out_.left[out_.before]) ++out_.before;
    more = out_.before != before;
    all = ++out_.sent == out_.stripes;
    position = out_.position + std::min(size_t(out_.before) * stripe_bytes_, out_.bytes);
    if (all) {
      count_.sent(out_.bytes, Clock::now() - out_began_);
      out_active_ = false;
    }
  }
  if (more || all) events_.sent(position, all);
}

// --- receiving: a lane's thread ------------------------------------------------------------------------------------

// Returns true if bytes were received.
bool LaneSet::receive_some(Lane& lane) noexcept {
  IoResult result;
  lane.input_waits = false;
  if (lane.in_have < sizeof lane.in_header) {
    result = lane.transport->try_receive(std::as_writable_bytes(std::span(&lane.in_header, 1)).subspan(lane.in_have));
    if (result.status == IoStatus::ok) {
      lane.in_have += result.bytes;
      return lane.in_have < sizeof lane.in_header || header_complete(lane);
    }
  } else {
    auto place = place_for(lane);
    if (place.empty()) {
      lane.input_waits = true;
      return false;
    }
    result = lane.transport->try_receive(place);
    placed(lane, result.status == IoStatus::ok ? result.bytes : 0);
    if (result.status == IoStatus::ok) return true;
  }
  if (result.status != IoStatus::would_block) lose(lane, result);
  return false;
}

bool LaneSet::header_complete(Lane& lane) noexcept {
  const wire::StripeHeader& header = lane.in_header;
  lane.in_done = 0;
  lane.in_taken = false;
  if (header.magic != wire::StripeHeader::kMagic || header.lane_set != number_)
    return break_rules("a stripe of no lane");
  if (header.bytes != 0) {
    if (!sends_first_ && !lane.ready) return break_rules("a stripe before the lanes are ready");
    if (header.bytes > stripe_bytes_) return break_rules("a stripe that is too long");
    return true;
  }
  if (sends_first_ || lane.ready) return break_rules("an empty stripe");
  lane.ready = true;
  lane.in_have = 0;
  MutexLock lock(mutex_);
  if (++ready_ == lanes_.size()) can_send_.store(true, std::memory_order_release);
  return true;
}

// Returns true if the stripe belongs to the expected part; false if the part is not expected yet,
// or never will be.
bool LaneSet::claim_stripe(Lane& lane) noexcept {
  const wire::StripeHeader& header = lane.in_header;
  if (header.position >= in_.end) return false;  // the stripe belongs to a part that is announced later
  uint64_t offset = header.position - in_.begin;
  const char* wrong = nullptr;
  if (header.position < in_.begin) wrong = "a stripe of bytes that have come";
  else if (offset % stripe_bytes_ != 0 || header.bytes != std::min<uint64_t>(stripe_bytes_, in_.end - header.position))
    wrong = "a stripe of another length than its place";
  else if (in_.taken[size_t(offset / stripe_bytes_)]) wrong = "a stripe twice";
  if (wrong) {
    if (fault_.empty()) fault_ = wrong;
    return false;
  }
  in_.taken.set(size_t(offset / stripe_bytes_));
  return lane.in_taken = true;
}

// Returns the destination of the lane's next bytes, and counts this thread as a writer until placed(). Empty: there is
// no destination yet.
std::span<std::byte> LaneSet::place_for(Lane& lane) noexcept {
  MutexLock lock(mutex_);
  if (!lane.in_taken && !claim_stripe(lane)) {
    if (fault_.empty()) return {};
    lock.unlock();
    lose(lane, {IoStatus::failed, 0, EPROTO});
    return {};
  }
  uint64_t position = lane.in_header.position + lane.in_done;
  uint64_t at = position - place_at_;
  if (position < place_at_ || at >= place_.size() || (place_in_order_ && position != next_)) return {};
  ++writers_;
  return place_.subspan(size_t(at), std::min<size_t>(place_.size() - size_t(at), lane.in_header.bytes - lane.in_done));
}

void LaneSet::placed(Lane& lane, size_t bytes) noexcept {
  lane.in_done += bytes;
  bytes_received_.fetch_add(bytes, std::memory_order_relaxed);
  if (lane.in_done == lane.in_header.bytes) lane.in_have = 0;
  MutexLock lock(mutex_);
  --writers_;
  size_t missing = missing_.load(std::memory_order_relaxed) - bytes;
  missing_.store(missing, std::memory_order_release);
  if (place_in_order_) next_ += bytes;
  if (missing == 0 || place_.empty() || (place_in_order_ && bytes != 0)) placed_changed_.notify_all();
}

// --- receiving: which thread wants the bytes -----------------------------------------------------------------------

void LaneSet::expect(uint64_t position, uint64_t bytes) {
  MutexLock lock(mutex_);
  in_.begin = position;
  in_.end = position + bytes;
  in_.taken.reset();
}

IoResult LaneSet::receive(uint64_t position, std::span<std::byte> out, Order order,
                          const std::function<bool()>& stop) noexcept {
  {
    MutexLock lock(mutex_);
    if (closed()) return {IoStatus::would_block};
    place_ = out;
    place_at_ = next_ = position;
    place_in_order_ = order == Order::as_sent;
    missing_.store(out.size(), std::memory_order_relaxed);
  }
  changed();
  auto over = [&] { return missing_.load(std::memory_order_acquire) == 0 || closed(); };
  if (others_) {
    do {
      if (!others_() && order == Order::any && !over() && stop()) close(sends_first_);
    } while (order == Order::any && !over());
  }
  if (order == Order::any && poll_.count() != 0)
    for (auto begun = Clock::now(); !over() && Clock::now() - begun < poll_;) relax();
  MutexLock lock(mutex_);
  if (order == Order::any) {
    while (!placed_changed_.wait_for(lock.native(), kStopWait, over)) {
      lock.unlock();
      if (stop()) close(sends_first_);
      lock.lock();
    }
  } else if (!others_) {
    placed_changed_.wait_for(lock.native(), kInOrderWait,
                             [&]() REQUIRES(mutex_) { return over() || next_ != position; });
  }
  place_ = {};
  placed_changed_.wait(lock.native(), [&]() REQUIRES(mutex_) { return writers_ == 0; });
  size_t got = order == Order::as_sent                         ? size_t(next_ - position)
               : missing_.load(std::memory_order_relaxed) == 0 ? out.size()
                                                               : 0;
  return got != 0 ? IoResult{IoStatus::ok, got} : IoResult{IoStatus::would_block};
}

// --- the end -------------------------------------------------------------------------------------------------------

void LaneSet::close(bool resets) noexcept {
  {
    MutexLock lock(mutex_);
    if (closed()) return;
    resets_ = resets;
    closed_.store(true, std::memory_order_release);
    placed_changed_.notify_all();
  }
  for (auto& lane : lanes_) lane->transport->wake();
}

void LaneSet::lose(Lane& lane, const IoResult& result) noexcept {
  bool peer_closed = lane.transport->peer_closed();
  {
    MutexLock lock(mutex_);
    if (closed()) return;
    failure_ = result;
    peer_closed_ = peer_closed;
  }
  close(sends_first_);
}

bool LaneSet::break_rules(const char* why) noexcept {
  {
    MutexLock lock(mutex_);
    if (!closed() && fault_.empty()) {
      fault_ = why;
      failure_ = {IoStatus::failed, 0, EPROTO};
    }
  }
  close(sends_first_);
  return false;
}

IoResult LaneSet::failure() const {
  MutexLock lock(mutex_);
  return failure_;
}

bool LaneSet::peer_closed() const {
  MutexLock lock(mutex_);
  return peer_closed_;
}

std::string LaneSet::fault() const {
  MutexLock lock(mutex_);
  return fault_;
}

void LaneSet::abandon_after_fork() noexcept {
  for (auto& lane : lanes_) lane->transport->abandon_after_fork();
}

}  // namespace gpuwire::link
