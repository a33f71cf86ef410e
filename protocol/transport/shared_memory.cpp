#include "protocol/transport/shared_memory.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>

#include "protocol/transport/descriptor_passing.hpp"
#include "protocol/transport/own_descriptor.hpp"
#include "protocol/threads/condition.hpp"
#include "protocol/threads/cores.hpp"
#include "protocol/threads/held_mutex.hpp"
#include "protocol/threads/polling.hpp"
#include "protocol/transport/shared_ring.hpp"

namespace gpuwire::transport {

using namespace shared_memory;

namespace {

using Clock = std::chrono::steady_clock;

// Bytes are copied and announced in pieces of this size, so that the other end copies one piece out while this end
// copies the next one in.
constexpr size_t kStepBytes = 64u << 10;
constexpr unsigned kPollingCoresMin = 3;
// The length of one sleep in receive_bulk(), which is repeated as long as the connection lives.
constexpr Nanoseconds kBulkSleep = std::chrono::seconds(10);

// The time to poll for bytes that arrive within the time of a copy. A caller that waits for the other end's work polls
// by itself, for as long as it chooses.
Nanoseconds poll_time() noexcept {
  static const Nanoseconds time = [] {
    return usable_cores() >= kPollingCoresMin ? Nanoseconds(kPollAlone) : Nanoseconds(0);
  }();
  return time;
}

RingIndices& indices_of(const SharedMemoryFile& file, bool to_client) {
  return *std::launder(
      reinterpret_cast<RingIndices*>(file.memory() + kIndicesOffset + (to_client ? sizeof(RingIndices) : 0)));
}
std::byte* data_of(const SharedMemoryFile& file, bool to_client) {
  return file.memory() + kDataOffset + (to_client ? file.ring_bytes() : 0);
}

// Sends and receives the records on the socket. Thread: any.
class SideChannel {
 public:
  explicit SideChannel(const OwnDescriptor& socket) : own_(socket), socket_(socket.get()) {}
  ~SideChannel() {
    if (unnamed_ >= 0) close(unnamed_);
    for (const Waiting& waiting : waiting_) close(waiting.descriptor);
  }

  enum class Received : uint8_t { nothing_more, ended, fault };

  // Reads all available records. Sets `bells` if there was a bell.
  Received drain(bool& bells) noexcept {
    std::lock_guard lock(mutex_);
    if (!own_.is_ours()) return Received::ended;
    for (;;) {
      std::byte bytes[256];
      iovec piece{bytes, sizeof bytes};
      PassedDescriptors passed;
      ReceivedBytes got = receive_with_descriptors(socket_, {&piece, 1}, passed);
      if (got.bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::nothing_more;
      if (got.bytes <= 0) return Received::ended;
      if (got.descriptors_lost || !take_descriptor(passed)) return Received::fault;
      for (ssize_t i = 0; i < got.bytes; ++i)
        if (!take_byte(bytes[i], bells)) return Received::fault;
    }
  }

  int take(uint64_t number) noexcept {
    std::lock_guard lock(mutex_);
    auto found = std::find_if(waiting_.begin(), waiting_.end(),
                              [&](const Waiting& waiting) { return waiting.number == number; });
    if (found == waiting_.end()) return -1;
    int descriptor = found->descriptor;
    waiting_.erase(found);
    return descriptor;
  }

  // Returns false if the socket accepts no more, or is gone.
  bool give(uint64_t number, int descriptor) noexcept {
    std::byte record[kDescriptorRecordBytes] = {std::byte(SocketRecord::descriptor)};
    std::memcpy(record + 1, &number, sizeof number);
    iovec piece{record, sizeof record};
    // The kernel sends so few bytes completely or not at all.
    return own_.is_ours() && send_with_descriptors(socket_, {&piece, 1}, {&descriptor, 1}) == ssize_t(sizeof record);
  }

  // Releases the lock of a calling thread that has left by siglongjmp(). Returns true if it was reading records.
  bool take_back_from_left_call() noexcept { return take_from_this_thread(mutex_); }

  bool is_inside() noexcept { return !is_seen_free(mutex_); }

  // Returns false if the socket is gone. If the socket is full, it contains bells that the other end has not received
  // yet.
  bool ring() noexcept {
    auto bell = std::byte(SocketRecord::bell);
    if (!own_.is_ours_lately()) return false;
    return send(socket_, &bell, sizeof bell, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 || errno == EAGAIN ||
           errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS;
  }

 private:
  struct Waiting {
    uint64_t number;
    int descriptor;
  };

  // Takes the one descriptor that arrives before its number. Returns false if there are more.
  bool take_descriptor(PassedDescriptors& passed) noexcept {
    if (passed.count() == 0) return true;
    if (passed.count() > 1 || unnamed_ >= 0) return false;
    unnamed_ = passed.take(0);
    return true;
  }

  bool take_byte(std::byte byte, bool& bells) noexcept {
    if (number_bytes_left_) {
      number_[sizeof number_ - number_bytes_left_] = byte;
      if (--number_bytes_left_) return true;
      if (unnamed_ < 0) return false;
      uint64_t number;
      std::memcpy(&number, number_, sizeof number);
      if (waiting_.size() == kDescriptorsWaitingMax) {
        close(waiting_.front().descriptor);
        waiting_.pop_front();
      }
      waiting_.push_back({number, std::exchange(unnamed_, -1)});
      return true;
    }
    if (byte == std::byte(SocketRecord::descriptor)) number_bytes_left_ = sizeof number_;
    else if (byte == std::byte(SocketRecord::bell)) bells = true;
    else return false;
    return true;
  }

  const OwnDescriptor& own_;
  const int socket_;
  std::mutex mutex_;  // a leaf; guards the members below and the order of reads
  std::deque<Waiting> waiting_;
  int unnamed_ = -1;  // a descriptor whose number has not arrived yet
  std::byte number_[sizeof(uint64_t)] = {};
  size_t number_bytes_left_ = 0;
};

class SharedMemoryTransport final : public Transport {
 public:
  SharedMemoryTransport(SharedMemoryFile file, OwnDescriptor socket, Waker waker, SharedMemorySide side,
                        std::string peer)
      : file_(std::move(file)),
        own_(std::move(socket)),
        socket_(own_.get()),
        waker_(std::move(waker)),
        channel_(own_),
        peer_(std::move(peer)),
        out_(indices_of(file_, side == SharedMemorySide::server), data_of(file_, side == SharedMemorySide::server),
             file_.ring_bytes()),
        in_(indices_of(file_, side == SharedMemorySide::client), data_of(file_, side == SharedMemorySide::client),
            file_.ring_bytes()) {
    file_.close_descriptor();
  }

  IoResult try_send(std::span<const iovec> pieces) noexcept override {
    send_began_at_ = out_.position();
    if (sending_over_.load(std::memory_order_relaxed) || ended_.load(std::memory_order_acquire))
      return {IoStatus::failed, 0, EPIPE};
    size_t room = out_.room();
    if (out_.damage() != Damage::none) return damaged(out_.damage());
    size_t sent = 0;
    for (const iovec& piece : pieces.first(std::min(pieces.size(), kPiecesMax))) {
      std::span<const std::byte> bytes(static_cast<const std::byte*>(piece.iov_base), piece.iov_len);
      while (!bytes.empty()) {
        if (room == 0) room = out_.room();
        if (room == 0) break;
        size_t step = std::min({bytes.size(), room, kStepBytes});
        out_.put(bytes.first(step));
        if (out_.must_notify_reader()) ring();
        bytes = bytes.subspan(step);
        room -= step;
        sent += step;
      }
      if (!bytes.empty()) break;
    }
    return sent ? IoResult{IoStatus::ok, sent} : IoResult{IoStatus::would_block};
  }

  IoResult try_receive(std::span<std::byte> out) noexcept override { return receive(out, false); }
  IoResult receive_bulk(std::span<std::byte> out) noexcept override { return receive(out, true); }

  bool input() noexcept override { return in_.readable() || ended_.load(std::memory_order_acquire); }

  unsigned wait(unsigned interest, Nanoseconds timeout) noexcept override {
    if (timeout <= Nanoseconds(0)) return wait_nothing(interest);
    auto begun = Clock::now();
    auto deadline = timeout > kForever ? begun + kForever : begun + timeout;
    if (interest & kWritable) poll(interest, begun, std::min(deadline, begun + poll_time()));
    std::unique_lock lock(mutex_);
    for (;;) {
      if (unsigned ready = ready_locked(interest)) return ready;
      if (Clock::now() >= deadline) return 0;
      if (interest & (kReadable | kWritable)) announce_sleep(interest);
      if (ready_now(interest)) continue;
      if (watched_ || !(interest & (kReadable | kWritable))) {
        changed_.wait_until(lock, deadline);
        continue;
      }
      watched_ = true;
      watcher_ = pthread_self();
      watch_for_wake_ = interest & kWoken;
      lock.unlock();
      bool interrupted = !watch(deadline);
      lock.lock();
      watched_ = false;
      // Another thread watches the socket now, and all threads check the ring themselves.
      changed_.notify_all();
      if (interrupted) return ready_locked(interest);
    }
  }

  void wake() noexcept override {
    std::lock_guard lock(mutex_);
    woken_ = true;
    if (watched_ && watch_for_wake_) interrupt_watch();
    changed_.notify_all();
  }

  void finish() noexcept override {
    sending_over_.store(true, std::memory_order_relaxed);
    out_.finish();
    if (out_.must_notify_reader()) ring();
  }

  void shutdown() noexcept override {
    finish();
    if (own_.is_ours()) ::shutdown(socket_, SHUT_RDWR);
    end();
  }

  int descriptor() const noexcept override { return socket_; }

  void abandon_after_fork() noexcept override {
    // The parent's connection stays open: the socket is shared, so it must not be shut down. The child has no mapping
    // (MADV_DONTFORK).
    own_.close();
    waker_.close();
  }

  bool is_inside() noexcept override { return !is_seen_free(mutex_) || channel_.is_inside(); }

  bool take_back_from_left_call(bool sending, bool receiving) noexcept override {
    take_from_this_thread(mutex_);
    bool well = !channel_.take_back_from_left_call();
    {
      std::lock_guard lock(mutex_);
      if (watched_ && pthread_equal(watcher_, pthread_self())) watched_ = false;
      changed_.notify_all();
    }
    if (sending) well = well && out_.position() == send_began_at_;
    if (receiving) well = well && in_.position() == receive_began_at_;
    return well;
  }

  std::string failure() const override {
    const char* text = failure_.load(std::memory_order_acquire);
    return text ? text : "";
  }
  bool damaged() const noexcept override { return failure_.load(std::memory_order_acquire) != nullptr; }
  std::string peer() const override { return peer_; }
  const char* road() const noexcept override { return "shm"; }

  bool give_descriptor(uint64_t number, int descriptor) noexcept override { return channel_.give(number, descriptor); }
  int take_descriptor(uint64_t number) noexcept override {
    hear_socket(false);
    return channel_.take(number);
  }

 private:
  // Limits the timeout so that the sum with the clock does not overflow.
  static constexpr Nanoseconds kForever = std::chrono::hours(24 * 365);

  IoResult receive(std::span<std::byte> out, bool wait_for_all) noexcept {
    receive_began_at_ = in_.position();
    size_t got = 0;
    while (got < out.size()) {
      // Read before the ring, so that bytes sent before the end are visible then.
      bool over = ended_.load(std::memory_order_acquire) || in_.finished();
      size_t there = in_.available();
      if (in_.damage() != Damage::none) return got ? IoResult{IoStatus::ok, got} : damaged(in_.damage());
      if (there) {
        size_t step = std::min({there, out.size() - got, kStepBytes});
        in_.take(out.subspan(got, step));
        got += step;
        if (in_.must_notify_writer()) ring();
        continue;
      }
      if (got && !wait_for_all) break;
      if (over) return got ? IoResult{IoStatus::ok, got} : IoResult{IoStatus::closed};
      if (!got) return {IoStatus::would_block};
      await_more();
    }
    return {IoStatus::ok, got};
  }

  // In the middle of bulk, the other end is copying the next bytes in.
  void await_more() noexcept {
    auto begun = Clock::now();
    if (!poll(kReadable, begun, begun + poll_time())) wait(kReadable, kBulkSleep);
  }

  // Polls until something is ready, without sleeping.
  bool poll(unsigned interest, Clock::time_point begun, Clock::time_point until) noexcept {
    for (auto now = begun; now < until; now = Clock::now()) {
      if (ready_now(interest)) return true;
      relax(now - begun);
    }
    return false;
  }

  unsigned ready_now(unsigned interest) const noexcept {
    unsigned ready = 0;
    if ((interest & (kReadable | kWritable)) && ended_.load(std::memory_order_acquire))
      return interest & (kReadable | kWritable);
    if ((interest & kReadable) && in_.readable()) ready |= kReadable;
    if ((interest & kWritable) && (out_.writable() || sending_over_.load(std::memory_order_relaxed)))
      ready |= kWritable;
    return ready;
  }

  unsigned ready_locked(unsigned interest) noexcept {
    unsigned ready = ready_now(interest);
    if ((interest & kWoken) && std::exchange(woken_, false)) ready |= kWoken;
    return ready;
  }

  // Checks everything once, including whether the other process is alive.
  unsigned wait_nothing(unsigned interest) noexcept {
    if ((interest & (kReadable | kWritable)) && !ready_now(interest)) {
      pollfd polled{socket_, POLLRDHUP, 0};
      if (::poll(&polled, 1, 0) > 0) end();
    }
    std::lock_guard lock(mutex_);
    return ready_locked(interest);
  }

  void announce_sleep(unsigned interest) noexcept {
    if (interest & kReadable) in_.about_to_sleep();
    if (interest & kWritable) out_.about_to_sleep();
  }

  // Sleeps until the socket is readable, a wake-up or the deadline. Returns false if a signal interrupted it.
  bool watch(Clock::time_point deadline) noexcept {
    pollfd polled[2] = {{socket_, POLLIN | POLLRDHUP, 0}, {waker_.descriptor(), POLLIN, 0}};
    auto left = std::max<Nanoseconds>(deadline - Clock::now(), Nanoseconds(0)).count();
    timespec limit{time_t(left / 1'000'000'000), long(left % 1'000'000'000)};
    int found = ppoll(polled, 2, &limit, nullptr);
    if (found < 0) return errno != EINTR;
    if (polled[1].revents) waker_.drain();
    // A socket that has ended first delivers the bytes that were sent before its end.
    if (polled[0].revents) hear_socket(true);
    if (polled[0].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) end();
    return true;
  }

  void hear_socket(bool watching) noexcept {
    bool bells = false;
    switch (channel_.drain(bells)) {
      case SideChannel::Received::nothing_more: break;
      case SideChannel::Received::ended: return end();
      case SideChannel::Received::fault:
        fail("the other side has sent something that is neither a bell nor a descriptor");
        return end();
    }
    // If this thread is the watching one, it wakes the others when it returns. Otherwise the bell may have been meant
    // for the watching thread, which no longer receives it, so this thread interrupts its watch.
    if (!bells || watching) return;
    std::lock_guard lock(mutex_);
    if (watched_) interrupt_watch();
    changed_.notify_all();
  }

  void ring() noexcept {
    if (!channel_.ring()) end();
  }

  void interrupt_watch() noexcept { waker_.wake(); }

  void end() noexcept {
    ended_.store(true, std::memory_order_release);
    std::lock_guard lock(mutex_);
    if (watched_) interrupt_watch();
    changed_.notify_all();
  }

  void fail(const char* text) noexcept {
    const char* none = nullptr;
    failure_.compare_exchange_strong(none, text, std::memory_order_release, std::memory_order_relaxed);
  }
  IoResult damaged(Damage damage) noexcept {
    fail(text_of(damage));
    return {IoStatus::failed, 0, EBADMSG};
  }

  SharedMemoryFile file_;
  OwnDescriptor own_;
  const int socket_;  // the number of own_
  Waker waker_;       // ends a watch()
  SideChannel channel_;
  const std::string peer_;

  alignas(kApart) RingWriter out_;
  // Used by the sending thread: the position at which the last try_send() began.
  uint64_t send_began_at_ = 0;
  alignas(kApart) RingReader in_;
  uint64_t receive_began_at_ = 0;  // used by the receiving thread

  // True if the other process has gone, or this side has shut the connection down. Stored with release after the
  // evidence, and loaded with acquire before the ring is read for the last time.
  alignas(kApart) std::atomic<bool> ended_{false};
  // finish() has been called. Relaxed: the sending thread reads it eventually, and the other end is notified
  // separately.
  std::atomic<bool> sending_over_{false};
  // Null, then one text forever. Release and acquire: a thread reads it after it has seen the end that the text
  // explains.
  std::atomic<const char*> failure_{nullptr};

  // A leaf; guards the members below. Not held while a thread sleeps in the kernel.
  std::mutex mutex_;
  Condition changed_;
  bool woken_ = false;
  bool watched_ = false;         // a thread sleeps at the socket for all
  pthread_t watcher_{};          // the thread that sleeps at the socket
  bool watch_for_wake_ = false;  // that thread also waits for wake()
};

}  // namespace

std::unique_ptr<Transport> adopt_shared_memory(SharedMemoryFile file, int socket, SharedMemorySide side,
                                               std::string peer) {
  Waker waker = Waker::make();
  if (!waker.valid()) return nullptr;
  fcntl(socket, F_SETFD, FD_CLOEXEC);
  return std::make_unique<SharedMemoryTransport>(std::move(file), OwnDescriptor(socket), std::move(waker), side,
                                                 std::move(peer));
}

tl::expected<std::pair<std::unique_ptr<Transport>, std::unique_ptr<Transport>>, std::string> shared_memory_pair(
    uint32_t ring_bytes) {
  auto server = SharedMemoryFile::create(ring_bytes);
  if (!server) return tl::unexpected(server.error());
  auto client = SharedMemoryFile::open(fcntl(server->descriptor(), F_DUPFD_CLOEXEC, 0));
  if (!client) return tl::unexpected(client.error());
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return tl::unexpected(std::system_category().message(errno));
  std::pair pair{adopt_shared_memory(std::move(*client), ends[0], SharedMemorySide::client, "shared memory pair"),
                 adopt_shared_memory(std::move(*server), ends[1], SharedMemorySide::server, "shared memory pair")};
  if (pair.first && pair.second) return pair;
  if (!pair.first) close(ends[0]);
  if (!pair.second) close(ends[1]);
  return tl::unexpected(std::string("too many open files"));
}

}  // namespace gpuwire::transport
