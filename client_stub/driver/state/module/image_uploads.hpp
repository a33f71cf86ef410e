// The locks of program images in transit to the server: two threads that sent the same image at once would mix its
// pieces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "client_stub/driver/state/session/session_part.hpp"

namespace gpuwire::client {

// The uploads of one session. Thread: any.
class ImageUploads final : public SessionPart {
 public:
  explicit ImageUploads(SessionParts& parts) noexcept : SessionPart(parts) {}

  // The lock that a thread holds while it offers and sends an image, and waits for the server; the digest's first byte
  // selects it.
  std::mutex& lock_for(uint8_t digest_byte) noexcept { return locks_[digest_byte % locks_.size()]; }

  void ended(SessionEnd) noexcept override {}      // a thread that waits for the server gets the session's error
  void after_fork_in_child() noexcept override {}  // no thread of a child sends

 private:
  // Concurrent uploads; the server accepts twice as many.
  static constexpr size_t kUploadsMax = 8;
  std::array<std::mutex, kUploadsMax> locks_;
};

}  // namespace gpuwire::client
