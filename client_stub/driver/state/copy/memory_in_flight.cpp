#include "client_stub/driver/state/copy/memory_in_flight.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"

namespace gpuwire::client {
namespace {

constexpr size_t kScannedMin = 16;

SentWork work_in(const Caller& caller, uint64_t wire_stream, uint64_t sequence) noexcept {
  SentWork work{.context = caller.state, .sequence = sequence};
  const StreamState* stream = find_stream(caller.state, wire_stream);
  if (!stream) return work;
  if (stream->context) work.context = stream->context;
  work.stream = stream;
  work.handle = stream->handle.load(std::memory_order_relaxed);
  work.blocking = !(stream->flags & CU_STREAM_NON_BLOCKING);
  return work;
}

}  // namespace

bool SentWork::known_done() const noexcept {
  if (!context || !context->alive.load(std::memory_order_relaxed)) return true;
  // Synchronising a primary context waits for its green ones.
  if (sequence <= context->done.load(std::memory_order_acquire) ||
      sequence <= context->base->done.load(std::memory_order_acquire))
    return true;
  if (blocking && sequence <= context->legacy.done.load(std::memory_order_acquire)) return true;
  // The state may have been recycled for another stream. `handle` is read after `done`: if the handle is still the
  // stream's, so was `done`.
  return stream && sequence <= stream->done.load(std::memory_order_acquire) &&
         stream->handle.load(std::memory_order_acquire) == handle;
}

// --- work in flight -------------------------------------------------------------------------------------------------

MemoryInFlight::Sending::Sending(const Caller& caller, uint64_t wire_stream, Uses uses, Awaits awaits)
    : all_(caller.server->in_flight), work_(work_in(caller, wire_stream, 0)), uses_(std::move(uses)), awaits_(awaits) {
  if (!uses_ && awaits_ == Awaits::nothing) return;
  std::vector<Uses> dropped;
  MutexLock lock(all_.mutex_);
  if (all_.over_) return;
  if (all_.launched_.size() >= all_.poll_at_) {
    all_.drop_done_launches(dropped);
    all_.poll_at_ = std::max(kScannedMin, 2 * all_.launched_.size());
  }
  if (uses_) all_.add(uses_);
  if (awaits_ != Awaits::nothing) {
    try {
      Standing& standing = all_.standing_in(work_);
      ++standing.unsent;
      standing.awaits = standing.awaits | awaits_;
    } catch (...) {
      if (uses_) --all_.launched_.find(uses_.get())->second.unsent;
      throw;
    }
  }
  entered_ = true;
  all_.count();
}

MemoryInFlight::Sending::~Sending() { note(); }

// Without a sequence the frame was not sent: the entry then ends with the work before it.
void MemoryInFlight::Sending::note() noexcept {
  if (!std::exchange(entered_, false)) return;
  work_.sequence = sequence_;
  auto noted = [&](SentWork& newest, unsigned& unsent) {
    --unsent;
    if (newest.sequence < work_.sequence) newest = work_;
  };
  MutexLock lock(all_.mutex_);
  if (all_.over_) return;
  if (auto found = uses_ ? all_.launched_.find(uses_.get()) : all_.launched_.end(); found != all_.launched_.end())
    noted(found->second.newest, found->second.unsent);
  for (Standing& standing : all_.standing_) {
    if (awaits_ == Awaits::nothing || standing.newest.stream != work_.stream || standing.newest.handle != work_.handle)
      continue;
    noted(standing.newest, standing.unsent);
  }
}

void MemoryInFlight::note_standing(const Caller& caller, uint64_t wire_stream, uint64_t sequence,
                                   Awaits awaits) noexcept try {
  if (awaits == Awaits::nothing) return;
  const SentWork work = work_in(caller, wire_stream, sequence);
  MutexLock lock(mutex_);
  if (over_) return;
  Standing& standing = standing_in(work);
  if (standing.newest.sequence < sequence) standing.newest = work;
  standing.awaits = standing.awaits | awaits;
  count();
} catch (const std::bad_alloc&) {
  // The stream counts as one that waits for nothing.
}

MemoryInFlight::Standing& MemoryInFlight::standing_in(const SentWork& work) {
  drop_done_standing();
  for (Standing& standing : standing_) {
    if (standing.newest.stream == work.stream && standing.newest.handle == work.handle) return standing;
  }
  standing_.push_back({.newest = work});
  return standing_.back();
}

void MemoryInFlight::add(const Uses& uses) {
  auto [found, made] = launched_.try_emplace(uses.get());
  if (!made) {
    ++found->second.unsent;
    return;
  }
  size_t added = 0;
  try {
    for (const GraphUse& use : uses->ranges) {
      (use.written ? written_ : read_).add(use.address, use.bytes);
      ++added;
    }
  } catch (...) {
    for (size_t i = 0; i < added; ++i) {
      const GraphUse& use = uses->ranges[i];
      (use.written ? written_ : read_).remove(use.address, use.bytes);
    }
    launched_.erase(found);
    throw;
  }
  found->second.uses = uses;
  found->second.unsent = 1;
}

void MemoryInFlight::remove(const GraphUses& uses) noexcept {
  for (const GraphUse& use : uses.ranges) (use.written ? written_ : read_).remove(use.address, use.bytes);
}

void MemoryInFlight::drop_done_launches(std::vector<Uses>& dropped) noexcept {
  for (auto at = launched_.begin(); at != launched_.end();) {
    Launched& launch = at->second;
    if (launch.unsent != 0 || !launch.newest.known_done()) {
      ++at;
      continue;
    }
    try {
      dropped.push_back(launch.uses);
    } catch (...) {
      return;  // no memory; the entries are held for longer
    }
    remove(*launch.uses);
    at = launched_.erase(at);
  }
  count();
}

void MemoryInFlight::drop_done_standing() noexcept {
  std::erase_if(standing_,
                [](const Standing& standing) { return standing.unsent == 0 && standing.newest.known_done(); });
  count();
}

void MemoryInFlight::count() noexcept {
  launched_count_.store(launched_.size(), std::memory_order_relaxed);
  standing_count_.store(standing_.size(), std::memory_order_relaxed);
}

// --- questions -----------------------------------------------------------------------------------------------------

bool MemoryInFlight::holds(uint64_t address, uint64_t bytes, bool written) const noexcept {
  return written_.any(address, bytes) || (!written && read_.any(address, bytes));
}

bool MemoryInFlight::used(uint64_t address, uint64_t bytes, bool written) noexcept {
  if (session_.pending_copies.touches(reinterpret_cast<const void*>(address), bytes)) return true;
  if (launched_count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  std::vector<Uses> dropped;  // blocks end outside the lock
  MutexLock lock(mutex_);
  if (!holds(address, bytes, written)) return false;
  drop_done_launches(dropped);
  return holds(address, bytes, written);
}

bool MemoryInFlight::any_writes() noexcept {
  if (session_.pending_copies.any()) return true;
  if (launched_count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return false;
  std::vector<Uses> dropped;
  MutexLock lock(mutex_);
  drop_done_launches(dropped);
  return !written_.empty();
}

Awaits MemoryInFlight::ahead_of(const Caller& caller, uint64_t wire_stream) noexcept {
  Awaits all = Awaits::nothing;
  if (standing_count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return all;
  const SentWork work = work_in(caller, wire_stream, 0);
  MutexLock lock(mutex_);
  drop_done_standing();
  for (const Standing& standing : standing_) {
    // Work of the NULL stream may order two streams that both wait for it.
    const bool by_null_stream = standing.newest.blocking && work.blocking;
    const bool same = standing.newest.stream == work.stream && standing.newest.handle == work.handle;
    if (same || by_null_stream) all = all | standing.awaits;
  }
  return still_to_come(all);
}

Awaits MemoryInFlight::standing() noexcept {
  Awaits all = Awaits::nothing;
  if (standing_count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return all;
  MutexLock lock(mutex_);
  drop_done_standing();
  for (const Standing& standing : standing_) all = all | standing.awaits;
  return still_to_come(all);
}

Awaits MemoryInFlight::still_to_come(Awaits all) const noexcept {
  if (session_.host_callbacks.any_of_program_to_come()) return all;
  return Awaits(uint8_t(all) & ~uint8_t(Awaits::callbacks));
}

std::vector<MemoryInFlight::Uses> MemoryInFlight::launched() {
  std::vector<Uses> all;
  if (launched_count_.load(std::memory_order_relaxed) == 0) [[likely]]
    return all;
  std::vector<Uses> dropped;
  MutexLock lock(mutex_);
  drop_done_launches(dropped);
  for (const auto& [key, launch] : launched_) {
    if (!launch.uses->late) all.push_back(launch.uses);
  }
  return all;
}

void MemoryInFlight::let_go() noexcept {
  if (launched_count_.load(std::memory_order_relaxed) == 0 && standing_count_.load(std::memory_order_relaxed) == 0)
      [[likely]]
    return;
  std::vector<Uses> dropped;
  MutexLock lock(mutex_);
  drop_done_launches(dropped);
  drop_done_standing();
}

// The server frees the blocks with the session, as it does those of graphs, so no frame is sent.
void MemoryInFlight::ended(SessionEnd how) noexcept {
  if (how != SessionEnd::lost) return;
  MutexLock lock(mutex_);
  over_ = true;
  written_.clear();
  read_.clear();
  standing_.clear();
  launched_count_.store(0, std::memory_order_relaxed);
  standing_count_.store(0, std::memory_order_relaxed);
}

}  // namespace gpuwire::client
