// The frame that a client may send before it is authenticated (two, if a challenge lies between them), and the frames
// that answer it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <capnp/common.h>

#include "protocol/wire/frame.hpp"
#include "protocol/wire/limits.hpp"
#include "server/ipc/message.hpp"

namespace gpuwire::server {

// A client's description of itself. Texts are cut to kLoginTextBytesMax and have no control characters; the token is
// unchanged.
struct LoginFrame {
  std::string token;
  // In place of the token: its id, if a challenge will follow.
  std::string token_name;
  // With it: kTokenNonceBytes.
  std::string token_nonce;
  // The token in the second frame.
  std::string sealed_token;
  uint32_t gpus = 0;
  uint64_t memory_bytes = 0;
  std::string program, host;
  uint32_t process_id = 0;
  // The session to resume: the bytes of an identity, or none.
  std::string resume;
  // The ticket of a place in the queue, likewise.
  std::string ticket;
  // Not empty: a query, and no session.
  std::string query;
  std::string gpu_type;
};

// Collects exactly one login frame. The owner reads only into space(), because the bytes after a client's login are for
// the worker.
class LoginFrameReader {
 public:
  enum class State : uint8_t { incomplete, complete, fault };

  // Returns the space for the next bytes; not empty while the frame is incomplete.
  std::span<std::byte> space();
  State filled(size_t bytes);

  size_t received() const { return received_; }
  const LoginFrame& frame() const { return frame_; }
  // One phrase.
  const std::string& fault() const { return fault_; }

 private:
  State check_header();
  State read_message();
  State set_fault(std::string reason);

  wire::FrameHeader header_;
  std::array<capnp::word, wire::kLoginBytesMax / sizeof(capnp::word)> message_{};
  size_t received_ = 0, wanted_ = sizeof(wire::FrameHeader);
  LoginFrame frame_;
  std::string fault_;
};

// Return complete frames (LoginAnswer), as sent on the wire.
std::string challenge_frame(std::span<const uint8_t> nonce, std::span<const uint8_t> proof);
// `ends`: as LoginAnswer has it.
std::string admitted_frame(int64_t ends_unix_s);
std::string told_frame(const ipc::Told& told);
std::string queued_frame(const ipc::Queued& queued);
std::string refused_frame(const std::string& reason);

}  // namespace gpuwire::server
