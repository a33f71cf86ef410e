// One stretch of managed memory in this process: its readable and writable parts at present, and the program's changes.
// Plain data over memory and a way to protect it; knows no connection and no signal.
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

// The segment's dependencies. Offsets are the segment's.
class SegmentPages {
 public:
  virtual ~SegmentPages() = default;
  // The same bytes as the program's, always readable and writable here.
  virtual std::byte* memory() noexcept = 0;
  // Sets the program's access to [offset, offset + bytes), whole chunks or the rest of the segment. False: the system
  // refuses.
  virtual bool protect(uint64_t offset, uint64_t bytes, PageAccess access) noexcept = 0;
  // The first stretch at or behind `offset` that anybody has ever touched; false: none.
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
  // Chunks that are asked for in one go when the program reads one after the other.
  static constexpr uint64_t kWindowChunksMax = 64;

  struct Window {
    uint64_t offset = 0, bytes = 0;
  };
  enum class Need : uint8_t { nothing, data };

  // `fresh`: else all is invalid. `bytes` > 0.
  ManagedSegment(SegmentPages& pages, uint64_t bytes, bool fresh);

  uint64_t bytes() const noexcept { return bytes_; }
  // Is any chunk accessible or written to, so that handing over has something to do?
  bool valid() const noexcept { return accessible_ != 0 || hidden_ != 0; }
  bool early() const noexcept { return early_ != 0; }
  // Is something hidden, which only its owner can bring to the server?
  bool hidden() const noexcept { return hidden_ != 0; }

  // The program wants to read or write at `offset` and may not. Need::data: `window` has to be fetched and given to
  // store(). `refused`: the system did not let us open the page.
  Need fault(uint64_t offset, bool write, Window& window, bool& refused);
  // The server's bytes of a window of fault(); the program's changes in hidden chunks stay. Opens them for reading,
  // hidden ones for writing. False: the system refuses.
  bool store(const Window& window, std::span<const std::byte> data, bool early);

  // Closes accessible chunks, or early ones (work is done, and may have changed them), except for held chunks. Changes
  // are kept hidden until show() has shown them.
  void close(bool early_only);
  // The program's changes, from the chunk on where the last call ended; the changed bytes then count as the server's.
  // True: more is to come, after about `bytes_max`. Nothing may be opened before the last call.
  using Visit = std::function<void(wire::ByteChanges&)>;
  bool show(uint64_t bytes_max, const Visit& visit);
  // Everything that is accessible is early from here on.
  void note_work() noexcept;

  // A held chunk stays accessible. The chunk must be accessible.
  void hold(uint64_t offset) noexcept;
  void release(uint64_t offset) noexcept;
  bool writable(uint64_t offset) const noexcept;

  // Opens all for reading and writing as it is: the session has ended.
  void open();

 private:
  enum class State : uint8_t { invalid, fresh, clean, dirty, hidden };
  struct Chunk {
    State state = State::invalid;
    bool early = false;
    uint16_t holds = 0;
    std::unique_ptr<std::byte[]> twin;  // dirty, and hidden except formerly fresh ones: zeros
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
  size_t early_ = 0;           // accessible ones that are early
  size_t low_ = 0, high_ = 0;  // all that are not invalid are in [low_, high_)
  size_t cursor_ = 0;          // of show()
  size_t next_ = 0;            // the chunk behind the last window
  uint64_t window_chunks_ = 1;
};

}  // namespace gpuwire::client
