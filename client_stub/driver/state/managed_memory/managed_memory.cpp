#include "client_stub/driver/state/managed_memory/managed_memory.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "client/session_sends.hpp"
#include "client_stub/driver/process/entry_steps.hpp"
#include "client_stub/driver/state/managed_memory/managed_faults.hpp"
#include "client_stub/driver/state/managed_memory/managed_pages.hpp"
#include "client_stub/driver/state/memory/address_map.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

// Changes are copied out of the memory and sent in portions of about this size.
constexpr uint64_t kPortionBytes = 4u << 20;
// The number of repeated fetches while the program learns that work is done. After the last one the data count as early
// from the start.
constexpr unsigned kFetchesMax = 16;

struct Change {
  uint64_t address = 0;
  wire::ByteChanges bytes;
};

// Adjacent changes are sent as one: from the first changed byte of one chunk to the last changed byte of the next.
// Chunks before `first` are of another segment, which may be another allocation of the server's driver; no message
// covers two allocations.
void append(std::vector<Change>& changes, size_t first, uint64_t address, wire::ByteChanges&& bytes) {
  if (changes.size() > first) {
    auto& [before, last] = changes.back();
    bool joined = before + last.bytes.size() == address && last.mask.empty() && bytes.mask.empty() &&
                  last.bytes.size() + bytes.bytes.size() <= wire::kRegionPieceBytes;
    if (joined) {
      last.bytes.insert(last.bytes.end(), bytes.bytes.begin(), bytes.bytes.end());
      return;
    }
  }
  changes.push_back({address, std::move(bytes)});
}

CUresult send_change(Session& session, const Change& change) {
  return send::post_managed_write(session, 0, {.address = change.address, .changed = change.bytes.mask},
                                  Bulk{.data = change.bytes.bytes.data(), .bytes = change.bytes.bytes.size()});
}

CUresult read(Session& session, uint64_t address, std::byte* to, uint64_t bytes) {
  BulkSink sink;
  sink.data = to;
  sink.bytes = bytes;
  return send::call_managed_read(session, 0, {.address = address, .bytes = bytes}, sink);
}

}  // namespace

static_assert(ManagedSegment::kChunkBytes <= wire::kRegionPieceBytes);
static_assert(ManagedSegment::kChunkBytes * ManagedSegment::kWindowChunksMax <= wire::kManagedReadBytesMax);

ManagedMemory::ManagedMemory(ServerSession& session, SessionParts& parts) noexcept
    : SessionPart(parts), session_(session) {}

ManagedMemory::~ManagedMemory() { managed_faults().leave(*this); }

// A stream whose work is done covers the NULL stream, if that got no newer work: the stream has waited for the NULL
// stream's earlier work.
bool devices_quiet(const ServerSession& session) noexcept {
  bool quiet = true;
  uint64_t done_blocking = 0;  // newest work known to be done in a stream that synchronises with the NULL stream
  handles().for_each(wire::HandleKind::stream, &session, [&](uint64_t, void* object) {
    auto* stream = static_cast<StreamState*>(object);
    if (!stream) return;
    if (!stream_idle(*stream)) {
      quiet = false;
    } else if (!(stream->flags & CU_STREAM_NON_BLOCKING)) {
      done_blocking = std::max(done_blocking, stream->work.load(std::memory_order_relaxed));
    }
  });
  if (!quiet) return false;
  handles().for_each(wire::HandleKind::context, &session, [&](uint64_t, void* object) {
    auto* context = static_cast<ContextState*>(object);
    if (!context || !context->alive.load(std::memory_order_relaxed) || context_idle(*context)) return;
    if (!stream_idle(context->legacy) && context->legacy.work.load(std::memory_order_relaxed) > done_blocking)
      quiet = false;
  });
  return quiet;
}

// --- mapping -------------------------------------------------------------------------------------------------------

bool ManagedMemory::add_segment(uint64_t begin, uint64_t end, bool fresh, Mapped& result) {
  Segment segment;
  segment.pages = std::make_unique<MappedPages>();
  // Reservations around many small blocks include the gaps between them.
  address_reservations().make_room(begin, end - begin);
  auto made = segment.pages->map(begin, end, fresh ? PageAccess::write : PageAccess::none);
  result = made == MappedPages::Result::taken  ? Mapped::taken
           : made == MappedPages::Result::made ? Mapped::yes
                                               : Mapped::no_memory;
  if (made != MappedPages::Result::made) return false;
  segment.chunks = std::make_unique<ManagedSegment>(*segment.pages, end - begin, fresh);
  segments_.emplace(begin, std::move(segment));
  managed_faults().watch(begin, end);
  return true;
}

ManagedMemory::Mapped ManagedMemory::map(uint64_t base, uint64_t bytes, bool fresh) noexcept try {
  if (bytes == 0 || base < wire::kRegionAddressMin || base >= wire::kRegionAddressMax ||
      bytes > wire::kRegionAddressMax - base)
    return Mapped::taken;
  if (!managed_faults().start(*this)) return Mapped::no_memory;
  const uint64_t begin = base & ~(kPageBytes - 1), end = (base + bytes + kPageBytes - 1) & ~(kPageBytes - 1);
  MutexLock sending(sending_);
  MutexLock lock(mutex_);
  Mapped result = Mapped::yes;
  std::vector<uint64_t> made;
  for (uint64_t at = begin; at < end;) {
    auto [first, segment] = find(at);
    if (segment) {
      at = first + segment->chunks->bytes();
      continue;
    }
    auto next = segments_.upper_bound(at);
    uint64_t gap_end = next == segments_.end() ? end : std::min(end, next->first);
    if (!add_segment(at, gap_end, fresh, result)) {
      for (uint64_t address : made) {
        managed_faults().unwatch(address, address + segments_.at(address).chunks->bytes());
        segments_.erase(address);
      }
      note_state();
      return result;
    }
    made.push_back(at);
    at = gap_end;
  }
  for (auto& [first, segment] : segments_) {
    uint64_t last = first + segment.chunks->bytes();
    if (first >= base + bytes || base >= last) continue;
    auto known = std::find_if(segment.extents.begin(), segment.extents.end(),
                              [&](const Extent& extent) { return extent.base == base; });
    if (known == segment.extents.end()) {
      segment.extents.push_back({base, bytes});
    } else {
      ++known->uses;
    }
  }
  note_state();
  return Mapped::yes;
} catch (const std::bad_alloc&) {
  return Mapped::no_memory;
}

void ManagedMemory::unmap(uint64_t base) noexcept {
  MutexLock sending(sending_);
  MutexLock lock(mutex_);
  for (auto at = segments_.begin(); at != segments_.end();) {
    auto& [first, segment] = *at;
    size_t before = segment.extents.size();
    auto found = std::find_if(segment.extents.begin(), segment.extents.end(),
                              [&](const Extent& extent) { return extent.base == base; });
    if (found != segment.extents.end() && --found->uses == 0) segment.extents.erase(found);
    if (before == 0 || !segment.extents.empty()) {
      ++at;
      continue;
    }
    managed_faults().unwatch(first, first + segment.chunks->bytes());
    at = segments_.erase(at);
  }
  note_state();
}

void ManagedMemory::unmap_holder(uint64_t address) noexcept {
  uint64_t base = 0;
  {
    MutexLock lock(mutex_);
    auto [first, segment] = find(address);
    if (!segment) return;
    for (const Extent& extent : segment->extents) {
      if (address >= extent.base && address - extent.base < extent.bytes) base = extent.base;
    }
  }
  unmap(base);
}

std::pair<uint64_t, ManagedMemory::Segment*> ManagedMemory::find(uint64_t address) noexcept {
  auto at = segments_.upper_bound(address);
  if (at == segments_.begin()) return {0, nullptr};
  --at;
  if (address - at->first >= at->second.chunks->bytes()) return {0, nullptr};
  return {at->first, &at->second};
}

bool ManagedMemory::holds(uint64_t address) const noexcept {
  if (!any()) return false;
  MutexLock lock(mutex_);
  return const_cast<ManagedMemory*>(this)->find(address).second != nullptr;
}

void ManagedMemory::note_state() noexcept {
  // After open_all() no chunk is closed, including by calls in progress.
  if (opened_) return;
  bool valid = fetching_ || on_their_way_, early = fetching_ && fetch_is_early_, hidden = false;
  for (auto& [first, segment] : segments_) {
    valid |= segment.chunks->valid();
    early |= segment.chunks->early();
    hidden |= segment.chunks->hidden();
  }
  count_.store(segments_.size(), std::memory_order_relaxed);
  note_presence(!segments_.empty());
  valid_.store(valid, std::memory_order_relaxed);
  early_.store(early, std::memory_order_relaxed);
  bool restless = early || hidden;
  if (restless_.exchange(restless, std::memory_order_relaxed) != restless && restless) managed_faults().wake();
}

// --- to the server -------------------------------------------------------------------------------------------------

// Calls keep the memory at their pointers accessible while some session has managed memory (entry.hpp).
void ManagedMemory::note_presence(bool there) noexcept {
  if (there == present_) return;
  present_ = there;
  managed_faults().count_memories(there ? 1 : -1);
}

// Lock: sending_ alone, because a full send window drains through the receiving thread, which may take mutex_ in
// settle().
void ManagedMemory::send_hidden() noexcept {
  try {
    std::vector<Change> changes;
    bool more = true;
    while (more) {
      changes.clear();
      {
        MutexLock lock(mutex_);
        more = false;
        for (auto& [first, segment] : segments_) {
          const std::span<const std::byte> memory(segment.pages->memory(), segment.chunks->bytes());
          more = segment.chunks->valid() &&
                 segment.chunks->show(kPortionBytes, [&, base = first, own = changes.size()](wire::ByteChanges& found) {
                   session_.pinned_pointers.scan_around(memory, base, found.offset, found.bytes.size());
                   append(changes, own, base + found.offset, std::move(found));
                 });
          if (more) break;
        }
        on_their_way_ = !changes.empty();
        note_state();
      }
      for (const Change& change : changes) {
        if (send_change(session_.connection(), change)) break;  // the session is over; the following call reports it
      }
    }
  } catch (const std::bad_alloc&) {
    // Unsent changes stay hidden, and are sent with the next work.
  }
  MutexLock lock(mutex_);
  on_their_way_ = false;
  note_state();
}

void ManagedMemory::hand_over_now() noexcept {
  managed_faults().stay_in_front();
  MutexLock sending(sending_);
  {
    MutexLock lock(mutex_);
    if (opened_) return;
    for (auto& [first, segment] : segments_) segment.chunks->close(false);
    note_state();
  }
  send_hidden();
}

void ManagedMemory::refresh() noexcept {
  MutexLock sending(sending_);
  {
    MutexLock lock(mutex_);
    if (opened_) return;
    for (auto& [first, segment] : segments_) segment.chunks->close(true);
    note_state();
  }
  send_hidden();
}

void ManagedMemory::note_work_now() noexcept {
  MutexLock lock(mutex_);
  if (opened_) return;
  for (auto& [first, segment] : segments_) segment.chunks->note_work();
  worked_ = true;
  if (fetching_) fetch_is_early_ = true;
  note_state();
}

void ManagedMemory::settle_now() noexcept {
  MutexLock lock(mutex_);
  if (opened_) return;
  for (auto& [first, segment] : segments_) segment.chunks->close(true);
  ++settled_;
  note_state();
}

// --- from the server -----------------------------------------------------------------------------------------------

bool ManagedMemory::fetch(uint64_t base, const ManagedSegment::Window& window, std::vector<std::byte>& out) {
  out.assign(window.bytes, std::byte{0});
  std::vector<Extent> extents;
  {
    MutexLock lock(mutex_);
    extents = find(base).second->extents;
  }
  const uint64_t begin = base + window.offset, end = begin + window.bytes;
  for (const Extent& extent : extents) {
    uint64_t from = std::max(begin, extent.base), to = std::min(end, extent.base + extent.bytes);
    if (from < to && read(session_.connection(), from, out.data() + (from - begin), to - from)) return false;
  }
  return true;
}

bool ManagedMemory::resolve(uint64_t address, bool write) noexcept try {
  MutexLock sending(sending_);
  std::vector<std::byte> data;
  for (unsigned fetches = 0;; ++fetches) {
    ManagedSegment::Window window;
    uint64_t base = 0, settled = 0;
    {
      MutexLock lock(mutex_);
      auto [first, segment] = find(address);
      if (!segment || opened_) return segment != nullptr;
      bool refused = false;
      auto need = segment->chunks->fault(address - first, write, window, refused);
      if (need == ManagedSegment::Need::nothing) {
        note_state();
        return !refused;
      }
      base = first;
      settled = settled_;
      // From here on, sent work and learned completions are recorded for this fetch, too.
      fetching_ = fetch_is_early_ = true;
      worked_ = false;
      note_state();
    }
    bool quiet = devices_quiet(session_);
    {
      MutexLock lock(mutex_);
      if (quiet && !worked_) fetch_is_early_ = false;
      note_state();
    }
    bool fetched = fetch(base, window, data);
    MutexLock lock(mutex_);
    bool early = fetch_is_early_;
    bool stale = early && settled != settled_;
    fetching_ = false;
    if (opened_) return true;
    if (fetched && (!stale || fetches >= kFetchesMax)) {
      // No thread unmaps while sending_ is held.
      ManagedSegment& chunks = *find(address).second->chunks;
      bool opened = chunks.store(window, data, early);
      if (opened && write && !chunks.writable(address - base)) {
        bool refused = false;
        chunks.fault(address - base, true, window, refused);
        opened = !refused;
      }
      note_state();
      return opened;
    }
    note_state();
    if (!fetched) return false;
  }
} catch (const std::bad_alloc&) {
  return false;
}

bool ManagedMemory::hold(uint64_t address) noexcept {
  while (managed_faults().may_watch(address) && holds(address) && resolve(address, true)) {
    MutexLock lock(mutex_);
    auto [first, segment] = find(address);
    if (!segment) return false;
    if (!segment->chunks->writable(address - first)) continue;  // closed again meanwhile
    segment->chunks->hold(address - first);
    return true;
  }
  return false;
}

void ManagedMemory::release(uint64_t address) noexcept {
  MutexLock lock(mutex_);
  auto [first, segment] = find(address);
  if (segment) segment->chunks->release(address - first);
}

// --- ends ----------------------------------------------------------------------------------------------------------

void ManagedMemory::open_all() noexcept {
  MutexLock lock(mutex_);
  note_presence(false);
  opened_ = true;
  for (auto& [first, segment] : segments_) segment.chunks->open();
  valid_.store(false, std::memory_order_relaxed);
  early_.store(false, std::memory_order_relaxed);
  restless_.store(false, std::memory_order_relaxed);
}

void ManagedMemory::ended(SessionEnd how) noexcept {
  if (how == SessionEnd::closed) open_all();
}

// The child has not inherited the mappings. Their bookkeeping stays, because threads that do not exist in the child may
// have held its locks.
void ManagedMemory::after_fork_in_child() noexcept {
  count_.store(0, std::memory_order_relaxed);
  valid_.store(false, std::memory_order_relaxed);
  early_.store(false, std::memory_order_relaxed);
  restless_.store(false, std::memory_order_relaxed);
}

void ManagedMemory::clear() noexcept {
  MutexLock sending(sending_);
  MutexLock lock(mutex_);
  for (auto& [first, segment] : segments_) managed_faults().unwatch(first, first + segment.chunks->bytes());
  segments_.clear();
  opened_ = false;
  note_state();
}

}  // namespace gpuwire::client
