// A segment of managed memory in this process: the parts that are readable and writable at present, and the program's
// changes. Plain data over memory and a way to protect it; independent of connections and signals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "protocol/wire/byte_changes.hpp"

namespace gpuwire::client {

inline constexpr uint64_t kPageBytes = 4096;

enum class PageAccess : uint8_t { none, read, write };

// The segment's dependencies. Offsets are relative to the segment.
class SegmentPages {
 public:
  virtual ~SegmentPages() = default;
  // The program's bytes, always readable and writable here.
  virtual std::byte* memory() noexcept = 0;
  // Sets the program's access to [offset, offset + bytes), whole chunks or the rest of the segment. False: the system
  // refuses.
  virtual bool protect(uint64_t offset, uint64_t bytes, PageAccess access) noexcept = 0;
  // Finds the first stretch at or behind `offset` that was ever touched. Returns false if there is none.
  virtual bool touched(uint64_t offset, uint64_t& begin, uint64_t& end) noexcept = 0;
};

// Not thread-safe: its owner has a lock.
//
// A chunk is `fresh` (zeros at the server; the program reads and writes freely), `invalid` (the device may have changed
// it; not accessible), `clean` (as at the server; readable), `dirty` (written to; the twin has the server's content) or
// `hidden` (written to, and the device may have changed the rest; not accessible). A clean or dirty chunk is `early`
// when work of the device was in flight when it was fetched or has been sent since: it is only valid until the program
// learns that work is done.
class ManagedSegment {
 public:
  static constexpr uint64_t kChunkBytes = 64u << 10;
  // The largest number of chunks that are fetched at once when the program reads successive chunks.
  static constexpr uint64_t kWindowChunksMax = 64;

  struct Window {
    uint64_t offset = 0, bytes = 0;
  };
  enum class Need : uint8_t { nothing, data };

  // `fresh`: all chunks are fresh; otherwise invalid. `bytes` > 0.
  ManagedSegment(SegmentPages& pages, uint64_t bytes, bool fresh);

  uint64_t bytes() const noexcept { return bytes_; }
  // Returns whether any chunk is accessible or written to, so that a hand-over has data.
  bool valid() const noexcept { return accessible_ != 0 || hidden_ != 0; }
  bool early() const noexcept { return early_ != 0; }
  // Returns whether any chunk is hidden, which only the owner can send to the server.
  bool hidden() const noexcept { return hidden_ != 0; }

  // The program's access at `offset` has faulted. Need::data: `window` must be fetched and passed to store().
  // `refused`: the system did not let the client open the page.
  Need fault(uint64_t offset, bool write, Window& window, bool& refused);
  // Stores the server's bytes of a window of fault(); the program's changes in hidden chunks stay. Opens the chunks for
  // reading, hidden ones for writing. Returns false if the system refuses.
  bool store(const Window& window, std::span<const std::byte> data, bool early);

  // Closes accessible chunks, or only early ones (work is done and may have changed them), except held chunks. Changes
  // stay hidden until show() has visited them.
  void close(bool early_only);
  // Visits the program's changes, from the chunk on where the last call ended; the changed bytes then count as the
  // server's. Returns true if more are left, after about `bytes_max`. Nothing may be opened before the last call.
  using Visit = std::function<void(wire::ByteChanges&)>;
  bool show(uint64_t bytes_max, const Visit& visit);
  // All accessible chunks are early from here on.
  void note_work() noexcept;

  // A held chunk stays accessible. Precondition: it is accessible.
  void hold(uint64_t offset) noexcept;
  void release(uint64_t offset) noexcept;
  bool writable(uint64_t offset) const noexcept;

  // Opens all chunks for reading and writing with their present content: the session has ended.
  void open();

 private:
  enum class State : uint8_t { invalid, fresh, clean, dirty, hidden };
  struct Chunk {
    State state = State::invalid;
    bool early = false;
    uint16_t holds = 0;
    // Dirty, and hidden except formerly fresh ones: zeros.
    std::unique_ptr<std::byte[]> twin;
  };

  uint64_t chunk_bytes(size_t index) const noexcept;
  static bool accessible(State state) noexcept {
    return state == State::fresh || state == State::clean || state == State::dirty;
  }
  void set(Chunk& chunk, State state, bool early) noexcept;
  bool make_dirty(size_t index, bool early);
  bool protect_run(size_t first, size_t count, PageAccess access) noexcept;
  uint64_t show_changes(size_t index, const Visit& visit);
  uint64_t show_fresh(size_t index, uint64_t& untouched_to, const Visit& visit);
  void revoke(bool early_only);
  std::unique_ptr<std::byte[]> copy_of(size_t index) const;

  SegmentPages& pages_;
  const uint64_t bytes_;
  std::vector<Chunk> chunks_;
  size_t accessible_ = 0;
  size_t hidden_ = 0;
  // Accessible ones that are early.
  size_t early_ = 0;
  // All chunks that are not invalid are in [low_, high_).
  size_t low_ = 0, high_ = 0;
  // The position of show().
  size_t cursor_ = 0;
  // The chunk behind the last window.
  size_t next_ = 0;
  uint64_t window_chunks_ = 1;
};

}  // namespace gpuwire::client
