#include "client_stub/session/connected_session.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "client_stub/session/fork_guard.hpp"
#include "client_stub/session/message_file.hpp"
#include "client_stub/session/wait_observer.hpp"
#include "protocol/threads/cores.hpp"
#include "protocol/threads/polling.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/wire/message_reader.hpp"

namespace gpuwire::client {

thread_local constinit ThreadTraffic t_traffic __attribute__((tls_model("initial-exec"))) = {};

namespace {

using Clock = std::chrono::steady_clock;

// One wait for the connection to become writable; repeated as long as it lives.
constexpr std::chrono::milliseconds kWritableWait{100};
// The least time between two polls of the connection by the program: about the cost of one poll.
constexpr int64_t kPollIntervalNs = 1000;
// One wait for room in the window. The wait is bounded, because no notification follows room that sending creates.
constexpr std::chrono::milliseconds kRoomWait{5};
// One wait for something to arrive; repeated as long as the connection lives.
constexpr std::chrono::seconds kLeadWait{10};
// PendingCall::begun_after of a call that was set aside. The value is no number of waits, so the call counts as one
// that shared another's round trip.
constexpr uint64_t kBegunAside = ~uint64_t{0};

// The time for which a waiting thread polls the connection before it sleeps: a sleep costs a wake-up at its end, 50 to
// 300 us on a virtual machine. CUDA itself spins to the end of every wait unless the program asks for
// CU_CTX_SCHED_BLOCKING_SYNC; the polls here end after a time and leave the core to other threads. On few cores the
// server may need the polling core.
struct PollTime {
  std::chrono::nanoseconds brief, patient;
};

const PollTime& poll_time() {
  static const PollTime time = [] {
    const unsigned count = usable_cores();
    std::chrono::microseconds brief(count > 2 ? 50 : count == 2 ? 20 : 0);
    return PollTime{brief, count >= 8   ? std::chrono::milliseconds(20)
                           : count >= 4 ? std::chrono::milliseconds(1)
                                        : brief};
  }();
  return time;
}

}  // namespace

ConnectedSession::ConnectedSession(std::unique_ptr<transport::Transport> transport, NoticeHandler& notices,
                                   const link::LinkLimits& limits)
    : notices_(notices),
      link_(std::move(transport), limits),
      outgoing_(link_, stats_),
      receiver_(arrivals_, wire::Sender::server),
      thread_(*this) {
  receiver_.poll_for_bulk(brief_poll());
}

ConnectedSession::~ConnectedSession() {
  close();
  thread_.stop(-1);
  lane_opener_.reset();
  forget_fork_guard(*this);
}

SessionStats& ConnectedSession::stats() noexcept {
  stats_.bytes_sent.store(link_.bytes_sent(), std::memory_order_relaxed);
  stats_.bytes_received.store(link_.received(), std::memory_order_relaxed);
  stats_.flushes.store(link_.writes(), std::memory_order_relaxed);
  stats_.bytes_sent_again.store(link_.bytes_sent_again(), std::memory_order_relaxed);
  return stats_;
}

Road::Lanes ConnectedSession::lanes() const noexcept {
  return {lanes_most_, link_.lane_bytes() != 0 ? lanes_most_ : unsigned(link_.lanes()), unsigned(link_.lanes_in_use()),
          link_.lane_bytes()};
}

CUresult ConnectedSession::state() const noexcept {
  if (forked_.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  return ended_result_.load(std::memory_order_acquire);
}

namespace {
thread_local constinit unsigned t_answering __attribute__((tls_model("initial-exec"))) = 0;
}

Session::Answering::Answering() noexcept { ++t_answering; }
Session::Answering::~Answering() { --t_answering; }

size_t ConnectedSession::reserve_bytes() {
  if (in_notice_handler()) return 0;
  return t_answering != 0 ? kNoticeReserveBytes : kNoticeReserveBytes + kAnswerReserveBytes;
}

// Counts the time for which one frame waits for room once, however often the thread wakes up.
class ConnectedSession::Stall {
 public:
  explicit Stall(ConnectedSession& session) : session_(session) {}
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;
  ~Stall() {
    if (stalled_) session_.count_stall(begun_);
  }
  void await_room(uint64_t room_seen) {
    if (!stalled_) begun_ = Clock::now();
    stalled_ = true;
    session_.await_room(room_seen);
  }

 private:
  ConnectedSession& session_;
  bool stalled_ = false;
  Clock::time_point begun_;
};

void ConnectedSession::count_stall(Clock::time_point begun) noexcept {
  const uint64_t ns = note_wait(WaitKind::room, begun);
  ++t_traffic.stalls;
  t_traffic.wait_ns += ns;
  stats_.stalls.fetch_add(1, std::memory_order_relaxed);
  stats_.wait_ns.fetch_add(ns, std::memory_order_relaxed);
}

CUresult ConnectedSession::begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max,
                                 const Bulk& bulk, Slot& slot) noexcept {
  Stall stall(*this);
  for (;;) {
    if (CUresult error = state()) return error;
    uint64_t room_seen = 0;
    auto begun = outgoing_.begin(kind, ordinal, context, words_max, bulk, reserve_bytes(), slot, room_seen);
    if (begun == Outgoing::Begun::ok) return CUDA_SUCCESS;
    if (begun == Outgoing::Begun::too_large) return CUDA_ERROR_INVALID_VALUE;
    if (in_notice_handler())
      end(CUDA_ERROR_DEVICE_UNAVAILABLE, "the server takes over nothing of what its notices are answered with", true);
    else stall.await_room(room_seen);
  }
}

void ConnectedSession::expect_reply(Slot& slot, const BulkSink& sink) noexcept {
  std::lock_guard lock(receive_mutex_);
  slot.call = calls_.add(slot.sequence, sink);
  if (!slot.call) return;
  slot.call->begun_after = t_traffic.waits;
  ++awaited_;
}

void ConnectedSession::set_aside(uint64_t sequence) noexcept {
  std::lock_guard lock(receive_mutex_);
  PendingCall* call = calls_.find(sequence);
  if (!call || call->aside) return;
  calls_.set_aside(call, true);
  call->begun_after = kBegunAside;
  if (call->arrived) return;
  --awaited_;
  if (!thread_awaits_role_ || receiving_ || awaited_) return;
  thread_awaits_role_ = false;
  link_.wake();
}

void ConnectedSession::commit(Slot& slot, size_t words_used) noexcept {
  Outgoing::Committed done = outgoing_.commit(words_used);
  if (slot.call) {
    slot.call->bytes_end = done.bytes_end;
    slot.call->external = done.external;
  }
  if (done.failed) return end(CUDA_ERROR_OUT_OF_MEMORY, "out of memory", true);
  if (done.start_thread && !thread_.start()) {
    outgoing_.thread_is_unavailable();
    done.flush = true;
  }
  if (done.wake_thread) link_.wake();
  if (done.flush) link_.pump();
  if (done.bulk_bytes <= wire::kPostedBulkBytesMax) return;
  poll_lanes();
  if (progress_ && !slot.call) progress_->posted(done.bulk_bytes, done.bytes_end);
}

void ConnectedSession::abandon(Slot& slot) noexcept {
  outgoing_.abandon();
  if (!slot.call) return;
  std::lock_guard lock(receive_mutex_);
  calls_.remove(slot.call);
  --awaited_;
}

void ConnectedSession::flush() noexcept {
  if (state() == CUDA_SUCCESS) link_.pump();
}

void ConnectedSession::poll() noexcept {
  const int64_t now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  int64_t due = next_poll_ns_.load(std::memory_order_relaxed);
  if (now < due || !next_poll_ns_.compare_exchange_strong(due, now + kPollIntervalNs, std::memory_order_relaxed))
    return;
  if (state() == CUDA_SUCCESS && link_.state() == link::Link::State::attached) receive_if_free();
}

bool ConnectedSession::give_descriptor(uint64_t number, int descriptor) noexcept {
  return state() == CUDA_SUCCESS && link_.transport()->give_descriptor(number, descriptor);
}

void ConnectedSession::finish_sending() noexcept {
  if (forked_.load(std::memory_order_relaxed) || !link_.holds_external()) return;
  uint64_t end = outgoing_.appended_bytes();
  bool asked = false;
  while (!link_.acknowledged(end) && !ended()) {
    if (!asked) asked = outgoing_.append_control(wire::ControlOrdinal::acknowledge_now);
    await_change([&] { return link_.acknowledged(end); });
  }
}

CUresult ConnectedSession::wait(uint64_t sequence, ReplyReader read, void* user, const BulkSink&) noexcept {
  if (forked_.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  OwnCall own{nullptr, read, user};
  {
    std::lock_guard lock(receive_mutex_);
    own.call = calls_.find(sequence);
    if (own.call && own.call->aside) {
      calls_.set_aside(own.call, false);
      if (!own.call->arrived) ++awaited_;
    }
  }
  if (!own.call) return ended() ? state() : CUDA_ERROR_OUT_OF_MEMORY;
  auto begun = Clock::now();
  own.deadline = begun + answer_time_max_;
  await_reply(own);
  if (own.call->external) {
    // The reply may arrive before all bytes are sent. It proves that the server no longer needs them: if they have to
    // be sent again, any content will do.
    await_sent(own.call->bytes_end);
    link_.forget_external(own.call->bytes_end);
  }
  bool arrived = own.call->arrived;
  if (arrived && !own.read_in_place) {
    auto& words = own.call->reply;
    if (auto bad = wire::read_guarded([&] {
          wire::SegmentReader message(kj::arrayPtr(words.data(), words.size()));
          if (read(user, message) == CUDA_SUCCESS && own.call->lacks_bytes) throw std::runtime_error(kLacksBytes);
        })) {
      fault(*bad);
      arrived = false;
    }
  }
  t_traffic.bytes_received += own.call->reply_bytes;
  // Calls that were begun before the thread's last wait shared that wait's round trip.
  bool another = own.call->begun_after == t_traffic.waits;
  {
    std::lock_guard lock(receive_mutex_);
    if (!own.call->arrived) --awaited_;
    calls_.remove(own.call);
  }
  poll_progress();
  uint64_t waited_ns = note_wait(WaitKind::reply, begun);
  t_traffic.waits += another;
  t_traffic.wait_ns += waited_ns;
  stats_.waits.fetch_add(another, std::memory_order_relaxed);
  stats_.wait_ns.fetch_add(waited_ns, std::memory_order_relaxed);
  return arrived ? CUDA_SUCCESS : state();
}

void ConnectedSession::await_reply(OwnCall& own) {
  PendingCall& call = *own.call;
  link_.pump();
  std::unique_lock lock(receive_mutex_);
  for (;;) {
    if (call.arrived || (ended() && !call.filling)) return;
    if (Clock::now() >= own.deadline && !call.filling) {
      lock.unlock();
      give_up_call(call.sequence);
      lock.lock();
      continue;
    }
    if (!receiving_) {
      take_role();
      lock.unlock();
      lead(&own, call.bytes_end, [&] { return call.arrived; });
      lock.lock();
      pass_on_role(lock);
      continue;
    }
    // Without a connection nothing can be sent; the thread that gets a connection sends the remaining bytes.
    if (!link_.sent(call.bytes_end) && link_.state() == link::Link::State::attached) {
      lock.unlock();
      link_.pump();
      if (!link_.sent(call.bytes_end)) link_.wait(transport::kWritable, kWritableWait);
      poll_progress();
      lock.lock();
      continue;
    }
    call.asleep = true;
    auto changed = [&] { return call.arrived || !receiving_ || (ended() && !call.filling); };
    while (!changed() && call.changed.wait_until(lock, own.deadline)) {}
    call.asleep = false;
  }
}

// No other thread can detect the loss: the server lives, and sends nothing.
void ConnectedSession::give_up_call(uint64_t sequence) {
  end(CUDA_ERROR_DEVICE_UNAVAILABLE,
      fmt::format("call {} has had no answer for {} s (GPUWIRE_ANSWER_TIMEOUT); the session is over", sequence,
                  std::chrono::duration<double>(answer_time_max_).count()),
      true);
}

template <class Done>
void ConnectedSession::lead(OwnCall* own, uint64_t bytes_end, Done done) {
  auto begun = Clock::now();
  auto poll = sleeps_.load(std::memory_order_relaxed) ? poll_time().brief : poll_time().patient;
  while (!ended()) {
    if (receive_one(own)) {
      if (done()) return;
      continue;
    }
    if (ended() || done()) return;
    auto is_unsent = [&] { return !link_.sent(bytes_end) || link_.blocked(); };
    bool unsent = is_unsent();
    if (unsent) link_.pump();
    if (auto spent = Clock::now() - begun; spent < poll) {
      relax(spent);
      continue;
    }
    unsent = unsent && is_unsent();
    transport::Nanoseconds wait = own ? transport::Nanoseconds(kLeadWait) : transport::Nanoseconds(kRoomWait);
    if (own) {
      const auto left = own->deadline - Clock::now();
      if (left.count() <= 0) return;
      wait = std::min<transport::Nanoseconds>(wait, left);
    }
    wait_receiving(transport::kReadable | (unsent ? transport::kWritable : 0u), wait);
  }
}

void ConnectedSession::show_progress(std::unique_ptr<ProgressLine> line, TransferProgress::Now now) {
  progress_ = std::make_shared<TransferProgress>(traffic_, std::move(line), now);
}

void ConnectedSession::notify(const std::string& text) {
  if (progress_) progress_->clear();
  print_line(fmt::format("{}: {}", address_, text));
}

transport::Nanoseconds ConnectedSession::until_poll(transport::Nanoseconds wait) const noexcept {
  if (progress_) wait = std::min(wait, progress_->left());
  return heartbeat_ ? std::min(wait, heartbeat_->left(Clock::now())) : wait;
}

unsigned ConnectedSession::wait_receiving(unsigned interest, transport::Nanoseconds timeout) noexcept {
  if (link_.state() == link::Link::State::detached) {
    reconnect();
    return 0;
  }
  unsigned ready = link_.wait(interest, until_poll(timeout));
  if (!ready) poll_heartbeat();
  poll_progress();
  return ready;
}

template <class Done>
void ConnectedSession::await_change(Done done) {
  link_.pump();
  uint64_t appended = outgoing_.appended_bytes();
  std::unique_lock lock(receive_mutex_);
  if (receiving_) {
    ++room_waiters_;
    room_changed_.wait_for(lock, kRoomWait);
    --room_waiters_;
    return;
  }
  take_role();
  lock.unlock();
  lead(nullptr, appended, done);
  lock.lock();
  pass_on_role(lock);
}

void ConnectedSession::await_sent(uint64_t bytes_end) {
  while (!link_.sent(bytes_end)) {
    link_.pump();
    if (link_.sent(bytes_end)) return;
    // A thread has to reconnect, possibly this one.
    if (link_.state() == link::Link::State::detached) await_change([&] { return link_.sent(bytes_end); });
    else link_.wait(transport::kWritable, kWritableWait);
    poll_progress();
  }
}

void ConnectedSession::await_room(uint64_t room_seen) {
  await_change([&] { return link_.room_changes() != room_seen; });
}

}  // namespace gpuwire::client
