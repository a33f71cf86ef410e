// Which memory of a process the fabric may use where it is: memory that stays (pinned by the program, or the worker's
// staging) is offered, registered with the first copy out of it or into it, and stays so until its owner takes it back.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <utility>

struct GpuwireRdmaRegion;

namespace gpuwire::transport {

// What is registered together at most: each page is locked, and each registration is an entry in the cards' tables.
// Beyond it bytes go through the windows.
inline constexpr uint64_t kRegisteredBytesMax = 16ull << 30;
inline constexpr size_t kRegisteredRangesMax = 1024;
// Shorter memory is not worth an entry: no part of bulk that goes in place fits into it (link::LinkLimits).
inline constexpr size_t kOfferedBytesMin = 1u << 20;
// Ranges that are offered at most; others go through the windows.
inline constexpr size_t kOfferedRangesMax = 1u << 16;

// Any thread; one leaf lock, which is not held while memory is registered.
class RdmaMemory {
 public:
  // How the fabric does it. `add`: null: refused.
  struct Registrar {
    std::function<GpuwireRdmaRegion*(std::byte* memory, size_t bytes)> add;
    std::function<void(GpuwireRdmaRegion*)> remove;
  };
  explicit RdmaMemory(uint64_t bytes_max = kRegisteredBytesMax, size_t ranges_max = kRegisteredRangesMax)
      : bytes_max_(bytes_max), ranges_max_(ranges_max) {}
  ~RdmaMemory();
  RdmaMemory(const RdmaMemory&) = delete;
  RdmaMemory& operator=(const RdmaMemory&) = delete;

  // --- the fabric's: once each, in turns
  void begin(Registrar registrar);
  // Nothing is used any more, but for what was left for good.
  void end() noexcept;

  // --- the owner's
  // Stays as it is until forget(). What overlaps with memory that is offered, or is too short, is not.
  void offer(std::byte* base, size_t bytes) noexcept;
  // The owner has the memory back when this returns: waits until nobody uses it, `timeout` at most. False: a device may
  // still use it, so it stays registered for good, and the owner must not give it back to the system.
  bool forget(const std::byte* base, std::chrono::nanoseconds timeout) noexcept;

  // --- who copies
  // Is all of it in one piece of memory that is offered, and not refused?
  bool offers(std::span<const std::byte> memory) const noexcept;
  // Keeps a registration as long as it lives.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)), base_(other.base_), region_(other.region_) {}
    Use& operator=(Use&& other) noexcept {
      std::swap(memory_, other.memory_);
      std::swap(base_, other.base_);
      std::swap(region_, other.region_);
      return *this;
    }
    ~Use() {
      if (memory_) memory_->used(base_);
    }
    explicit operator bool() const { return memory_ != nullptr; }
    GpuwireRdmaRegion* region() const { return region_; }
    // Nobody will ever know whether it is over.
    void leave() noexcept { memory_ = nullptr; }

   private:
    friend class RdmaMemory;
    Use(RdmaMemory* memory, const std::byte* base, GpuwireRdmaRegion* region)
        : memory_(memory), base_(base), region_(region) {}
    RdmaMemory* memory_ = nullptr;
    const std::byte* base_ = nullptr;
    GpuwireRdmaRegion* region_ = nullptr;
  };
  // Registers it if nobody has, which may take as long as pinning takes. Empty: it is not offered, or the system or a
  // bound refuses; then it is asked again when another registration has gone.
  Use use(std::span<const std::byte> memory) noexcept;

  struct Figures {
    uint64_t registered_bytes = 0;  // now
    uint64_t registrations = 0;     // that were made, all in all
    uint64_t refused = 0;           // ranges that could not be registered, all in all
  };
  Figures figures() const noexcept;
  uint64_t refused() const noexcept { return refused_.load(std::memory_order_relaxed); }  // takes no lock

 private:
  enum class State : uint8_t { offered, changing, registered, refused };
  struct Range {
    std::byte* base = nullptr;
    size_t bytes = 0;
    State state = State::offered;  // changing: a thread registers it, without the lock
    bool leaving = false;          // its owner waits for it
    unsigned uses = 0;
    GpuwireRdmaRegion* region = nullptr;
  };
  using Ranges = std::map<const std::byte*, Range>;
  // With the lock; end(): none holds all of it.
  Ranges::const_iterator around(std::span<const std::byte> memory) const noexcept;
  void used(const std::byte* base) noexcept;

  const uint64_t bytes_max_;
  const size_t ranges_max_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Registrar registrar_;  // empty: no fabric. Called without the lock: it is replaced only while nobody uses anything
  Ranges ranges_;        // disjoint, by base
  uint64_t registered_bytes_ = 0, registrations_ = 0;
  std::atomic<uint64_t> refused_{0};  // relaxed: a number to read; written under the mutex
  size_t registered_ranges_ = 0;
};

}  // namespace gpuwire::transport
