// Which program images are on their way to the server: two threads that sent the same one at once would mix its pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "client_stub/driver/state/session/session_part.hpp"

namespace gpuwire::client {

// Those of one session. Any thread.
class ImageUploads final : public SessionPart {
 public:
  explicit ImageUploads(SessionParts& parts) noexcept : SessionPart(parts) {}

  // Held while an image is offered and sent; its digest's first byte says which. Held while the server is waited for.
  std::mutex& lock_for(uint8_t digest_byte) noexcept { return locks_[digest_byte % locks_.size()]; }

  void ended(SessionEnd) noexcept override {}      // a thread that waits for the server gets the session's error
  void after_fork_in_child() noexcept override {}  // nobody there sends

 private:
  static constexpr size_t kUploadsMax = 8;  // at once; the server takes twice as many
  std::array<std::mutex, kUploadsMax> locks_;
};

}  // namespace gpuwire::client
