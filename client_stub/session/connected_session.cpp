#include "client_stub/session/connected_session.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "client_stub/session/ask.hpp"
#include "client_stub/session/backoff.hpp"
#include "client_stub/session/fork_guard.hpp"
#include "client_stub/session/handshake.hpp"
#include "client_stub/session/server_reconnector.hpp"
#include "client_stub/session/wait_observer.hpp"
#include "protocol/threads/cores.hpp"
#include "protocol/threads/looking.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/wire/message_reader.hpp"

namespace gpuwire::client {

thread_local constinit ThreadTraffic t_traffic __attribute__((tls_model("initial-exec"))) = {};

namespace {

using Clock = std::chrono::steady_clock;

// What close() spends on sending what is buffered, and on the session thread's end.
constexpr std::chrono::milliseconds kCloseEffort{200};
constexpr int kThreadEndMs = 500;
// One wait for the connection to take more; repeated as long as it lives.
constexpr std::chrono::milliseconds kWritableWait{100};
// Between two looks at the connection by programs that poll: about what a look costs.
constexpr int64_t kLookIntervalNs = 1000;
// One wait for room in the window; bounded, because room that comes of sending is told to nobody.
constexpr std::chrono::milliseconds kRoomWait{5};
// One wait for something to arrive; repeated as long as the connection lives.
constexpr std::chrono::seconds kLeadWait{10};
// PendingCall::begun_after of a call that was set aside: no number of waits, so that it travelled with another.
constexpr uint64_t kBegunAside = ~uint64_t{0};

// How long a waiting thread looks at the connection again and again before it sleeps: a sleep costs a wake-up at its
// end, 50 to 300 us on a virtual machine. CUDA itself spins to the end of every wait unless the program asks for
// CU_CTX_SCHED_BLOCKING_SYNC; here the looks end some time, and give the core to whoever else wants it. On few cores
// the server may need the core that looks.
struct LookTime {
  std::chrono::nanoseconds brief, patient;
};

const LookTime& look_time() {
  static const LookTime time = [] {
    const unsigned count = usable_cores();
    std::chrono::microseconds brief(count > 2 ? 50 : count == 2 ? 20 : 0);
    return LookTime{brief, count >= 8   ? std::chrono::milliseconds(20)
                           : count >= 4 ? std::chrono::milliseconds(1)
                                        : brief};
  }();
  return time;
}

// One write, so that lines of several processes do not mix.
void print_line(const std::string& text) {
  std::string line = "gpuwire: " + text + "\n";
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace

namespace {

using Started = tl::expected<std::unique_ptr<Session>, SessionStartError>;

CUresult result_of(Started started, std::string_view address, std::unique_ptr<Session>& session, std::string& error) {
  if (started) {
    session = std::move(*started);
    return CUDA_SUCCESS;
  }
  error = fmt::format("{}: {}", address, started.error().cause);
  return started.error().result;
}

Started enter_and_greet(std::unique_ptr<transport::Transport> transport, const std::string& address,
                        NoticeHandler& notices, const Entry& entry, const ServerAddress* server) {
  auto entered = enter(std::move(transport), entry, [](const std::string& line) { print_line(line); });
  if (!entered) return tl::unexpected(entered.error());
  return ConnectedSession::greet(std::move(*entered), address, notices, server);
}

Started attempt_once(const ServerAddress& address, const std::string& name, NoticeHandler& notices, SessionKind kind,
                     Entry::QueuePlace& place, bool& identity_unused) {
  auto transport = reach(address);
  if (!transport) return tl::unexpected(transport.error());
  auto entry = plan_entry(address, **transport, kind);
  if (!entry) return tl::unexpected(entry.error());
  entry->place = &place;
  identity_unused = entry->identity_unused;
  return enter_and_greet(std::move(*transport), name, notices, *entry,
                         kind == SessionKind::program ? &address : nullptr);
}

// A server on this machine, or at the other end of a tunnel, that takes nobody in particular may take the user whose
// identity lies in the configuration folder.
Started attempt(ServerAddress& address, const std::string& name, NoticeHandler& notices, SessionKind kind,
                Entry::QueuePlace& place) {
  bool identity_unused = false;
  Started started = attempt_once(address, name, notices, kind, place, identity_unused);
  if (started || !started.error().refused || !identity_unused) return started;
  ServerAddress with_tls = address;
  with_tls.kind = ServerAddress::Kind::tls;
  Started second = attempt_once(with_tls, name, notices, kind, place, identity_unused);
  if (second || second.error().refused || second.error().again) {
    address = with_tls;
    return second;
  }
  started.error().cause += "; with the identity in the configuration folder: " + second.error().cause;
  return started;
}

}  // namespace

CUresult Session::connect(std::string_view server, NoticeHandler& notices, std::unique_ptr<Session>& session,
                          std::string& error, SessionKind kind) {
  // Before anything else of this library uses OpenSSL, with or without TLS.
  tls::start_openssl();
  auto address = parse_server_address(server);
  if (!address) return result_of(not_ready(address.error()), server, session, error);
  Backoff backoff;
  Entry::QueuePlace place;
  for (;;) {
    Started started = attempt(*address, std::string(server), notices, kind, place);
    if (started || started.error().refused) return result_of(std::move(started), server, session, error);
    if (std::exchange(place.held, false)) {
      print_line(fmt::format("{}: {}; trying for {} s to return to the place in the queue", server,
                             started.error().cause, kQueueReturn.count()));
      backoff.patient_until(Backoff::Clock::now() + kQueueReturn);
    } else if (!started.error().again && !backoff.patient()) {
      return result_of(std::move(started), server, session, error);
    }
    if (!backoff.wait()) return result_of(std::move(started), server, session, error);
  }
}

namespace {

SessionStartError ask_once(const ServerAddress& address, const std::string& query, std::string& answer,
                           bool& identity_unused) {
  auto transport = reach(address);
  if (!transport) return transport.error();
  auto entry = plan_entry(address, **transport, SessionKind::management);
  if (!entry) return entry.error();
  identity_unused = entry->identity_unused;
  entry->query = query;
  entry->answer = &answer;
  auto entered = enter(std::move(*transport), *entry, [](const std::string&) {});
  return entered ? SessionStartError{CUDA_SUCCESS, {}} : entered.error();
}

}  // namespace

CUresult ask_server(std::string_view server, const std::string& query, std::string& answer, std::string& error) {
  tls::start_openssl();
  auto address = parse_server_address(server);
  if (!address) return error = address.error(), CUDA_ERROR_SYSTEM_NOT_READY;
  Backoff backoff;
  for (;;) {
    answer.clear();
    bool identity_unused = false;
    SessionStartError failure = ask_once(*address, query, answer, identity_unused);
    if (failure.result == CUDA_SUCCESS) return CUDA_SUCCESS;
    // As for a session: a server on this machine may want to know who it is.
    if (failure.refused && identity_unused) address->kind = ServerAddress::Kind::tls;
    else if (failure.refused || !(failure.again || backoff.patient()) || !backoff.wait())
      return error = fmt::format("{}: {}", server, failure.cause), failure.result;
  }
}

CUresult ConnectedSession::start(std::unique_ptr<transport::Transport> transport, std::string address,
                                 NoticeHandler& notices, std::unique_ptr<Session>& session, std::string& error,
                                 const Entry& entry, const ServerAddress* server) {
  return result_of(enter_and_greet(std::move(transport), address, notices, entry, server), address, session, error);
}

tl::expected<std::unique_ptr<ConnectedSession>, SessionStartError> ConnectedSession::greet(
    std::unique_ptr<transport::Transport> transport, const std::string& address, NoticeHandler& notices,
    const ServerAddress* server, const link::LinkLimits& limits) {
  auto connected = std::make_unique<ConnectedSession>(std::move(transport), notices, limits);
  connected->address_ = address;
  if (!connected->link_.valid()) return tl::unexpected<SessionStartError>({CUDA_ERROR_OUT_OF_MEMORY, "out of memory"});
  auto begun = begin_session(connected->link_, connected->outgoing_, connected->receiver_,
                             server ? lanes_wanted(connected->link_.transport()->road()) : 0);
  if (!begun) {
    // Nothing was begun, so there is nothing to take leave from.
    connected->ended_result_.store(begun.error().result, std::memory_order_release);
    return tl::unexpected(begun.error());
  }
  connected->facts_ = std::move(begun->facts);
  connected->facts_.address = address;
  guard_against_fork(*connected);
  if (begun->lanes != 0 && !connected->link_.begin_parts(true))
    return tl::unexpected<SessionStartError>({CUDA_ERROR_OUT_OF_MEMORY, "out of memory"});
  connected->lanes_most_ = begun->lanes;
  if (server && begun->resume_grace.count() > 0)
    connected->outlive_connections(
        std::make_unique<ServerReconnector>(*server, begun->id, begun->secret, begun->lanes != 0,
                                            connected->link_.transport()->peer()),
        begun->resume_grace, begun->heartbeats ? link::kHeartbeatInterval : std::chrono::milliseconds(0));
  if (server && progress_is_wanted()) connected->show_progress(standard_error_line());
  return connected;
}

ConnectedSession::ConnectedSession(std::unique_ptr<transport::Transport> transport, NoticeHandler& notices,
                                   const link::LinkLimits& limits)
    : notices_(notices),
      link_(std::move(transport), limits),
      outgoing_(link_, stats_),
      receiver_(arrivals_, wire::Sender::server),
      thread_(*this) {}

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

// The time for which one frame waits for room is counted once, however often it has to look.
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
  if (!done.external) return;
  look_at_lanes();
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

void ConnectedSession::look() noexcept {
  const int64_t now = std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  int64_t due = next_look_ns_.load(std::memory_order_relaxed);
  if (now < due || !next_look_ns_.compare_exchange_strong(due, now + kLookIntervalNs, std::memory_order_relaxed))
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
  await_reply(own);
  if (own.call->external) {
    // The reply may have come first. It says that the server has what it wants of the bytes: should they have to be
    // sent again, any will do.
    await_sent(own.call->bytes_end);
    link_.forget_external(own.call->bytes_end);
  }
  bool arrived = own.call->arrived;
  if (arrived && !own.read_in_place) {
    auto& words = own.call->reply;
    if (auto bad = wire::read_guarded([&] {
          wire::SegmentReader message(kj::arrayPtr(words.data(), words.size()));
          read(user, message);
        })) {
      fault(*bad);
      arrived = false;
    }
  }
  t_traffic.bytes_received += own.call->reply_bytes;
  // Calls that were begun before the thread last waited have travelled with the one it waited for.
  bool another = own.call->begun_after == t_traffic.waits;
  {
    std::lock_guard lock(receive_mutex_);
    if (!own.call->arrived) --awaited_;
    calls_.remove(own.call);
  }
  look_at_progress();
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
    if (!receiving_) {
      receiving_ = true;
      lock.unlock();
      lead(&own, call.bytes_end, [&] { return call.arrived; });
      lock.lock();
      pass_on_role(lock);
      continue;
    }
    // Without a connection there is nothing to send by, and whoever gets one sends what is left.
    if (!link_.sent(call.bytes_end) && link_.state() == link::Link::State::attached) {
      lock.unlock();
      link_.pump();
      if (!link_.sent(call.bytes_end)) link_.wait(transport::kWritable, kWritableWait);
      look_at_progress();
      lock.lock();
      continue;
    }
    call.asleep = true;
    call.changed.wait(lock, [&] { return call.arrived || !receiving_ || (ended() && !call.filling); });
    call.asleep = false;
  }
}

template <class Done>
void ConnectedSession::lead(OwnCall* own, uint64_t bytes_end, Done done) {
  auto begun = Clock::now();
  auto look = sleeps_.load(std::memory_order_relaxed) ? look_time().brief : look_time().patient;
  while (!ended()) {
    if (receive_one(own)) {
      if (done()) return;
      continue;
    }
    if (ended() || done()) return;
    auto is_unsent = [&] { return !link_.sent(bytes_end) || link_.blocked(); };
    bool unsent = is_unsent();
    if (unsent) link_.pump();
    if (auto spent = Clock::now() - begun; spent < look) {
      relax(spent);
      continue;
    }
    unsent = unsent && is_unsent();
    wait_receiving(transport::kReadable | (unsent ? transport::kWritable : 0u),
                   own ? transport::Nanoseconds(kLeadWait) : transport::Nanoseconds(kRoomWait));
  }
}

void ConnectedSession::outlive_connections(std::unique_ptr<Reconnector> reconnector, std::chrono::milliseconds grace,
                                           std::chrono::milliseconds heartbeat) {
  reconnector_ = std::move(reconnector);
  resume_grace_ = grace;
  link_.outlive_connections();
  // A connection that this side gives up must not look to the server like the end of the program.
  if (heartbeat.count() > 0) heartbeat_.emplace(link_, link::GivingUp::resets, heartbeat);
  link_.while_waiting([this] {
    look_at_heartbeat();
    look_at_progress();
  });
  if (lanes_most_ != 0) lane_opener_.emplace(link_, *reconnector_, lanes_most_);
  watch_connection(*link_.transport());
  // The heartbeats are its work, also of a program that posts nothing.
  if (heartbeat_ && outgoing_.thread_is_wanted() && !thread_.start()) outgoing_.thread_is_unavailable();
}

void ConnectedSession::show_progress(std::unique_ptr<ProgressLine> line, TransferProgress::Now now) {
  progress_ = std::make_shared<TransferProgress>(traffic_, std::move(line), now);
}

void ConnectedSession::tell(const std::string& text) {
  if (progress_) progress_->clear();
  print_line(fmt::format("{}: {}", address_, text));
}

void ConnectedSession::watch_connection(transport::Transport& connection) const noexcept {
  transport::notice_lost_peer(connection.descriptor(),
                              heartbeat_ ? transport::LostPeer::by_heartbeat : transport::LostPeer::replaceable);
}

transport::Nanoseconds ConnectedSession::until_look(transport::Nanoseconds wait) const noexcept {
  if (progress_) wait = std::min(wait, progress_->left());
  return heartbeat_ ? std::min(wait, heartbeat_->left(Clock::now())) : wait;
}

unsigned ConnectedSession::wait_receiving(unsigned interest, transport::Nanoseconds timeout) noexcept {
  if (link_.state() == link::Link::State::detached) {
    reconnect();
    return 0;
  }
  unsigned ready = link_.wait(interest, until_look(timeout));
  if (!ready) look_at_heartbeat();
  look_at_progress();
  return ready;
}

void ConnectedSession::reconnect() {
  if (link_.damaged())
    return end(CUDA_ERROR_DEVICE_UNAVAILABLE, "the connection to the server can no longer be used: " + link_.loss(),
               true);
  // The server ends the connection behind our goodbye.
  if (closing_.load(std::memory_order_relaxed)) return;
  stats_.losses.fetch_add(1, std::memory_order_relaxed);
  std::string cause = link_.loss();
  Reconnection attempts(resume_grace_, [this](const std::string& line) { tell(line); });
  while (!ended() && !closing_.load(std::memory_order_relaxed)) {
    auto got = reconnector_->reconnect(link_.received());
    if (ended()) return;
    if (got) {
      watch_connection(*got->transport);
      if (!link_.attach(std::move(got->transport), got->server_received))
        return end(CUDA_ERROR_DEVICE_UNAVAILABLE,
                   "the server claims to have received what was not sent; the session is over", true);
      stats_.detached_ns.fetch_add(uint64_t(attempts.succeeded(Clock::now()).count()), std::memory_order_relaxed);
      return;
    }
    cause = std::move(got.error().cause);
    auto delay = got.error().again ? attempts.next_delay(Clock::now(), cause) : std::chrono::milliseconds(-1);
    if (delay.count() < 0)
      return end(got.error().result, fmt::format("the connection was lost, and the session does not go on: {}", cause),
                 true);
    link_.wait(0, delay);
  }
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
  receiving_ = true;
  lock.unlock();
  lead(nullptr, appended, done);
  lock.lock();
  pass_on_role(lock);
}

void ConnectedSession::await_sent(uint64_t bytes_end) {
  while (!link_.sent(bytes_end)) {
    link_.pump();
    if (link_.sent(bytes_end)) return;
    // Somebody has to get another connection, perhaps this thread.
    if (link_.state() == link::Link::State::detached) await_change([&] { return link_.sent(bytes_end); });
    else link_.wait(transport::kWritable, kWritableWait);
    look_at_progress();
  }
}

void ConnectedSession::await_room(uint64_t room_seen) {
  await_change([&] { return link_.room_changes() != room_seen; });
}

void ConnectedSession::end(CUresult result, std::string reason, bool tell) {
  // A server that answers the goodbye by closing is the end that close() wants.
  bool closing = closing_.load(std::memory_order_relaxed);
  if (closing) result = CUDA_ERROR_DEINITIALIZED;
  {
    std::lock_guard lock(receive_mutex_);
    if (ending_) return;
    ending_ = true;
  }
  if (progress_) progress_->stop();
  // Before another thread's call fails: the program may end at once when it does.
  if (tell && !closing) this->tell(reason);
  {
    std::lock_guard lock(receive_mutex_);
    ended_result_.store(result, std::memory_order_release);
  }
  link_.end();
  notify_everybody();
  if (tell && !closing) notices_.ended(result, reason);
}

void ConnectedSession::close() noexcept {
  if (forked_.load(std::memory_order_relaxed) || closing_.exchange(true)) return;
  if (!ended()) {
    outgoing_.append_control(wire::ControlOrdinal::goodbye);
    auto deadline = Clock::now() + kCloseEffort;
    while (!outgoing_.all_sent() && Clock::now() < deadline) {
      link_.pump();
      if (!outgoing_.all_sent()) link_.wait(transport::kWritable, deadline - Clock::now());
    }
  }
  if (lane_opener_) lane_opener_->stop();
  end(CUDA_ERROR_DEINITIALIZED, "closed", false);
  thread_.stop(kThreadEndMs);
}

void ConnectedSession::after_fork_in_child() noexcept {
  if (!forked_.exchange(true, std::memory_order_relaxed)) link_.abandon_after_fork();
}

}  // namespace gpuwire::client
