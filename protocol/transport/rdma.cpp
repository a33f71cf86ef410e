#include "protocol/transport/rdma.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "protocol/threads/condition.hpp"
#include "protocol/threads/cores.hpp"
#include "protocol/threads/held_mutex.hpp"
#include "protocol/threads/polling.hpp"
#include "protocol/transport/rdma_plugin.hpp"
#include "protocol/transport/rdma_window.hpp"

namespace gpuwire::transport {

using namespace rdma;

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

static_assert(sizeof(Header) <= kGpuwireRdmaHeaderBytesMax);
constexpr size_t kMemoryBytes = 2 * kWindowBytes;  // the receive window, then the send window
// The longest wait of a closing end until the peer has received everything. This takes a round trip, unless the peer is
// stopped or has gone.
constexpr auto kEndSeenMax = 500ms;
// While other threads poll, this end's thread polls at this interval.
constexpr auto kThreadPause = 1ms;
// If the fabric fails because the peer has died, the peer's system also closes the TCP connection beside it. On a busy
// machine the second event may follow the first after this time.
constexpr std::chrono::milliseconds kEndBesideMax = 3s;
constexpr unsigned kPollingCoresMin = 3;
constexpr unsigned kProgressRounds = 64;

Nanoseconds poll_time() noexcept {
  static const Nanoseconds time = [] {
    return usable_cores() >= kPollingCoresMin ? Nanoseconds(kPollAlone) : Nanoseconds(0);
  }();
  return time;
}

// Compares in constant time.
bool same(const Token& one, const Token& other) {
  unsigned differs = 0;
  for (size_t i = 0; i < one.size(); ++i) differs |= unsigned(one[i] ^ other[i]);
  return differs == 0;
}

// The windows of a connection, which a child after fork() does not inherit. The memory is never freed if the fabric may
// still use it.
class Memory {
 public:
  Memory() {
    void* at = mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return;
    madvise(at, kMemoryBytes, MADV_DONTFORK);
    at_ = static_cast<std::byte*>(at);
  }
  ~Memory() {
    if (at_) munmap(at_, kMemoryBytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* get() const { return at_; }
  void leave() { at_ = nullptr; }

 private:
  std::byte* at_ = nullptr;
};

// Messages outside the stream. The header of each stays in place while the fabric sends it.
enum Control : size_t { kGreeting, kTaken, kEnd, kEndSeen, kControls };
constexpr Kind kKinds[kControls] = {Kind::greeting, Kind::taken, Kind::end, Kind::end_seen};
// Tags of sent messages: the number of a message of the stream, or this bit and a Control.
constexpr uint64_t kControlTag = 1ull << 63;

class RdmaConnection final : public RdmaEnd, public Transport {
 public:
  explicit RdmaConnection(std::shared_ptr<RdmaFabric> fabric)
      : fabric_(std::move(fabric)), plugin_(fabric_->plugin()) {}
  ~RdmaConnection() override;
  tl::expected<void, std::string> begin();

  // --- RdmaEnd
  const std::string& address() const override { return address_; }
  const Token& token() const override { return token_; }
  tl::expected<void, std::string> greet(std::string_view address, const Token& token) override;
  void greet_back(std::string_view address, const Token& token) override;
  bool await_greeting(Nanoseconds timeout) override;
  uint64_t refused() const override { return refused_.load(std::memory_order_relaxed); }

  void carry_beside(std::unique_ptr<Transport> beside);

  // --- Transport
  IoResult try_send(std::span<const iovec> pieces) noexcept override;
  IoResult try_receive(std::span<std::byte> out) noexcept override;
  bool input() noexcept override;
  size_t unread() noexcept override;
  unsigned wait(unsigned interest, Nanoseconds timeout) noexcept override;
  void wake() noexcept override;
  void finish() noexcept override;
  void shutdown() noexcept override;
  void reset() noexcept override;
  void stop_receiving() noexcept override;
  bool peer_closed() noexcept override { return beside_->peer_closed(); }
  int descriptor() const noexcept override { return beside_->descriptor(); }
  void abandon_after_fork() noexcept override;
  std::string failure() const override;
  bool damaged() const noexcept override { return damaged_.load(std::memory_order_relaxed); }
  std::string binding() override { return beside_->binding(); }
  std::string peer() const override { return beside_->peer(); }
  const char* road() const noexcept override { return "rdma"; }
  bool is_inside() noexcept override { return !is_seen_free(mutex_) || beside_->is_inside(); }

 private:
  // The remaining life of the connection. The value only grows.
  enum class Life : uint8_t { whole, breaking, over };

  // --- with mutex_ held
  void progress();
  void take_in(const void* header, size_t header_bytes, const void* data, size_t bytes, void* arrival, int& taken);
  bool take_data(const Header& header, const void* data, void* arrival);
  void fetch_waiting();
  void broken(const char* why);
  void break_rules(const char* why);
  void send_control(Control what);
  void send_taken_if_due();
  void post(const Outgoing::Message& message);
  void connect_locked();
  bool usable() const { return greeting_sent_ && !broken_ && life_ == Life::whole; }
  bool input_over() const { return life_ == Life::over || receiving_over_; }
  unsigned ready(unsigned interest);
  void changed() {
    if (sleepers_ != 0) changed_.notify_all();
  }
  void notify_thread() noexcept;
  void end_locked() noexcept;

  // --- without mutex_
  void run() noexcept;
  void poll_beside() noexcept;
  bool poll(unsigned interest, Clock::time_point until) noexcept;

  static RdmaConnection& of(void* user) { return *static_cast<RdmaConnection*>(user); }
  static const GpuwireRdmaEvents kEvents;

  const std::shared_ptr<RdmaFabric> fabric_;
  const GpuwireRdmaPlugin& plugin_;
  GpuwireRdmaEnd* end_ = nullptr;
  int events_descriptor_ = -1;  // the fabric's descriptor
  int bell_ = -1;               // an eventfd that wakes the thread
  std::string address_;
  Token token_{};
  // The TCP connection. Set once, with beside_is_there_, before any caller uses the Transport.
  std::unique_ptr<Transport> beside_;
  Memory memory_;
  std::thread thread_;

  // Guards the end and all members below. A leaf, except for locks inside the fabric.
  mutable std::mutex mutex_;
  Condition changed_;
  unsigned sleepers_ = 0;
  Outgoing out_{nullptr};
  Incoming in_{nullptr};
  struct Waiting {
    void* arrival;
    std::byte* into;
    uint32_t bytes;
    uint64_t number;
  };
  std::vector<Waiting> waiting_;  // messages to be fetched; at most kMessagesMax
  Header controls_[kControls];
  bool control_busy_[kControls] = {}, control_due_[kControls] = {};
  std::string peer_address_;
  Token peer_token_{};
  bool connect_when_greeted_ = false, connected_ = false;
  bool greeting_sent_ = false, greeting_received_ = false;
  bool broken_ = false;
  std::string failure_;
  Life life_ = Life::whole;
  // How the TCP connection has ended. closed: this side has ended it.
  IoResult end_beside_{IoStatus::closed};
  bool sending_over_ = false, receiving_over_ = false;
  bool end_seen_ = false;       // the peer has reported that it has received everything
  bool end_seen_sent_ = false;  // this side has reported that it has received everything
  bool woken_ = false;
  uint64_t notified_bytes_ = 0, notified_messages_ = 0;
  uint64_t polls_ = 0;          // polls of threads other than this end's
  bool thread_pauses_ = false;  // this end's thread leaves polling to the others
  bool stopping_ = false;

  // Relaxed: statistics, and values that are read after an end that mutex_ has published.
  std::atomic<uint64_t> refused_{0};
  std::atomic<bool> damaged_{false};
};

const GpuwireRdmaEvents RdmaConnection::kEvents = {
    [](void* user, const void* header, size_t header_bytes, const void* data, size_t bytes, void* arrival) -> int {
      int taken = 0;
      of(user).take_in(header, header_bytes, data, bytes, arrival, taken);
      return taken;
    },
    [](void* user, uint64_t tag, int ok) {
      RdmaConnection& self = of(user);
      if (tag & kControlTag) self.control_busy_[tag & ~kControlTag] = false;
      else self.out_.released(tag);
      if (!ok) self.broken("a message could not be sent");
      self.changed();
    },
    [](void* user, uint64_t tag, int ok) {
      RdmaConnection& self = of(user);
      if (!ok) return self.broken("a message could not be fetched");
      if (!self.in_.come(tag)) return self.break_rules("messages overlap, or leave bytes out");
      self.changed();
    },
    [](void* user, const char* why) { of(user).broken(why); }};

// --- the beginning -------------------------------------------------------------------------------------------------

tl::expected<void, std::string> RdmaConnection::begin() {
  if (!memory_.get()) return tl::unexpected(std::string("out of memory"));
  if (::getrandom(token_.data(), token_.size(), 0) != ssize_t(token_.size()))
    return tl::unexpected(std::string("the system has no random bytes"));
  in_ = Incoming(memory_.get());
  out_ = Outgoing(memory_.get() + kWindowBytes);
  waiting_.reserve(kMessagesMax);
  bell_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (bell_ < 0) return tl::unexpected(std::string("too many open files"));
  char error[256] = "the end of the process";
  // UCX starts threads, and so does this end. The program's signals are blocked, because a new thread inherits the
  // mask.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  end_ = plugin_.make(fabric_->handle(), &kEvents, this, memory_.get(), kMemoryBytes, error, sizeof error);
  bool started = false;
  if (end_) {
    std::string address(kAddressBytesMax, '\0');
    size_t bytes = plugin_.address(end_, address.data(), address.size());
    events_descriptor_ = plugin_.descriptor(end_);
    if (bytes != 0 && bytes <= address.size() && events_descriptor_ >= 0) {
      address_ = address.substr(0, bytes);
      try {
        thread_ = std::thread([this] { run(); });
        started = true;
      } catch (const std::exception&) {
        std::strcpy(error, "no thread");
      }
    } else {
      std::strcpy(error, "no address, or nothing to sleep at");
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!started) return tl::unexpected(std::string(error));
  return {};
}

RdmaConnection::~RdmaConnection() {
  // Sent bytes still arrive, as after the close of a socket.
  if (beside_) shutdown();
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    life_ = Life::over;
    notify_thread();
  }
  if (thread_.joinable()) thread_.join();
  if (end_ && !plugin_.close(end_)) memory_.leave();
  if (bell_ >= 0) close(bell_);
}

tl::expected<void, std::string> RdmaConnection::greet(std::string_view address, const Token& token) {
  std::lock_guard lock(mutex_);
  peer_address_ = address;
  peer_token_ = token;
  connect_locked();
  if (broken_) return tl::unexpected(failure_);
  notify_thread();
  return {};
}

void RdmaConnection::greet_back(std::string_view address, const Token& token) {
  std::lock_guard lock(mutex_);
  peer_address_ = address;
  peer_token_ = token;
  connect_when_greeted_ = true;
  notify_thread();
}

void RdmaConnection::connect_locked() {
  connected_ = true;
  char error[256] = "the end of the process";
  if (!plugin_.connect(end_, peer_address_.data(), peer_address_.size(), error, sizeof error)) return broken(error);
  greeting_sent_ = true;
  send_control(kGreeting);
}

bool RdmaConnection::await_greeting(Nanoseconds timeout) {
  std::unique_lock lock(mutex_);
  ++sleepers_;
  changed_.wait_for(lock, timeout, [&] { return (greeting_received_ && greeting_sent_) || broken_; });
  --sleepers_;
  return greeting_received_ && greeting_sent_ && !broken_;
}

void RdmaConnection::carry_beside(std::unique_ptr<Transport> beside) {
  std::lock_guard lock(mutex_);
  beside_ = std::move(beside);
  notify_thread();
}

// --- the fabric ----------------------------------------------------------------------------------------------------

void RdmaConnection::progress() {
  if (broken_) return;
  for (unsigned round = 0; round < kProgressRounds && plugin_.progress(end_) != 0; ++round) {}
  if (connect_when_greeted_ && greeting_received_ && !connected_) connect_locked();
  fetch_waiting();
  for (size_t control = 0; control < kControls; ++control)
    if (control_due_[control]) send_control(Control(control));
  if (in_.whole() && !end_seen_sent_) {
    end_seen_sent_ = true;
    send_control(kEndSeen);
  }
}

void RdmaConnection::take_in(const void* header_bytes_at, size_t header_bytes, const void* data, size_t bytes,
                             void* arrival, int& taken) {
  Header header;
  if (header_bytes != sizeof header) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::memcpy(&header, header_bytes_at, sizeof header);
  // Other senders on the fabric do not have the token, so their messages are ignored.
  if (header.magic != Header::kMagic || !same(header.token, token_)) {
    refused_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (broken_) return;
  if (header.kind != Kind::greeting && !greeting_sent_) return break_rules("the peer speaks before it was greeted");
  if (!out_.taken(header.taken_bytes, header.taken_messages))
    return break_rules("the peer claims to have taken what was not sent");
  if (header.kind != Kind::data && bytes != 0) return break_rules("bytes where there should be none");
  switch (header.kind) {
    case Kind::greeting: greeting_received_ = true; break;
    case Kind::data:
      if (header.bytes != bytes) return break_rules("a message is not as long as it says");
      taken = take_data(header, data, arrival);
      break;
    case Kind::taken: break;
    case Kind::end:
      if (!in_.end_at(header.position, header.number)) return break_rules("an end that cannot be");
      break;
    case Kind::end_seen: end_seen_ = true; break;
    default: return break_rules("a message of an unknown kind");
  }
  changed();
}

bool RdmaConnection::take_data(const Header& header, const void* data, void* arrival) {
  std::byte* into = in_.expect(header);
  if (!into) {
    break_rules("a message for which there is no place");
    return false;
  }
  if (data) {
    std::memcpy(into, data, header.bytes);
    if (!in_.come(header.number)) break_rules("messages overlap, or leave bytes out");
  } else {
    waiting_.push_back({arrival, into, header.bytes, header.number});
  }
  return true;
}

void RdmaConnection::fetch_waiting() {
  for (const Waiting& message : waiting_) {
    switch (plugin_.fetch(end_, message.arrival, message.into, message.bytes, message.number)) {
      case kGpuwireRdmaDone: kEvents.fetched(this, message.number, 1); break;
      case kGpuwireRdmaUnderWay: break;
      default: broken("a message could not be fetched");
    }
  }
  waiting_.clear();
}

void RdmaConnection::post(const Outgoing::Message& message) {
  message.header->token = peer_token_;
  message.header->taken_bytes = notified_bytes_ = in_.taken();
  message.header->taken_messages = notified_messages_ = in_.taken_messages();
  switch (
      plugin_.send(end_, message.header, sizeof *message.header, message.data, message.header->bytes, message.number)) {
    case kGpuwireRdmaDone: out_.released(message.number); break;
    case kGpuwireRdmaUnderWay: break;
    default: broken("a message could not be sent");
  }
}

void RdmaConnection::send_control(Control what) {
  control_due_[what] = control_busy_[what];
  if (control_busy_[what] || broken_ || !greeting_sent_) return;
  Header& header = controls_[what];
  header = {.kind = kKinds[what], .token = peer_token_, .number = out_.messages(), .position = out_.sent()};
  header.taken_bytes = notified_bytes_ = in_.taken();
  header.taken_messages = notified_messages_ = in_.taken_messages();
  control_busy_[what] = true;
  switch (plugin_.send(end_, &header, sizeof header, nullptr, 0, kControlTag | what)) {
    case kGpuwireRdmaDone: control_busy_[what] = false; break;
    case kGpuwireRdmaUnderWay: break;
    default: broken("a message could not be sent");
  }
}

void RdmaConnection::send_taken_if_due() {
  if (in_.taken() - notified_bytes_ >= kNotifyBytes || in_.taken_messages() - notified_messages_ >= kNotifyMessages)
    send_control(kTaken);
}

// The first reason of the end stays: later failures of the fabric follow from that end.
void RdmaConnection::broken(const char* why) {
  if (broken_ || life_ == Life::over) return;
  broken_ = true;
  failure_ = std::string("RDMA: ") + why;
  // The thread first checks whether the peer has ended.
  if (life_ == Life::whole) life_ = beside_ ? Life::breaking : Life::over;
  notify_thread();
  changed_.notify_all();
}

void RdmaConnection::break_rules(const char* why) {
  if (broken_ || life_ == Life::over) return;
  damaged_.store(true, std::memory_order_relaxed);
  broken(why);
  life_ = Life::over;
}

// --- the thread ----------------------------------------------------------------------------------------------------

void RdmaConnection::notify_thread() noexcept {
  uint64_t one = 1;
  [[maybe_unused]] ssize_t written = write(bell_, &one, sizeof one);
}

// Drives the operations in flight while no other thread does, and checks whether the peer is alive.
void RdmaConnection::run() noexcept {
  pthread_setname_np(pthread_self(), "gpuwire-rdma");
  uint64_t looks = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    progress();
    bool others_poll = sleepers_ == 0 && polls_ != looks;
    looks = polls_;
    bool breaking = life_ == Life::breaking;
    bool over = broken_ || life_ == Life::over;
    if (!over && !others_poll && !plugin_.arm(end_)) {
      lock.unlock();
      relax(2 * kPollAlone);
      lock.lock();
      continue;
    }
    thread_pauses_ = others_poll;
    pollfd polled[3] = {{bell_, POLLIN, 0},
                        {beside_ && life_ != Life::over ? beside_->descriptor() : -1, POLLIN | POLLRDHUP, 0},
                        {over || others_poll ? -1 : events_descriptor_, POLLIN, 0}};
    lock.unlock();
    int found = ::poll(polled, 3, breaking ? int(kEndBesideMax.count()) : others_poll ? int(kThreadPause.count()) : -1);
    if (polled[0].revents) {
      uint64_t count;
      [[maybe_unused]] ssize_t taken = read(bell_, &count, sizeof count);
    }
    if (found > 0 && polled[1].revents) poll_beside();
    lock.lock();
    thread_pauses_ = false;
    if (breaking && found == 0) end_locked();
  }
}

// Reads the TCP connection, over which no bytes may travel any more.
void RdmaConnection::poll_beside() noexcept {
  std::byte byte;
  IoResult result = beside_->try_receive({&byte, 1});
  if (result.status == IoStatus::would_block) return;
  std::lock_guard lock(mutex_);
  if (result.status == IoStatus::ok) return break_rules("the peer goes on beside the fabric");
  // Bytes that the peer sent before its end have arrived by now, or never will.
  progress();
  if (life_ == Life::breaking) broken_ = false;  // the connection's end has caused the failure
  if (life_ != Life::over) end_beside_ = result;
  end_locked();
}

void RdmaConnection::end_locked() noexcept {
  life_ = Life::over;
  changed_.notify_all();
}

// --- the streams ---------------------------------------------------------------------------------------------------

IoResult RdmaConnection::try_send(std::span<const iovec> pieces) noexcept {
  std::lock_guard lock(mutex_);
  ++polls_;
  progress();
  if (sending_over_ || life_ == Life::over) return {IoStatus::failed, 0, broken_ ? EIO : EPIPE};
  if (!usable()) return {IoStatus::would_block};
  pieces = pieces.first(std::min(pieces.size(), kPiecesMax));
  size_t sent = 0, piece = 0, offset = 0;
  while (piece < pieces.size() && !broken_) {
    size_t room = out_.room(), filled = 0;
    while (piece < pieces.size() && filled < room) {
      size_t step = std::min(room - filled, pieces[piece].iov_len - offset);
      if (step)
        std::memcpy(out_.place() + filled, static_cast<const std::byte*>(pieces[piece].iov_base) + offset, step);
      filled += step;
      offset += step;
      if (offset != pieces[piece].iov_len) break;
      ++piece;
      offset = 0;
    }
    if (filled == 0) break;
    post(out_.add(filled));
    sent += filled;
  }
  return sent ? IoResult{IoStatus::ok, sent} : IoResult{IoStatus::would_block};
}

IoResult RdmaConnection::try_receive(std::span<std::byte> out) noexcept {
  std::lock_guard lock(mutex_);
  ++polls_;
  if (receiving_over_) return {IoStatus::closed};
  progress();
  if (size_t got = in_.take(out)) {
    send_taken_if_due();
    return {IoStatus::ok, got};
  }
  if (in_.finished()) return {IoStatus::closed};
  if (life_ != Life::over) return {IoStatus::would_block};
  return broken_ ? IoResult{IoStatus::failed, 0, damaged() ? EBADMSG : EIO} : end_beside_;
}

unsigned RdmaConnection::ready(unsigned interest) {
  unsigned ready = 0;
  if ((interest & kReadable) && (in_.available() || in_.finished() || input_over())) ready |= kReadable;
  if ((interest & kWritable) && (life_ == Life::over || sending_over_ || (usable() && out_.room()))) ready |= kWritable;
  if ((interest & kWoken) && std::exchange(woken_, false)) ready |= kWoken;
  return ready;
}

bool RdmaConnection::input() noexcept { return wait(kReadable, Nanoseconds(0)) != 0; }

size_t RdmaConnection::unread() noexcept {
  std::lock_guard lock(mutex_);
  return in_.available();
}

bool RdmaConnection::poll(unsigned interest, Clock::time_point until) noexcept {
  auto begun = Clock::now();
  for (auto now = begun; now < until; now = Clock::now()) {
    {
      std::lock_guard lock(mutex_);
      ++polls_;
      progress();
      if (ready(interest & ~unsigned(kWoken))) return true;
      if ((interest & kWoken) && woken_) return true;
    }
    relax(now - begun);
  }
  return false;
}

unsigned RdmaConnection::wait(unsigned interest, Nanoseconds timeout) noexcept {
  // Limits the timeout so that the sum with the clock does not overflow.
  constexpr Nanoseconds kForever = std::chrono::hours(24 * 365);
  auto begun = Clock::now();
  auto deadline = begun + std::clamp(timeout, Nanoseconds(0), kForever);
  if (interest & kWritable) poll(interest, std::min(deadline, begun + poll_time()));
  std::unique_lock lock(mutex_);
  ++polls_;
  progress();
  ++sleepers_;
  unsigned found = ready(interest);
  if (!found && timeout > Nanoseconds(0)) {
    // From here on this end's thread polls.
    if (thread_pauses_) notify_thread();
    changed_.wait_until(lock, deadline, [&] { return (found = ready(interest)) != 0; });
  }
  --sleepers_;
  return found;
}

void RdmaConnection::wake() noexcept {
  std::lock_guard lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

void RdmaConnection::finish() noexcept {
  std::lock_guard lock(mutex_);
  if (std::exchange(sending_over_, true)) return;
  if (usable()) {
    progress();
    send_control(kEnd);
  }
  changed_.notify_all();
  notify_thread();
}

void RdmaConnection::shutdown() noexcept {
  finish();
  {
    std::unique_lock lock(mutex_);
    ++sleepers_;
    if (thread_pauses_) notify_thread();
    // After the end of the TCP connection nothing more would arrive.
    if (connected_) changed_.wait_for(lock, kEndSeenMax, [&] { return end_seen_ || broken_ || life_ == Life::over; });
    --sleepers_;
    end_locked();
  }
  beside_->shutdown();
}

void RdmaConnection::reset() noexcept {
  {
    std::lock_guard lock(mutex_);
    sending_over_ = true;
    end_locked();
    notify_thread();
  }
  beside_->reset();
}

void RdmaConnection::stop_receiving() noexcept {
  std::lock_guard lock(mutex_);
  receiving_over_ = true;
  changed_.notify_all();
}

void RdmaConnection::abandon_after_fork() noexcept {
  // The fabric's objects belong to the parent and are not touched. The fabric's descriptors stay open in the child,
  // without a reader.
  close(bell_);
  if (beside_) beside_->abandon_after_fork();
}

std::string RdmaConnection::failure() const {
  std::lock_guard lock(mutex_);
  return broken_ ? failure_ : beside_ ? beside_->failure() : std::string();
}

}  // namespace

tl::expected<std::unique_ptr<RdmaEnd>, std::string> RdmaEnd::make(std::shared_ptr<RdmaFabric> fabric) {
  auto end = std::make_unique<RdmaConnection>(std::move(fabric));
  if (auto begun = end->begin(); !begun) return tl::unexpected(begun.error());
  return end;
}

std::unique_ptr<Transport> RdmaEnd::carry(std::unique_ptr<RdmaEnd> end, std::unique_ptr<Transport> beside) {
  std::unique_ptr<RdmaConnection> connection(static_cast<RdmaConnection*>(end.release()));
  connection->carry_beside(std::move(beside));
  return connection;
}

}  // namespace gpuwire::transport
