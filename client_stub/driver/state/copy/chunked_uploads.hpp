// Whether large copies to the device are worth naming by digests before their bytes are sent, because the server may
// have kept them from an earlier one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "client_stub/session/session.hpp"
#include "protocol/digest/blake3.hpp"
#include "protocol/threads/mutex.hpp"
#include "protocol/threads/polling.hpp"
#include "protocol/threads/parallel.hpp"
#include "protocol/wire/fields.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

struct Caller;

// GPUWIRE_DEDUP. automatic: naming is on while the measured link is slower than digesting and the server has the named
// chunks.
enum class Dedup : uint8_t { automatic, on, off };
Dedup dedup_wish(const char* value) noexcept;

// The requirements for a copy to take part.
inline constexpr size_t kChunkedCopyBytesMin = 1u << 20;
// The first piece of the first large copy measures the link.
inline constexpr size_t kRatePieceBytes = 8u << 20;
// A copy of this size measures the link again.
inline constexpr size_t kRateCopyBytesMin = 32u << 20;
// Among copies that nobody waits for, one is timed after this many bytes.
inline constexpr size_t kTimeBytes = 64u << 20;
// The number of times that a chunk is digested to measure the speed. The best time counts, since a thread may lose its
// core.
inline constexpr int kDigestSamples = 3;
// If the server is expected to have nothing, one chunk is asked for after this many bytes.
inline constexpr size_t kProbeBytes = 16u << 20;
// The number of bytes that are asked for before the share of found bytes decides. Below a part of it, naming stops.
inline constexpr size_t kTrialBytes = 4u << 20;
inline constexpr unsigned kFoundPart = 8;
// Digesting must be this much faster than the link: both ends digest, and the program needs cores itself.
inline constexpr double kWorthFactor = 2;
// Threads that digest beside the caller's, in a copy large enough; of all copies of a session one at a time has them.
inline constexpr unsigned kDigestHelpersMax = 7;
inline constexpr size_t kHelpedBytesMin = 8u << 20;

// Counters for --stats; relaxed, read when the program ends.
struct ChunkTraffic {
  std::atomic<uint64_t> asked_bytes{0}, found_bytes{0};
};

// Any thread. All atomics are hints to each other, each right by itself: relaxed.
class ChunkedUploads {
 public:
  using Clock = std::chrono::steady_clock;

  explicit ChunkedUploads(Dedup wish) : wish_(wish) {}

  // Once, before the first copy: the server's offer.
  void begin(const ServerFacts& facts) noexcept;

  // Is there anything to think about at all?
  bool possible() const noexcept { return possible_.load(std::memory_order_relaxed); }
  // The server is to store the data of copies.
  bool keeps() const noexcept { return possible() && (wish_ == Dedup::on || slow_.load(std::memory_order_relaxed)); }
  // Bytes are to be named before they are sent.
  bool asks() const noexcept { return keeps() && (wish_ == Dedup::on || expects_.load(std::memory_order_relaxed)); }
  // The link has not been measured, and a measurement would decide something.
  bool rate_wanted() const noexcept {
    return possible() && wish_ == Dedup::automatic && bytes_per_s_.load(std::memory_order_relaxed) == 0;
  }

  // These bytes took this long to reach the server. `sample`: some of the bytes, on which digesting is measured, or
  // none.
  void measured(size_t bytes, std::chrono::nanoseconds took, std::span<const std::byte> sample) noexcept;
  // These bytes took this long to digest. For named bytes that the server had: this long to reach the device.
  void digested(size_t bytes, std::chrono::nanoseconds took) noexcept;
  void named(size_t bytes, std::chrono::nanoseconds took) noexcept;
  // The server had this many of the named bytes.
  void answered(size_t asked_bytes, size_t found_bytes) noexcept;

  // Before bytes are sent without being asked for: may ask for one chunk of them, and after it: may ask how long they
  // take. Nobody waits for the answers, which come by found().
  void probe(const Caller& caller, std::span<const std::byte> bytes) noexcept;
  void time(const Caller& caller, std::span<const std::byte> sent) noexcept;
  // A notice.
  void found(uint64_t sequence, bool is_there) noexcept;

  digest::Digest digest_of(std::span<const std::byte> chunk) const noexcept {
    return digest::blake3(chunk, keyed_ ? &key_ : nullptr);
  }
  // Digests all chunks of `bytes`, in order; `helped`: with the helpers, if no other copy has them.
  void digest_chunks(std::span<const std::byte> bytes, std::span<digest::Digest> digests, bool helped) noexcept;
  ChunkTraffic& traffic() noexcept { return traffic_; }

 private:
  void measure_digesting(std::span<const std::byte> sample) noexcept;
  void judge() noexcept;
  void ask(const Caller& caller, wire::Bytes digest, size_t bytes) noexcept;

  struct Asked {
    uint64_t sequence = 0;
    Clock::time_point since;
    // The bytes that it stands behind; 0: it asks for a chunk.
    size_t bytes = 0;
  };

  const Dedup wish_;
  // Set by begin().
  bool keyed_ = false;
  digest::Key key_{};
  std::atomic<bool> possible_{false};
  // The link is slower than digesting.
  std::atomic<bool> slow_{false};
  // The server has the named chunks.
  std::atomic<bool> expects_{true};
  // 0: not known.
  std::atomic<uint64_t> bytes_per_s_{0}, digested_per_s_{0}, named_per_s_{0};
  std::atomic<size_t> trial_asked_{0}, trial_found_{0};
  // A question is on its way, or about to be.
  std::atomic<bool> asking_{false};
  // Since the last probe.
  std::atomic<size_t> unprobed_bytes_{kProbeBytes};
  // Since the last measurement.
  std::atomic<size_t> untimed_bytes_{0};
  ChunkTraffic traffic_;

  // Its holder owns the helpers; under it only their lock is taken.
  Mutex digesting_;
  Parallel helpers_ GUARDED_BY(digesting_){helpers_here(kDigestHelpersMax), kPollAlone};

  // A leaf; taken under the session's send lock, too.
  Mutex mutex_;
  std::optional<Asked> asked_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
