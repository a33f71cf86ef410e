// The way back to a session's server: reaching it, logging in again, and proving that the session is this client's.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "client_stub/session/reconnection.hpp"
#include "client_stub/session/server_address.hpp"
#include "protocol/resume/proof.hpp"

namespace gpuwire::client {

class ServerReconnector final : public Reconnector {
 public:
  // `lanes`: the session may have some. They are beside TCP, so it stays there.
  ServerReconnector(ServerAddress address, const resume::SessionId& session, const resume::Secret& secret, bool lanes)
      : address_(std::move(address)), session_(session), secret_(secret), lanes_(lanes) {}

  tl::expected<Reconnected, ReconnectFailure> reconnect(uint64_t received) noexcept override;
  tl::expected<std::unique_ptr<transport::Transport>, ReconnectFailure> open_lane(
      const resume::Lane& lane) noexcept override;

 private:
  // The way in; `claim` knows neither session nor secret.
  tl::expected<Reconnected, ReconnectFailure> enter_again(uint64_t attempt, uint64_t received,
                                                          std::optional<resume::Lane> lane);

  const ServerAddress address_;
  const resume::SessionId session_;
  const resume::Secret secret_;
  const bool lanes_;
  uint64_t attempts_ = 0;  // by who reconnects
  std::atomic<uint64_t> carrying_{
      0};  // the attempt that the present connection came of; a lane for another one is refused, so relaxed
};

}  // namespace gpuwire::client
