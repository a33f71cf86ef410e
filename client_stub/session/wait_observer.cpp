#include "client_stub/session/wait_observer.hpp"

namespace gpuwire::client {

constinit std::atomic<WaitObserver> g_wait_observer{nullptr};

uint64_t note_wait(WaitKind kind, std::chrono::steady_clock::time_point begun) noexcept {
  auto ns = [](std::chrono::steady_clock::time_point time) {
    return uint64_t(std::chrono::nanoseconds(time.time_since_epoch()).count());
  };
  const uint64_t from = ns(begun), to = ns(std::chrono::steady_clock::now());
  if (WaitObserver observer = g_wait_observer.load(std::memory_order_relaxed)) [[unlikely]]
    observer(kind, from, to);
  return to - from;
}

}  // namespace gpuwire::client
