// The way back to a session's server: reaching it, logging in again, and proving that the session is this client's.
#pragma once

#include <string>

#include "client_stub/session/reconnection.hpp"
#include "client_stub/session/server_address.hpp"
#include "protocol/resume/proof.hpp"

namespace gpuwire::client {

class ServerReconnector final : public Reconnector {
 public:
  ServerReconnector(ServerAddress address, const resume::SessionId& session, const resume::Secret& secret)
      : address_(std::move(address)), session_(session), secret_(secret) {}

  tl::expected<Reconnected, ReconnectFailure> reconnect(uint64_t received) noexcept override;

 private:
  const ServerAddress address_;
  const resume::SessionId session_;
  const resume::Secret secret_;
  uint64_t attempts_ = 0;
};

}  // namespace gpuwire::client
