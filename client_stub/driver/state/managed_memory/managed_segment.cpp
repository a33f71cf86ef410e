#include "client_stub/driver/state/managed_memory/managed_segment.hpp"

#include <algorithm>
#include <cstring>

namespace gpuwire::client {

ManagedSegment::ManagedSegment(SegmentPages& pages, uint64_t bytes, bool fresh)
    : pages_(pages), bytes_(bytes), chunks_((bytes + kChunkBytes - 1) / kChunkBytes) {
  if (!fresh) return;
  for (Chunk& chunk : chunks_) set(chunk, State::fresh, false);
}

uint64_t ManagedSegment::chunk_bytes(size_t index) const noexcept {
  return std::min(kChunkBytes, bytes_ - index * kChunkBytes);
}

void ManagedSegment::set(Chunk& chunk, State state, bool early) noexcept {
  accessible_ -= accessible(chunk.state);
  hidden_ -= chunk.state == State::hidden;
  early_ -= chunk.early;
  chunk.state = state;
  chunk.early = early && accessible(state);
  if (state != State::dirty && state != State::hidden) chunk.twin.reset();
  accessible_ += accessible(state);
  hidden_ += state == State::hidden;
  early_ += chunk.early;
  auto index = size_t(&chunk - chunks_.data());
  if (!valid()) {
    low_ = high_ = 0;
  } else if (state != State::invalid) {
    low_ = low_ == high_ ? index : std::min(low_, index);
    high_ = std::max(high_, index + 1);
  }
}

std::unique_ptr<std::byte[]> ManagedSegment::copy_of(size_t index) const {
  auto copy = std::make_unique_for_overwrite<std::byte[]>(chunk_bytes(index));
  std::memcpy(copy.get(), pages_.memory() + index * kChunkBytes, chunk_bytes(index));
  return copy;
}

bool ManagedSegment::protect_run(size_t first, size_t count, PageAccess access) noexcept {
  if (count == 0) return true;
  uint64_t begin = first * kChunkBytes;
  return pages_.protect(begin, std::min(count * kChunkBytes, bytes_ - begin), access);
}

// Precondition: no thread can write to the clean chunk, so its bytes do not change before it is opened.
bool ManagedSegment::make_dirty(size_t index, bool early) {
  Chunk& chunk = chunks_[index];
  auto twin = copy_of(index);
  if (!protect_run(index, 1, PageAccess::write)) return false;
  set(chunk, State::dirty, early);
  chunk.twin = std::move(twin);
  return true;
}

ManagedSegment::Need ManagedSegment::fault(uint64_t offset, bool write, Window& window, bool& refused) {
  refused = false;
  size_t index = offset / kChunkBytes;
  Chunk& chunk = chunks_[index];
  if (accessible(chunk.state)) {
    // Another thread's fault has been served meanwhile, or this access is a write.
    if (write && chunk.state == State::clean) {
      refused = !make_dirty(index, chunk.early);
    } else {
      refused = !protect_run(index, 1, chunk.state == State::clean ? PageAccess::read : PageAccess::write);
    }
    return Need::nothing;
  }
  // A thread that reads successive chunks gets a larger window each time.
  window_chunks_ = index == next_ ? std::min(window_chunks_ * 2, kWindowChunksMax) : 1;
  size_t count = 1;
  while (count < window_chunks_ && index + count < chunks_.size() && !accessible(chunks_[index + count].state)) ++count;
  next_ = index + count;
  window = {index * kChunkBytes, std::min(count * kChunkBytes, bytes_ - index * kChunkBytes)};
  return Need::data;
}

bool ManagedSegment::store(const Window& window, std::span<const std::byte> data, bool early) {
  size_t first = window.offset / kChunkBytes, count = (window.bytes + kChunkBytes - 1) / kChunkBytes;
  for (size_t index = first; index < first + count; ++index) {
    Chunk& chunk = chunks_[index];
    if (accessible(chunk.state)) continue;  // another thread has opened it
    std::byte* memory = pages_.memory() + index * kChunkBytes;
    const std::byte* fetched = data.data() + (index - first) * kChunkBytes;
    if (chunk.state == State::hidden) {
      if (!chunk.twin) chunk.twin = std::make_unique<std::byte[]>(chunk_bytes(index));
      for (uint64_t i = 0; i < chunk_bytes(index); ++i) {
        if (memory[i] == chunk.twin[i]) memory[i] = fetched[i];
      }
      std::memcpy(chunk.twin.get(), fetched, chunk_bytes(index));
      if (!protect_run(index, 1, PageAccess::write)) return false;
      set(chunk, State::dirty, early);
      continue;
    }
    std::memcpy(memory, fetched, chunk_bytes(index));
  }
  // Each run of chunks that become readable needs one system call.
  for (size_t index = first; index < first + count;) {
    if (chunks_[index].state != State::invalid) {
      ++index;
      continue;
    }
    size_t end = index;
    while (end < first + count && chunks_[end].state == State::invalid) ++end;
    if (!protect_run(index, end - index, PageAccess::read)) return false;
    for (; index < end; ++index) set(chunks_[index], State::clean, early);
  }
  return true;
}

// Revokes the program's access to chunks that no call holds, so nothing changes while they are compared.
void ManagedSegment::revoke(bool early_only) {
  auto take = [&](const Chunk& chunk) {
    return accessible(chunk.state) && chunk.holds == 0 && (!early_only || chunk.early);
  };
  size_t end = 0;
  for (size_t index = low_; index < high_; index = end) {
    bool taking = take(chunks_[index]);
    end = index + 1;
    if (!taking) continue;
    // A run includes closed chunks, so a segment with few open chunks needs one system call.
    while (end < high_ && (take(chunks_[end]) || !accessible(chunks_[end].state))) ++end;
    protect_run(index, end - index, PageAccess::none);
  }
}

void ManagedSegment::close(bool early_only) {
  cursor_ = 0;
  if (accessible_ == 0) return;
  revoke(early_only);
  for (size_t index = low_, end = high_; index < end; ++index) {
    Chunk& chunk = chunks_[index];
    if (!accessible(chunk.state) || (early_only && !chunk.early)) continue;
    if (chunk.holds == 0) {
      set(chunk, chunk.state == State::clean ? State::invalid : State::hidden, false);
      continue;
    }
    // A call uses the chunk: it is compared now and again when it is closed.
    if (chunk.state == State::fresh) chunk.twin = std::make_unique<std::byte[]>(chunk_bytes(index));
    set(chunk, chunk.state == State::clean ? State::clean : State::dirty, true);
  }
  if (!early_only) window_chunks_ = 1;
}

uint64_t ManagedSegment::show_changes(size_t index, const Visit& visit) {
  uint64_t shown = 0;
  wire::take_changes(pages_.memory() + index * kChunkBytes, {chunks_[index].twin.get(), chunk_bytes(index)},
                     [&](wire::ByteChanges& changes) {
                       changes.offset += index * kChunkBytes;
                       shown += changes.bytes.size();
                       visit(changes);
                     });
  return shown;
}

// Visits all touched bytes of a fresh chunk. The server holds zeros there and no work has had the address, so unchanged
// bytes between them may be included.
uint64_t ManagedSegment::show_fresh(size_t index, uint64_t& untouched_to, const Visit& visit) {
  const uint64_t chunk_end = index * kChunkBytes + chunk_bytes(index);
  uint64_t shown = 0, begin = 0, end = 0;
  for (uint64_t offset = std::max(index * kChunkBytes, untouched_to); offset < chunk_end; offset = end) {
    if (!pages_.touched(offset, begin, end)) begin = bytes_;
    untouched_to = begin;
    if (begin >= chunk_end) break;
    const std::byte *first = pages_.memory() + begin, *last = pages_.memory() + std::min(end, chunk_end);
    first = std::find_if(first, last, [](std::byte byte) { return byte != std::byte{0}; });
    while (last > first && last[-1] == std::byte{0}) --last;
    if (first == last) continue;
    wire::ByteChanges changes{uint64_t(first - pages_.memory()), {first, last}, {}};
    shown += changes.bytes.size();
    visit(changes);
  }
  return shown;
}

bool ManagedSegment::show(uint64_t bytes_max, const Visit& visit) {
  uint64_t shown = 0, untouched_to = 0;
  for (cursor_ = std::max(cursor_, low_); cursor_ < high_; ++cursor_) {
    if (shown >= bytes_max) return true;
    Chunk& chunk = chunks_[cursor_];
    if (chunk.state == State::hidden) {
      shown += chunk.twin ? show_changes(cursor_, visit) : show_fresh(cursor_, untouched_to, visit);
      set(chunk, State::invalid, false);
    } else if (chunk.state == State::dirty && chunk.holds) {
      shown += show_changes(cursor_, visit);
    }
  }
  return false;
}

void ManagedSegment::note_work() noexcept {
  for (size_t index = low_; index < high_; ++index) {
    Chunk& chunk = chunks_[index];
    if (chunk.state == State::clean || chunk.state == State::dirty) set(chunk, chunk.state, true);
  }
}

void ManagedSegment::hold(uint64_t offset) noexcept { ++chunks_[offset / kChunkBytes].holds; }
void ManagedSegment::release(uint64_t offset) noexcept { --chunks_[offset / kChunkBytes].holds; }

bool ManagedSegment::writable(uint64_t offset) const noexcept {
  State state = chunks_[offset / kChunkBytes].state;
  return state == State::fresh || state == State::dirty;
}

void ManagedSegment::open() {
  for (Chunk& chunk : chunks_) set(chunk, State::fresh, false);
  protect_run(0, chunks_.size(), PageAccess::write);
}

}  // namespace gpuwire::client
