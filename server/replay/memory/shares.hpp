// Memory and pools that processes of one tenant share. Natively they pass a file descriptor. Here the client passes a
// descriptor with a random token (client_stub/driver/state/memory/shares.hpp), and the broker holds the driver's
// descriptor for a session that presents the token.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace gpuwire::server {

using ShareToken = std::array<uint8_t, 16>;

enum class ShareKind : uint32_t { memory = 1, pool = 2, ipc_memory = 3, ipc_event = 4 };

// Implemented by the worker, which asks the broker. Executor thread only; each call waits for the broker, with a bound.
class ShareExchange {
 public:
  virtual ~ShareExchange() = default;
  // Stores a copy of `descriptor` until withdraw() or the end of this session. Returns false if there are too many, or
  // the broker does not answer.
  virtual bool publish(const ShareToken& token, ShareKind kind, const std::string& tenant, int descriptor) = 0;
  // Returns a descriptor, which the caller owns; -1 if there is no such token, or it belongs to another tenant.
  virtual int claim(const ShareToken& token, ShareKind kind, const std::string& tenant) = 0;
  virtual void withdraw(const ShareToken& token) = 0;
};

}  // namespace gpuwire::server
