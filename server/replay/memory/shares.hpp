// Memory and pools that processes of one tenant share. Natively they pass a file descriptor; here the client passes a
// descriptor with a random token (client_stub/driver/memory/shares.hpp), and the driver's own descriptor waits at the
// broker for a session that shows the token.
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
  // Has a copy of `descriptor` kept until withdraw() or the end of this session. False: there are too many, or the
  // broker does not answer.
  virtual bool publish(const ShareToken& token, ShareKind kind, const std::string& tenant, int descriptor) = 0;
  // A descriptor, the caller's from now on. -1: no such token, or another tenant's.
  virtual int claim(const ShareToken& token, ShareKind kind, const std::string& tenant) = 0;
  virtual void withdraw(const ShareToken& token) = 0;
};

}  // namespace gpuwire::server
