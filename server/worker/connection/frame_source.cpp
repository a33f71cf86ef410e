#include "server/worker/connection/frame_source.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "protocol/threads/polling.hpp"
#include "protocol/wire/ordinals.hpp"
#include "server/worker/connection/limits.hpp"

namespace gpuwire::server {
namespace {

using transport::IoStatus;
using transport::kReadable;
using transport::kWoken;

// The length of one wait without a deadline; such waits are repeated.
constexpr transport::Nanoseconds kLongWait = std::chrono::hours(1);
constexpr std::chrono::nanoseconds kCopyNsPerByte{1};

}  // namespace

// --- the executor --------------------------------------------------------------------------------------------------

void FrameSource::reclaim() {
  visits_.store(visits_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  Role held = Role::nobody;
  if (role_.compare_exchange_strong(held, Role::executor, std::memory_order_acquire)) [[likely]]
    return;
  awaited_.store(true, std::memory_order_relaxed);
  do {
    link_.wake();
    role_.wait(Role::out_of_order_reader, std::memory_order_relaxed);
    held = Role::nobody;
  } while (!role_.compare_exchange_strong(held, Role::executor, std::memory_order_acquire));
  awaited_.store(false, std::memory_order_relaxed);
}

void FrameSource::keep() {
  if (!kept_role_) reclaim();
  kept_role_ = true;
}

FrameSource::Filled FrameSource::fill(const std::optional<Clock::time_point>& deadline) {
  std::span<std::byte> room = decoder_.space();
  room = room.first(std::min(room.size(), kReadBytes));
  if (!kept_.empty()) [[unlikely]] {
    size_t taken = kept_.take(room);
    decoder_.filled(taken);
    buffered_ += taken;
    return Filled::some;
  }
  Clock::time_point started{};
  // Calls the observer once for a whole sleep, because heartbeats do not end it.
  struct Asleep {
    FrameSource& source;
    bool told = false;
    void begin() {
      if (!std::exchange(told, true) && source.observer_) source.observer_(true);
    }
    ~Asleep() {
      if (told && source.observer_) source.observer_(false);
    }
  } asleep{*this};
  for (;;) {
    transport::IoResult got = link_.try_receive(room);
    if (got.status == IoStatus::ok) {
      if (asleep.told && take_heartbeats(room.first(got.bytes))) continue;
      decoder_.filled(got.bytes);
      buffered_ += got.bytes;
      received_ += got.bytes;
      meter_.received(got.bytes);
      if (started != Clock::time_point{}) waited_ += Clock::now() - started;
      return Filled::some;
    }
    if (got.status != IoStatus::would_block) return Filled::ended;
    const bool between_frames = buffered_ == 0 && decoder_.bulk_left() == 0;
    if (attention_ && between_frames && attention_->load(std::memory_order_relaxed)) return Filled::late;
    Clock::time_point now = Clock::now();
    if (started == Clock::time_point{}) started = now;
    std::chrono::microseconds spin(spin_us_);
    if (longer_us_) spin = std::max(spin, std::chrono::microseconds(longer_us_->load(std::memory_order_relaxed)));
    if (now - started < spin) {
      relax(now - started);
      continue;
    }
    transport::Nanoseconds wait = kLongWait;
    if (deadline) {
      if (now >= *deadline) return Filled::late;
      wait = *deadline - now;
    }
    asleep.begin();
    link_.wait(kReadable | kWoken, wait);
  }
}

// Returns whether the bytes are only whole heartbeats between two frames. The session then continues to sleep, and its
// account of time counts no wake-up.
bool FrameSource::take_heartbeats(std::span<const std::byte> bytes) {
  if (buffered_ != 0 || decoder_.bulk_left() != 0 || bytes.size() % sizeof(wire::FrameHeader) != 0) return false;
  constexpr wire::FrameHeader kHeartbeat{.kind = uint8_t(wire::FrameKind::control),
                                         .ordinal = uint32_t(wire::ControlOrdinal::heartbeat)};
  for (auto rest = bytes; !rest.empty(); rest = rest.subspan(sizeof kHeartbeat))
    if (!heartbeats_ || std::memcmp(rest.data(), &kHeartbeat, sizeof kHeartbeat) != 0) return false;
  received_ += bytes.size();
  frame_end_ += bytes.size();
  meter_.received(bytes.size());
  if (link_.consumed(frame_end_)) link_.pump();
  return true;
}

FrameSource::Next FrameSource::next(int deadline_ms) {
  Use use(*this);
  Next next = next_frame(deadline_ms);
  seen_ahead_ = next == Next::frame && header().sequence <= seen_;
  return next;
}

FrameSource::Next FrameSource::next_frame(int deadline_ms) {
  // The deadline is for the whole frame, so slow bytes do not extend it.
  std::optional<Clock::time_point> deadline;
  if (deadline_ms >= 0) deadline = Clock::now() + std::chrono::milliseconds(deadline_ms);
  if (decoder_.bulk_left() != 0 && !discard_bulk()) return Next::ended;
  for (;;) {
    switch (decoder_.next()) {
      case wire::FrameDecoder::Next::frame:
        buffered_ -= sizeof(wire::FrameHeader) + uint64_t(header().message_words) * sizeof(capnp::word);
        frame_end_ +=
            sizeof(wire::FrameHeader) + uint64_t(header().message_words) * sizeof(capnp::word) + header().bulk_bytes;
        return Next::frame;
      case wire::FrameDecoder::Next::fault: return Next::fault;
      case wire::FrameDecoder::Next::need_more: break;
    }
    switch (fill(deadline)) {
      case Filled::some:
        if (deadline && Clock::now() >= *deadline) return Next::late;
        break;
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
  return link_.input();
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
    const Clock::time_point started = Clock::now();
    transport::IoResult got = link_.receive_bulk(out);
    if (got.status == IoStatus::would_block) {
      link_.wait(kReadable | kWoken, kLongWait);
      waited_ += Clock::now() - started;
      continue;
    }
    // The read itself waits for missing bytes: any longer read takes longer than a copy of this many bytes.
    waited_ += std::max<Clock::duration>(Clock::now() - started - kCopyNsPerByte * got.bytes, {});
    if (got.status != IoStatus::ok) {
      broken_ = true;
      return false;
    }
    decoder_.bulk_read_elsewhere(got.bytes);
    received_ += got.bytes;
    meter_.received(got.bytes);
    out = out.subspan(got.bytes);
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

// --- the second thread ---------------------------------------------------------------------------------------------

bool FrameSource::take_over() {
  Role held = Role::nobody;
  return !awaited_.load(std::memory_order_relaxed) &&
         role_.compare_exchange_strong(held, Role::out_of_order_reader, std::memory_order_acquire);
}

void FrameSource::give_back() {
  role_.store(Role::nobody, std::memory_order_release);
  role_.notify_one();
}

FrameSource::Ahead FrameSource::read_ahead(std::span<const std::byte>& bytes, bool wait) {
  for (;;) {
    if (awaited_.load(std::memory_order_relaxed)) return Ahead::wanted;
    std::span<std::byte> room = kept_.space();
    if (room.empty()) return Ahead::no_memory;
    transport::IoResult got = link_.try_receive(room);
    if (got.status == IoStatus::ok) {
      kept_.added(got.bytes);
      meter_.received(got.bytes);
      bytes = room.first(got.bytes);
      return Ahead::some;
    }
    if (got.status != IoStatus::would_block) return Ahead::ended;  // the executor will find this, too
    if (!wait) return Ahead::none_yet;
    link_.wait(kReadable | kWoken, kLongWait);
  }
}

}  // namespace gpuwire::server
