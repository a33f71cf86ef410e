#include "server/worker/frame_source.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "protocol/transport/looking.hpp"
#include "server/worker/limits.hpp"

namespace gpuwire::server {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

FrameSource::FrameSource(Channel& channel, int wake, uint32_t spin_us)
    : channel_(channel), wake_(wake), spin_us_(spin_us), decoder_(wire::Sender::client), wanted_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

// --- the executor ---------------------------------------------------------------------------------------------------------------------------

void FrameSource::reclaim() {
  visits_.store(visits_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  Role held = Role::nobody;
  if (role_.compare_exchange_strong(held, Role::executor, std::memory_order_acquire)) [[likely]] return;
  awaited_.store(true, std::memory_order_relaxed);
  do {
    uint64_t one = 1;
    [[maybe_unused]] ssize_t written = ::write(wanted_.get(), &one, sizeof one);
    role_.wait(Role::stand_in, std::memory_order_relaxed);
    held = Role::nobody;
  } while (!role_.compare_exchange_strong(held, Role::executor, std::memory_order_acquire));
  awaited_.store(false, std::memory_order_relaxed);
}

void FrameSource::keep() {
  if (shared_) reclaim();
  shared_ = false;
}

FrameSource::Filled FrameSource::fill(int deadline_ms) {
  std::span<std::byte> room = decoder_.space();
  room = room.first(std::min(room.size(), kReadBytes));
  if (!kept_.empty()) [[unlikely]] {
    size_t taken = kept_.take(room);
    decoder_.filled(taken);
    buffered_ += taken;
    return Filled::some;
  }
  Clock::time_point started{};
  for (;;) {
    ssize_t got = channel_.receive(room.data(), room.size());
    if (got > 0) {
      decoder_.filled(size_t(got));
      buffered_ += uint64_t(got);
      received_ += uint64_t(got);
      return Filled::some;
    }
    if (got == 0) return Filled::ended;
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return Filled::ended;
    Clock::time_point now = Clock::now();
    if (started == Clock::time_point{}) started = now;
    std::chrono::microseconds patience(spin_us_);
    if (longer_us_) patience = std::max(patience, std::chrono::microseconds(longer_us_->load(std::memory_order_relaxed)));
    if (now - started < patience) {
      relax(now - started);
      continue;
    }
    int wait_ms = -1;
    if (deadline_ms >= 0) {
      auto spent_ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - started).count();
      if (spent_ms >= deadline_ms) return Filled::late;
      wait_ms = int(deadline_ms - spent_ms);
    }
    if (observer_) observer_(true);
    bool readable = wait_readable(wait_ms);
    if (observer_) observer_(false);
    if (!readable) return Filled::ended;
  }
}

bool FrameSource::wait_readable(int timeout_ms) {
  pollfd ready[2] = {{channel_.descriptor(), POLLIN, 0}, {wake_, POLLIN, 0}};
  ::poll(ready, 2, channel_.pending() ? 0 : timeout_ms);
  return ready[1].revents == 0;
}

FrameSource::Next FrameSource::next(int deadline_ms) {
  Use use(*this);
  Next next = next_frame(deadline_ms);
  seen_ahead_ = next == Next::frame && header().sequence <= seen_;
  return next;
}

FrameSource::Next FrameSource::next_frame(int deadline_ms) {
  if (decoder_.bulk_left() != 0 && !discard_bulk()) return Next::ended;
  for (;;) {
    switch (decoder_.next()) {
      case wire::FrameDecoder::Next::frame:
        buffered_ -= sizeof(wire::FrameHeader) + uint64_t(header().message_words) * sizeof(capnp::word);
        return Next::frame;
      case wire::FrameDecoder::Next::fault: return Next::fault;
      case wire::FrameDecoder::Next::need_more: break;
    }
    switch (fill(deadline_ms)) {
      case Filled::some: break;
      case Filled::ended: return Next::ended;
      case Filled::late: return Next::late;
    }
  }
}

bool FrameSource::input_pending() {
  Use use(*this);
  uint64_t here = buffered_ + kept_.size();
  if (here > decoder_.bulk_left()) return true;
  if (here != 0) return false;  // still within this frame's bulk
  return channel_.input();
}

bool FrameSource::read(std::span<std::byte> out) {
  Use use(*this);
  return read_bulk(out);
}

bool FrameSource::read_bulk(std::span<std::byte> out) {
  if (out.size() > decoder_.bulk_left()) return false;
  std::span<const std::byte> here = decoder_.buffered_bulk();
  here = here.first(std::min(out.size(), here.size()));
  if (!here.empty()) std::memcpy(out.data(), here.data(), here.size());
  decoder_.take_bulk(here.size());
  buffered_ -= here.size();
  out = out.subspan(here.size());
  if (!kept_.empty()) [[unlikely]] {
    size_t taken = kept_.take(out);
    decoder_.bulk_read_elsewhere(taken);
    out = out.subspan(taken);
  }
  while (!out.empty()) {
    ssize_t got = channel_.receive_bulk(out.data(), out.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) {
      if (wait_readable(-1)) continue;
      got = 0;  // woken
    }
    if (got <= 0) {
      broken_ = true;
      return false;
    }
    decoder_.bulk_read_elsewhere(size_t(got));
    received_ += uint64_t(got);
    out = out.subspan(size_t(got));
  }
  return true;
}

bool FrameSource::discard_bulk() {
  std::byte scratch[16 << 10];
  while (uint64_t left = decoder_.bulk_left()) {
    if (!read_bulk({scratch, size_t(std::min<uint64_t>(left, sizeof scratch))})) return false;
  }
  return true;
}

// --- the second thread ----------------------------------------------------------------------------------------------------------------------

bool FrameSource::take_over() {
  Role held = Role::nobody;
  return !awaited_.load(std::memory_order_relaxed) && role_.compare_exchange_strong(held, Role::stand_in, std::memory_order_acquire);
}

void FrameSource::give_back() {
  role_.store(Role::nobody, std::memory_order_release);
  role_.notify_one();
}

FrameSource::Ahead FrameSource::read_ahead(std::span<const std::byte>& bytes) {
  for (;;) {
    pollfd ready[3] = {{channel_.descriptor(), POLLIN, 0}, {wake_, POLLIN, 0}, {wanted_.get(), POLLIN, 0}};
    if (::poll(ready, 3, channel_.pending() ? 0 : -1) < 0) continue;
    if (ready[2].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] ssize_t got = ::read(wanted_.get(), &count, sizeof count);
      return Ahead::wanted;
    }
    if (ready[1].revents != 0) return Ahead::ended;
    std::span<std::byte> room = kept_.space();
    ssize_t got = channel_.receive(room.data(), room.size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got <= 0) return Ahead::ended;  // which the executor finds, too
    kept_.added(size_t(got));
    bytes = room.first(size_t(got));
    return Ahead::some;
  }
}

}  // namespace gpuwire::server
