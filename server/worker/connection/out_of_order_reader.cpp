#include "server/worker/connection/out_of_order_reader.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include <fmt/format.h>
#include <sys/prctl.h>

#include "protocol/wire/limits.hpp"
#include "protocol/wire/message_reader.hpp"
#include "server/worker/connection/limits.hpp"
#include "wire/session_frames.hpp"

namespace gpuwire::server {

// The memory for a call that is executed out of turn.
static_assert(std::ranges::all_of(wire::kSessionCalls, [](const wire::SessionCallFacts& call) {
  return !call.out_of_turn || call.bulk_bytes_max <= kOutOfTurnBulkBytesMax;
}));
namespace {

// The bulk of a frame that this thread executes; all of it has arrived.
class WholeBulk final : public BulkReader {
 public:
  explicit WholeBulk(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t remaining() const override { return bytes_.size(); }
  bool read(std::span<std::byte> out) override {
    if (out.size() > bytes_.size()) return false;
    std::memcpy(out.data(), bytes_.data(), out.size());
    bytes_ = bytes_.subspan(out.size());
    return true;
  }

 private:
  std::span<const std::byte> bytes_;
};

thread_local bool t_stands_in = false;

}  // namespace

bool OutOfOrderReader::is_caller() { return t_stands_in; }

void OutOfOrderReader::start() {
  std::lock_guard lock(mutex_);
  if (!thread_.joinable() && !stopping_) thread_ = std::thread([this] { run(); });
}

void OutOfOrderReader::awake() {
  std::lock_guard lock(mutex_);
  if (asleep_) changed_.notify_one();
  asleep_ = false;
}

void OutOfOrderReader::keep_what_has_come() {
  std::lock_guard lock(mutex_);
  keeps_ = true;
  if (asleep_) changed_.notify_one();
  asleep_ = false;
}

void OutOfOrderReader::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  parts_.source.keep();
  if (thread_.joinable()) thread_.join();
}

void OutOfOrderReader::run() {
  t_stands_in = true;
  ::prctl(PR_SET_TIMERSLACK, 1000ul, 0, 0, 0);  // ns; the default of 50 us would be a part of the tick
  uint64_t visits = parts_.source.visits();
  unsigned quiet = 0;
  bool in_vain = false;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (quiet == kOutOfOrderReaderQuietTicks || blind_) {
      asleep_ = true;
      changed_.wait(lock, [&] { return stopping_ || !asleep_; });
      quiet = 0;
      visits = parts_.source.visits();
    }
    if (in_vain || !parts_.room_awaited())
      changed_.wait_for(lock, std::chrono::microseconds(kOutOfOrderReaderTickUs), [&] { return stopping_; });
    const bool keeps = std::exchange(keeps_, false);
    lock.unlock();
    if (keeps && !blind_) keep_without_waiting();
    bool room = parts_.room_awaited();
    bool awaited = parts_.awaited();
    quiet = awaited || room ? 0 : quiet + 1;
    bool kept = std::exchange(visits, parts_.source.visits()) == visits;
    in_vain = !blind_ && (room || (awaited && kept)) && !serve();
    lock.lock();
  }
}

bool OutOfOrderReader::serve() {
  FrameSource& source = parts_.source;
  if (!source.take_over()) return false;
  // The executor may lack a core while it executes a write that a later answer depends on, and the answer must not
  // overtake the write.
  const wire::FrameHeader& in_hand = source.header();
  if (in_hand.sequence > seen_ && !source.finished(in_hand) && parts_.out_of_turn(in_hand)) {
    keep_reading();
  } else {
    if (source.received() != received_) catch_up();
    scan();
    while (!blind_ && more_to_read()) {
      std::span<const std::byte> bytes;
      FrameSource::Ahead ahead = source.read_ahead(bytes);
      if (ahead == FrameSource::Ahead::wanted) break;
      if (ahead == FrameSource::Ahead::no_memory) {
        give_up("no host memory is left to keep what was sent while a host function is awaited");
        break;
      }
      blind_ = ahead == FrameSource::Ahead::ended;
      if (blind_) break;
      put_in(bytes);
      if (!within_bound()) break;
    }
    received_ = source.received();
  }
  source.give_back();
  return true;
}

// Reads for a thread that waits for room, without executing anything; the stored bytes are scanned when the executor
// has finished its present call.
void OutOfOrderReader::keep_reading() {
  while (!blind_ && parts_.room_awaited()) {
    std::span<const std::byte> bytes;
    FrameSource::Ahead ahead = parts_.source.read_ahead(bytes);
    if (ahead != FrameSource::Ahead::some) return;
    received_ = kNothingScanned;
    if (!within_bound()) return;
  }
}

// Read bytes are scanned when there is a reason: then all stored bytes are, from the executor's position on. An account
// without room is no error here: the executor reads the bytes later, and no other thread waits for them.
void OutOfOrderReader::keep_without_waiting() {
  FrameSource& source = parts_.source;
  if (!source.take_over()) return;
  std::span<const std::byte> bytes;
  while (source.kept_bytes() < parts_.kept_while_busy_max) {
    const FrameSource::Ahead ahead = source.read_ahead(bytes, false);
    blind_ = ahead == FrameSource::Ahead::ended;
    if (ahead != FrameSource::Ahead::some) break;
    received_ = kNothingScanned;
  }
  source.give_back();
}

bool OutOfOrderReader::within_bound() {
  if (parts_.source.kept_bytes() <= parts_.kept_bytes_max) return true;
  give_up(fmt::format("more than {} bytes were sent without an acknowledgement", parts_.kept_bytes_max));
  return false;
}

// Scans all stored bytes, from the executor's position on.
void OutOfOrderReader::catch_up() {
  decoder_ = wire::FrameDecoder(wire::Sender::client);
  in_frame_ = false;
  entry_ = nullptr;
  skip_ = parts_.source.bulk_in_hand();
  put_in(parts_.source.unused());
  parts_.source.for_each_kept([this](std::span<const std::byte> bytes) { put_in(bytes); });
}

void OutOfOrderReader::put_in(std::span<const std::byte> bytes) {
  size_t skipped = size_t(std::min<uint64_t>(skip_, bytes.size()));
  skip_ -= skipped;
  bytes = bytes.subspan(skipped);
  while (!bytes.empty() && !blind_) {
    std::span<std::byte> room = decoder_.space();
    size_t piece = std::min(room.size(), bytes.size());
    std::memcpy(room.data(), bytes.data(), piece);
    decoder_.filled(piece);
    bytes = bytes.subspan(piece);
    scan();
  }
}

void OutOfOrderReader::scan() {
  while (!blind_) {
    if (in_frame_ && !end_frame()) return;
    switch (decoder_.next()) {
      case wire::FrameDecoder::Next::need_more: return;
      case wire::FrameDecoder::Next::fault: return give_up(decoder_.fault());
      case wire::FrameDecoder::Next::frame: begin_frame(); break;
    }
  }
}

void OutOfOrderReader::begin_frame() {
  const wire::FrameHeader& header = decoder_.header();
  in_frame_ = true;
  entry_ = header.sequence > seen_ ? parts_.out_of_turn(header) : nullptr;
  if (!entry_) return;
  try {
    check_bulk(*entry_, header);
  } catch (const ProtocolFault& found) {
    return give_up(fmt::format("{} (frame {}): {}", entry_->name, header.sequence, found.reason));
  }
  // The message is copied, because the decoder's bytes are only valid until more arrive, and the bulk may be
  // incomplete.
  auto message = decoder_.message();
  message_.assign(message.begin(), message.end());
  bulk_.clear();
}

// Ends the frame if all of it has arrived. Returns false if the frame is incomplete.
bool OutOfOrderReader::end_frame() {
  std::span<const std::byte> here = decoder_.buffered_bulk();
  if (entry_) bulk_.insert(bulk_.end(), here.begin(), here.end());
  decoder_.take_bulk(here.size());
  if (decoder_.bulk_left() != 0) return false;
  in_frame_ = false;
  const wire::FrameHeader& header = decoder_.header();
  if (entry_) {
    auto wrong = wire::read_guarded([&] {
      wire::SegmentReader message(kj::arrayPtr(message_.data(), message_.size()));
      WholeBulk bulk(bulk_);
      Call call{header, message, bulk};
      parts_.execute(*entry_, call);
    });
    if (wrong) give_up(fmt::format("{} (frame {}): {}", entry_->name, header.sequence, *wrong));
  }
  auto kind = wire::FrameKind(header.kind);
  if (kind == wire::FrameKind::posted || kind == wire::FrameKind::called)
    parts_.source.set_seen(seen_ = header.sequence);
  return true;
}

void OutOfOrderReader::give_up(std::string reason) {
  blind_ = true;
  parts_.fault(std::move(reason));
}

}  // namespace gpuwire::server
