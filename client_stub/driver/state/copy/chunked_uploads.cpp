#include "client_stub/driver/state/copy/chunked_uploads.hpp"

#include <algorithm>

#include "client/session_sends.hpp"
#include "client_stub/driver/state/call/caller.hpp"

namespace gpuwire::client {
namespace {

uint64_t per_second(size_t bytes, std::chrono::nanoseconds took) noexcept {
  return std::max<uint64_t>(uint64_t(double(bytes) * 1e9 / double(std::max<int64_t>(took.count(), 1))), 1);
}

}  // namespace

Dedup dedup_wish(const char* value) noexcept {
  std::string_view text = value ? value : "";
  return text == "on" ? Dedup::on : text == "auto" ? Dedup::automatic : Dedup::off;
}

void ChunkedUploads::begin(const ServerFacts& facts) noexcept {
  if (wish_ == Dedup::off || facts.chunks == ServerFacts::Chunks::none) return;
  // On one machine there is no link whose bytes naming could save.
  if (wish_ == Dedup::automatic && facts.same_machine) return;
  keyed_ = facts.chunks == ServerFacts::Chunks::keyed;
  key_ = facts.chunk_key;
  possible_.store(true, std::memory_order_relaxed);
}

void ChunkedUploads::measured(size_t bytes, std::chrono::nanoseconds took, std::span<const std::byte> sample) noexcept {
  uint64_t now = per_second(bytes, took);
  // The best measurement counts: other work of the machine makes a link look slower than it is.
  uint64_t before = bytes_per_s_.load(std::memory_order_relaxed);
  bytes_per_s_.store(now > before ? now : before / 4 * 3 + now / 4, std::memory_order_relaxed);
  measure_digesting(sample);
  judge();
}

void ChunkedUploads::measure_digesting(std::span<const std::byte> sample) noexcept {
  // If the link has proved fast enough, the named pieces measure its speed.
  if (slow_.load(std::memory_order_relaxed) || sample.size() < wire::kChunkBytes) return;
  for (int times = 0; times < kDigestSamples; ++times) {
    auto begun = Clock::now();
    digest_of(sample.first(wire::kChunkBytes));
    uint64_t all = per_second(wire::kChunkBytes, Clock::now() - begun) * (1 + helpers_here(kDigestHelpersMax));
    if (all > digested_per_s_.load(std::memory_order_relaxed)) digested_per_s_.store(all, std::memory_order_relaxed);
  }
}

void ChunkedUploads::digest_chunks(std::span<const std::byte> bytes, std::span<digest::Digest> digests,
                                   bool helped) noexcept {
  auto digest_one = [&](size_t i) {
    const size_t at = i * wire::kChunkBytes;
    digests[i] = digest_of(bytes.subspan(at, std::min(wire::kChunkBytes, bytes.size() - at)));
  };
  if (helped && digesting_.try_lock()) {
    const MutexLock held(digesting_, std::adopt_lock);
    return helpers_.run(digests.size(), digest_one);
  }
  for (size_t i = 0; i < digests.size(); ++i) digest_one(i);
}

void ChunkedUploads::digested(size_t bytes, std::chrono::nanoseconds took) noexcept {
  uint64_t before = digested_per_s_.load(std::memory_order_relaxed), now = per_second(bytes, took);
  digested_per_s_.store(before ? before / 4 * 3 + now / 4 : now, std::memory_order_relaxed);
  judge();
}

void ChunkedUploads::named(size_t bytes, std::chrono::nanoseconds took) noexcept {
  named_per_s_.store(per_second(bytes, took), std::memory_order_relaxed);
  judge();
}

void ChunkedUploads::judge() noexcept {
  auto rate = double(bytes_per_s_.load(std::memory_order_relaxed));
  auto digests = double(digested_per_s_.load(std::memory_order_relaxed));
  auto named = double(named_per_s_.load(std::memory_order_relaxed));
  slow_.store(rate > 0 && rate * kWorthFactor < digests && (named == 0 || rate < named), std::memory_order_relaxed);
}

void ChunkedUploads::answered(size_t asked_bytes, size_t found_bytes) noexcept {
  traffic_.asked_bytes.fetch_add(asked_bytes, std::memory_order_relaxed);
  traffic_.found_bytes.fetch_add(found_bytes, std::memory_order_relaxed);
  size_t asked = trial_asked_.fetch_add(asked_bytes, std::memory_order_relaxed) + asked_bytes;
  size_t found = trial_found_.fetch_add(found_bytes, std::memory_order_relaxed) + found_bytes;
  if (asked < kTrialBytes) return;
  trial_asked_.store(0, std::memory_order_relaxed);
  trial_found_.store(0, std::memory_order_relaxed);
  if (found < asked / kFoundPart) expects_.store(false, std::memory_order_relaxed);
}

void ChunkedUploads::probe(const Caller& caller, std::span<const std::byte> bytes) noexcept {
  if (!keeps() || asks() || bytes.size() < wire::kChunkBytes) return;
  size_t unprobed = unprobed_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed) + bytes.size();
  if (unprobed < kProbeBytes || asking_.exchange(true, std::memory_order_relaxed)) return;
  unprobed_bytes_.store(0, std::memory_order_relaxed);
  digest::Digest digest = digest_of(bytes.first(wire::kChunkBytes));
  ask(caller, digest, 0);
}

void ChunkedUploads::time(const Caller& caller, std::span<const std::byte> sent) noexcept {
  if (!possible() || wish_ != Dedup::automatic) return;
  size_t untimed = untimed_bytes_.fetch_add(sent.size(), std::memory_order_relaxed) + sent.size();
  if (!rate_wanted() && untimed < kTimeBytes) return;
  if (asking_.exchange(true, std::memory_order_relaxed)) return;
  untimed_bytes_.store(0, std::memory_order_relaxed);
  measure_digesting(sent);
  ask(caller, {}, sent.size());
}

void ChunkedUploads::ask(const Caller& caller, wire::Bytes digest, size_t bytes) noexcept {
  uint64_t sequence = 0;
  CUresult error =
      send::post_find_chunk(*caller.session, caller.context, {.digest = digest}, &sequence, [&]() noexcept {
        MutexLock lock(mutex_);
        asked_ = {sequence, Clock::now(), bytes};
      });
  if (error) asking_.store(false, std::memory_order_relaxed);
}

void ChunkedUploads::found(uint64_t sequence, bool is_there) noexcept {
  std::optional<Asked> asked;
  {
    MutexLock lock(mutex_);
    if (!asked_ || asked_->sequence != sequence) return;
    asked.swap(asked_);
  }
  asking_.store(false, std::memory_order_relaxed);
  if (is_there) expects_.store(true, std::memory_order_relaxed);
  if (asked->bytes) measured(asked->bytes, Clock::now() - asked->since, {});
}

}  // namespace gpuwire::client
