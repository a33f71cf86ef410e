// Relay lies between the two ends of a socket connection: it passes on pieces, and cuts or swallows at given positions,
// whatever the bytes are.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace gpuwire::simulation {

class Relay {
 public:
  struct Options {
    uint64_t seed = 1;
    size_t piece_bytes_max = 0;  // 0: no limit
    // After so many bytes from first to second, or second to first, both directions are cut: bytes still in the relay
    // never arrive. ~0: never.
    uint64_t cut[2] = {~0ull, ~0ull};
    // After so many bytes, all further bytes and ends of streams are dropped, in both directions. ~0: never.
    uint64_t swallow[2] = {~0ull, ~0ull};
    std::function<void()> was_cut = {};  // called by the thread that has cut
  };
  // `ends`: set to two stream sockets of the caller's, which the relay connects. Returns null if no sockets are
  // available.
  static std::unique_ptr<Relay> between(int (&ends)[2], Options options);
  // Waits until both ends are closed.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  // Whether both ends are closed.
  bool over() const { return carrying_.load(std::memory_order_relaxed) == 0; }

 private:
  Relay(int first, int second, Options options) : options_(std::move(options)), sides_{first, second} {}
  void carry(unsigned direction);
  void cut();

  const Options options_;
  const int sides_[2];
  std::atomic<bool> swallows_{false};
  std::atomic<unsigned> carrying_{2};  // relaxed: the threads are joined before any other use
  std::thread threads_[2];
};

}  // namespace gpuwire::simulation
