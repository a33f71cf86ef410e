// Pinned memory that the device does not know yet, and which of it the device has been given a pointer to. Under
// unified addressing a kernel may use any pinned memory at its host address, so whatever travels to the device is
// looked through for such addresses.
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

// Any thread; one leaf lock. A session without such memory pays one atomic load for each look.
class PinnedPointers final : public SessionPart {
 public:
  explicit PinnedPointers(SessionParts& parts) noexcept : SessionPart(parts) {}

  static constexpr uint64_t kAlignmentInData = 16;

  // An argument may point so far below memory that it is an index into (`p - 1`, indexed from one): where nothing but
  // pinned memory lies, and where other memory of the program may lie.
  static constexpr uint64_t kBelowBytesMax = 1u << 20, kBelowAmongOthersBytesMax = 4096;

  struct Range {
    uint64_t base = 0, bytes = 0;
  };
  enum class Around : uint8_t { pinned_memory, other_memory };

  // Memory was pinned, and the device does not know it. Where memory was that it knew, it may still have pointers to,
  // so that is wanted.
  void add(uint64_t base, uint64_t bytes, Around around = Around::other_memory);
  // Memory that the device knew is pinned no more.
  void note_former(uint64_t base, uint64_t bytes) noexcept;
  // The device knows it now, or it is pinned no more.
  void remove(uint64_t base) noexcept;
  bool contains(uint64_t base) const noexcept;
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  // Any that may become wanted, when a pointer to it is seen?
  bool any_unseen() const noexcept { return unseen_bytes_.load(std::memory_order_relaxed) != 0; }

  // A table: memory that the device reaches anyhow, and that may hold pointers to memory that it does not know. The
  // device gets it when a word for the device points into it.
  void add_table(uint64_t base, uint64_t bytes);
  void remove_table(uint64_t base) noexcept;
  // Are there tables that the device does not know?
  bool any_unsent() const noexcept { return unsent_.load(std::memory_order_relaxed) != 0; }
  // The tables that the device knows, from the `from`th on, in the order in which it got them; the order is valid until
  // one ends.
  std::vector<Range> sent_tables(size_t from) const;
  // Would a scan of them before each piece of work cost more than a comparison of all memory that the device does not
  // know yet, which is what the device's knowledge of that memory costs? That memory is wanted in this case.
  bool want_all_if_tables_cost_more() noexcept;

  // Arguments that the device is going to have, as they lie beside each other: memory that a word of them points to is
  // wanted, or two halves of a word in either order, or that ends where the word points to, or begins a little behind.
  void scan_words(std::span<const std::byte> arguments) noexcept {
    if (any() || any_unsent()) [[unlikely]]
      scan_arguments(arguments);
  }
  void scan_argument(uint64_t word) noexcept {
    if (may_mean(word)) [[unlikely]]
      want_near(word);
  }
  // Half of a word that the device is going to have at `place`, perhaps beside the half that was looked at before.
  void scan_half(uint64_t place, uint32_t half) noexcept {
    if (any()) [[unlikely]]
      join_halves(place, half);
  }
  // The same for data that may hold pointers, into memory or to its end. A false match costs memory at the server, and
  // time for each launch; so only pointers to multiples of kAlignmentInData count, as the first one into an allocation
  // is.
  void scan_data(std::span<const std::byte> data) noexcept {
    if (any()) [[unlikely]]
      scan_data_words(data);
  }
  // The same for a part of `memory`, which the program has at `address`: the words that bytes [offset, offset + bytes)
  // belong to.
  void scan_around(std::span<const std::byte> memory, uint64_t address, uint64_t offset, uint64_t bytes) noexcept {
    if (any()) [[unlikely]]
      scan_data_words(whole_words(memory, address, offset, bytes));
  }
  void scan_address(uint64_t address) noexcept {
    if (may_hold(address)) [[unlikely]]
      want(address);
  }

  bool wanted() const noexcept { return wanted_.load(std::memory_order_relaxed) != 0; }
  // Some wanted memory; it stays wanted until remove() or refuse().
  std::optional<Range> next_wanted() const noexcept;
  // The server cannot have it: it is not wanted again.
  void refuse(uint64_t base) noexcept;

  void ended(SessionEnd how) noexcept override;    // all is forgotten: no device will have it
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  static constexpr size_t kFormerMax = 4096;  // all are forgotten when there are more
  // A byte that is compared costs as much as so many that are looked through, and memory at the server besides. Few
  // tables are looked through in any case.
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
  // The range that holds the address, or ends there if no known range begins there.
  void want(uint64_t address) noexcept;
  // Or begins behind it, if it is in nothing that is known.
  void want_near(uint64_t address) noexcept;
  // False: nothing holds it.
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
  std::map<uint64_t, Entry> ranges_ GUARDED_BY(mutex_);     // by first byte; disjoint
  std::map<uint64_t, uint64_t> former_ GUARDED_BY(mutex_);  // base and bytes of memory that the device knew
  struct Table {
    uint64_t bytes = 0;
    bool told = false;
  };
  std::map<uint64_t, Table> tables_ GUARDED_BY(mutex_);  // by first byte; disjoint
  std::vector<Range> notified_ GUARDED_BY(mutex_);       // those of them that are
  uint64_t half_place_ GUARDED_BY(mutex_) = 0;           // of the half that was looked at last
  uint32_t half_ GUARDED_BY(mutex_) = 0;
  // All ranges and tables lie in [low_, high_), and a pointer to high_ may mean the range that ends there; 0 and 0:
  // there are none. Written under the lock. Relaxed: a thread that has a pointer got it after the range was added; each
  // of the two bounds then lets it pass, whatever ranges come and go meanwhile.
  std::atomic<uint64_t> low_{0}, high_{0};
  std::atomic<size_t> count_{0}, unsent_{0};    // of ranges_, of tables; the same holds
  uint64_t told_bytes_ GUARDED_BY(mutex_) = 0;  // of notified_
  std::atomic<uint64_t> unseen_bytes_{0};       // of unseen ranges; as count_
  std::atomic<size_t> wanted_{0};  // existing ranges; relaxed: a thread that sent a pointer has made its range wanted
};

}  // namespace gpuwire::client
