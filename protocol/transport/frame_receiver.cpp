#include "protocol/transport/frame_receiver.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "protocol/threads/polling.hpp"

namespace gpuwire::transport {

namespace {

// The length of one wait for more bulk, after which it is repeated. The connection's own limits (kPeerLostMs) decide
// when a peer is lost.
constexpr Nanoseconds kBulkWait = std::chrono::seconds(1);
constexpr size_t kSkipBytes = 64 * 1024;

}  // namespace

Received FrameReceiver::try_next() {
  if (decoder_.bulk_left() && !skip_bulk()) return decoder_.faulty() ? Received::fault : Received::ended;
  for (;;) {
    switch (decoder_.next()) {
      case wire::FrameDecoder::Next::frame: return Received::frame;
      case wire::FrameDecoder::Next::fault: return Received::fault;
      case wire::FrameDecoder::Next::need_more: break;
    }
    if (ended_) return Received::ended;
    IoResult result = source_.try_receive(decoder_.space());
    switch (result.status) {
      case IoStatus::ok:
        decoder_.filled(result.bytes);
        bytes_received_ += result.bytes;
        break;
      case IoStatus::would_block: return Received::nothing;
      default: end(result); return Received::ended;
    }
  }
}

Received FrameReceiver::next(Nanoseconds timeout) {
  Received received = try_next();
  if (received != Received::nothing || timeout.count() <= 0) return received;
  auto deadline = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return Received::nothing;
    source_.wait(kReadable, left);
    received = try_next();
    if (received != Received::nothing) return received;
  }
}

bool FrameReceiver::read_bulk(std::span<std::byte> out) {
  if (out.size() > decoder_.bulk_left() || decoder_.faulty()) return false;
  auto buffered = decoder_.buffered_bulk();
  size_t here = std::min(buffered.size(), out.size());
  if (here) {
    std::memcpy(out.data(), buffered.data(), here);
    decoder_.take_bulk(here);
  }
  while (here < out.size()) {
    size_t got = 0;
    if (!receive_some(out.subspan(here), got)) return false;
    decoder_.bulk_read_elsewhere(got);
    here += got;
  }
  return true;
}

bool FrameReceiver::skip_bulk() {
  std::byte scratch[kSkipBytes];
  while (uint64_t left = decoder_.bulk_left())
    if (!read_bulk({scratch, size_t(std::min<uint64_t>(left, sizeof scratch))})) return false;
  return true;
}

bool FrameReceiver::receive_some(std::span<std::byte> out, size_t& got) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point begun{};
  while (!ended_) {
    IoResult result = source_.receive_in_place(out);
    if (result.status == IoStatus::ok) {
      got = result.bytes;
      bytes_received_ += got;
      return true;
    }
    if (result.status != IoStatus::would_block) {
      end(result);
      break;
    }
    // The other bytes of a frame are about to arrive.
    if (poll_.count() != 0) {
      const auto now = Clock::now();
      if (begun == Clock::time_point{}) begun = now;
      if (now - begun < poll_) {
        relax();
        continue;
      }
    }
    source_.wait(kReadable, kBulkWait);
  }
  return false;
}

void FrameReceiver::end(const IoResult& result) {
  if (ended_) return;
  ended_ = true;
  reason_ = describe(result);
}

}  // namespace gpuwire::transport
