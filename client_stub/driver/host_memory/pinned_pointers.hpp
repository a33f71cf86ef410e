// Pinned memory that the device does not know yet, and which of it the device has been given a pointer to. Under
// unified addressing a kernel may use any pinned memory at its host address, so whatever travels to the device is
// looked through for such addresses.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>

#include "client_stub/driver/session/session_part.hpp"

namespace gpuwire::client {

// Any thread; one leaf lock. A session without such memory pays one atomic load for each look.
class PinnedPointers final : public SessionPart {
 public:
  explicit PinnedPointers(SessionParts& parts) noexcept : SessionPart(parts) {}

  static constexpr uint64_t kAlignmentInData = 16;

  struct Range {
    uint64_t base = 0, bytes = 0;
  };

  // Memory was pinned, and the device does not know it. Where memory was that it knew, it may still have pointers to,
  // so that is wanted.
  void add(uint64_t base, uint64_t bytes);
  // Memory that the device knew is pinned no more.
  void note_former(uint64_t base, uint64_t bytes) noexcept;
  // The device knows it now, or it is pinned no more.
  void remove(uint64_t base) noexcept;
  bool contains(uint64_t base) const noexcept;
  bool any() const noexcept { return high_.load(std::memory_order_relaxed) != 0; }

  // Arguments that the device is going to have: memory that a word of them points to is wanted. Words are looked at
  // where a pointer would be aligned.
  void look_through(std::span<const std::byte> arguments) noexcept {
    if (any()) [[unlikely]]
      look_closely(arguments, 1);
  }
  // The same for data that may hold pointers. What only looks like one costs memory at the server, and time for each
  // launch; so those count that point to multiples of kAlignmentInData, as the first one into an allocation does.
  void look_through_data(std::span<const std::byte> data) noexcept {
    if (any()) [[unlikely]]
      look_closely(data, kAlignmentInData);
  }
  // The same for a part of `memory`, which the program has at `address`: the words that bytes [offset, offset + bytes)
  // belong to.
  void look_around(std::span<const std::byte> memory, uint64_t address, uint64_t offset, uint64_t bytes) noexcept {
    if (any()) [[unlikely]]
      look_closely(whole_words(memory, address, offset, bytes), kAlignmentInData);
  }
  void look_at(uint64_t address) noexcept {
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

  enum class State : uint8_t { unseen, wanted, refused };
  struct Entry {
    uint64_t bytes = 0;
    State state = State::unseen;
  };
  bool may_hold(uint64_t address) const noexcept {
    return address >= low_.load(std::memory_order_relaxed) && address < high_.load(std::memory_order_relaxed);
  }
  static std::span<const std::byte> whole_words(std::span<const std::byte> memory, uint64_t address, uint64_t offset,
                                                uint64_t bytes) noexcept;
  void look_closely(std::span<const std::byte> data, uint64_t alignment) noexcept;
  void want(uint64_t address) noexcept;
  void set(Entry& entry, State state) noexcept;
  void note_bounds() noexcept;

  mutable std::mutex mutex_;
  std::map<uint64_t, Entry> ranges_;     // by first byte; disjoint
  std::map<uint64_t, uint64_t> former_;  // base and bytes of memory that the device knew
  // All ranges lie in [low_, high_); 0 and 0: there are none. Written under the lock. Relaxed: a thread that has a
  // pointer got it after the range was added; each of the two bounds then lets it pass, whatever ranges come and go
  // meanwhile.
  std::atomic<uint64_t> low_{0}, high_{0};
  std::atomic<size_t> wanted_{0};  // ranges that are; relaxed: who sent a pointer has itself made its range wanted
};

}  // namespace gpuwire::client
