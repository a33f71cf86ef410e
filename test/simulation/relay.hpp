// What lies between the two ends of a connection by sockets: it hands on pieces of what comes, and cuts or swallows
// where it is told, whatever the bytes are.
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
    // After so many bytes in the direction first to second, or second to first, both are cut: what the relay has not
    // handed on by then never arrives. ~0: never.
    uint64_t cut[2] = {~0ull, ~0ull};
    // After so many, all that comes vanishes, in both directions, as do ends. ~0: never.
    uint64_t swallow[2] = {~0ull, ~0ull};
    std::function<void()> was_cut = {};  // by the thread that has cut
  };
  // `ends`: two stream sockets, the caller's, connected by the relay. Null: no sockets are to be had.
  static std::unique_ptr<Relay> between(int (&ends)[2], Options options);
  // Waits until both ends are closed.
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  // Both ends are closed.
  bool over() const { return carrying_.load(std::memory_order_relaxed) == 0; }

 private:
  Relay(int first, int second, Options options) : options_(std::move(options)), sides_{first, second} {}
  void carry(unsigned direction);
  void cut();

  const Options options_;
  const int sides_[2];
  std::atomic<bool> swallows_{false};
  std::atomic<unsigned> carrying_{2};  // relaxed: the threads are joined before anything else is done
  std::thread threads_[2];
};

}  // namespace gpuwire::simulation
