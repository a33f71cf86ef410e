// Pinned memory that the device does not know yet, and the part of it to which the device has got a pointer. Under
// unified addressing a kernel may use any pinned memory at its host address, so the client scans all data for the
// device for such addresses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

// Any thread; one leaf lock. A session without such memory pays one atomic load for each scan.
class PinnedPointers final : public SessionPart {
 public:
  explicit PinnedPointers(SessionParts& parts) noexcept : SessionPart(parts) {}

  static constexpr uint64_t kAlignmentInData = 16;

  // The distance by which an argument may point below the memory that it indexes (`p - 1`, indexed from one): where
  // only pinned memory lies, and where other memory of the program may lie.
  static constexpr uint64_t kBelowBytesMax = 1u << 20, kBelowAmongOthersBytesMax = 4096;

  struct Range {
    uint64_t base = 0, bytes = 0;
  };
  enum class Around : uint8_t { pinned_memory, other_memory };

  // Adds pinned memory that the device does not know. The device may still have pointers to former memory at these
  // addresses, so the new memory is wanted if it replaces such memory.
  void add(uint64_t base, uint64_t bytes, Around around = Around::other_memory);
  // Notes that memory which the device knew is no longer pinned.
  void note_former(uint64_t base, uint64_t bytes) noexcept;
  // Removes memory that the device knows now, or that is no longer pinned.
  void remove(uint64_t base) noexcept;
  bool contains(uint64_t base) const noexcept;
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  // Returns whether there is memory that becomes wanted when a pointer to it is seen.
  bool any_unseen() const noexcept { return unseen_bytes_.load(std::memory_order_relaxed) != 0; }

  // Adds a table: memory that the device reaches, and that may hold pointers to memory which the device does not know.
  // The device gets the table when a word for the device points into it.
  void add_table(uint64_t base, uint64_t bytes);
  void remove_table(uint64_t base) noexcept;
  // Returns whether there are tables that the device does not know.
  bool any_unsent() const noexcept { return unsent_.load(std::memory_order_relaxed) != 0; }
  // Returns the tables that the device knows, from number `from` on, in the order in which it got them. The order is
  // valid until a table ends.
  std::vector<Range> sent_tables(size_t from) const;
  // Returns whether a scan of the tables before each piece of work would cost more than a comparison of all memory that
  // the device does not know, which would be the cost if the device knew it. That memory is then wanted.
  bool want_all_if_tables_cost_more() noexcept;

  // Scans arguments for the device, in their order in memory. Memory is wanted if a word of them, or two halves of a
  // word in either order, points to it or to its end, or lies a little below it.
  void scan_words(std::span<const std::byte> arguments) noexcept {
    if (any() || any_unsent()) [[unlikely]]
      scan_arguments(arguments);
  }
  void scan_argument(uint64_t word) noexcept {
    if (may_mean(word)) [[unlikely]]
      want_near(word);
  }
  // Scans half of a word that the device gets at `place`, perhaps beside the half of the last call.
  void scan_half(uint64_t place, uint32_t half) noexcept {
    if (any()) [[unlikely]]
      join_halves(place, half);
  }
  // Scans data that may hold pointers into memory or to its end. A false match costs memory at the server, and time for
  // each launch, so only pointers to multiples of kAlignmentInData count, as the first pointer into an allocation is
  // one.
  void scan_data(std::span<const std::byte> data) noexcept {
    if (any()) [[unlikely]]
      scan_data_words(data);
  }
  // Scans a part of `memory`, which the program has at `address`: the words to which bytes [offset, offset + bytes)
  // belong.
  void scan_around(std::span<const std::byte> memory, uint64_t address, uint64_t offset, uint64_t bytes) noexcept {
    if (any()) [[unlikely]]
      scan_data_words(whole_words(memory, address, offset, bytes));
  }
  void scan_address(uint64_t address) noexcept {
    if (may_hold(address)) [[unlikely]]
      want(address);
  }

  bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed) != 0; }
  // Returns some wanted memory. It stays wanted until remove() or refuse().
  std::optional<Range> next_wanted() const noexcept;
  // Notes that the server cannot have the memory, which is not wanted again.
  void refuse(uint64_t base) noexcept;

  // All is forgotten: no device will have it.
  void ended(SessionEnd how) noexcept override;
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  // If there are more, all are forgotten.
  static constexpr size_t kFormerMax = 4096;
  // The cost of a compared byte in scanned bytes, memory at the server included; and the bytes of tables that are
  // scanned in any case.
  static constexpr uint64_t kComparedBytesCost = 4, kTableBytesCheap = 256u << 10;

  enum class State : uint8_t { unseen, wanted, refused };
  struct Entry {
    uint64_t bytes = 0;
    State state = State::unseen;
    Around around = Around::other_memory;
  };
  bool may_hold(uint64_t address) const noexcept {
    return address >= low_.load(std::memory_order_relaxed) && address <= high_.load(std::memory_order_relaxed);
  }
  bool may_mean(uint64_t word) const noexcept {
    return word + kBelowBytesMax >= low_.load(std::memory_order_relaxed) &&
           word <= high_.load(std::memory_order_relaxed);
  }
  static std::span<const std::byte> whole_words(std::span<const std::byte> memory, uint64_t address, uint64_t offset,
                                                uint64_t bytes) noexcept;
  void scan_data_words(std::span<const std::byte> data) noexcept;
  void scan_arguments(std::span<const std::byte> arguments) noexcept;
  void join_halves(uint64_t place, uint32_t half) noexcept;
  // Makes the range wanted that holds the address, or ends there if no known range begins there.
  void want(uint64_t address) noexcept;
  // Also makes a range wanted that begins behind the address, if the address is in no known range.
  void want_near(uint64_t address) noexcept;
  // Makes the range wanted that holds the address. Returns false if there is none.
  bool want_holder(uint64_t address) noexcept REQUIRES(mutex_);
  bool notify_holder(uint64_t address) noexcept REQUIRES(mutex_);
  bool want_ended(uint64_t address) noexcept REQUIRES(mutex_);
  void want_above(uint64_t address) noexcept REQUIRES(mutex_);
  void note_wanted(Entry& entry) noexcept REQUIRES(mutex_) {
    if (entry.state == State::unseen) set(entry, State::wanted);
  }
  void set(Entry& entry, State state) noexcept REQUIRES(mutex_);
  void note_bounds() noexcept REQUIRES(mutex_);

  mutable Mutex mutex_;
  // By first byte; disjoint.
  std::map<uint64_t, Entry> ranges_ GUARDED_BY(mutex_);
  // Base and bytes of memory that the device knew.
  std::map<uint64_t, uint64_t> former_ GUARDED_BY(mutex_);
  struct Table {
    uint64_t bytes = 0;
    bool told = false;
  };
  // By first byte; disjoint.
  std::map<uint64_t, Table> tables_ GUARDED_BY(mutex_);
  // The tables that the device knows.
  std::vector<Range> notified_ GUARDED_BY(mutex_);
  // The place of the half that was scanned last.
  uint64_t half_place_ GUARDED_BY(mutex_) = 0;
  uint32_t half_ GUARDED_BY(mutex_) = 0;
  // All ranges and tables lie in [low_, high_), and a pointer to high_ may mean the range that ends there; 0 and 0:
  // there are none. Written under the lock. Relaxed: a thread that has a pointer got it after the range was added; each
  // of the two bounds then lets it pass, whatever ranges come and go meanwhile.
  std::atomic<uint64_t> low_{0}, high_{0};
  // The number of ranges_, and of ranges with tables; the same holds.
  std::atomic<size_t> count_{0}, unsent_{0};
  // The bytes of notified_.
  uint64_t told_bytes_ GUARDED_BY(mutex_) = 0;
  // The bytes of unseen ranges; the same holds as for count_.
  std::atomic<uint64_t> unseen_bytes_{0};
  // Existing ranges; relaxed: a thread that sent a pointer has made its range wanted.
  std::atomic<size_t> wanted_{0};
};

}  // namespace gpuwire::client
