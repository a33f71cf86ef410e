// Reconnects to a session's server: connects, logs in again, and proves that the session is this client's.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client_stub/session/address_rotation.hpp"
#include "client_stub/session/login.hpp"
#include "client_stub/session/reconnection.hpp"
#include "client_stub/session/server_address.hpp"
#include "protocol/resume/proof.hpp"
#include "protocol/threads/mutex.hpp"
#include "protocol/transport/own_descriptor.hpp"
#include "protocol/transport/tcp.hpp"

namespace gpuwire::client {

class ServerReconnector final : public Reconnector {
 public:
  using Endpoint = transport::Endpoint;
  using Resolve = std::function<tl::expected<std::vector<Endpoint>, std::string>(const Endpoint& name)>;

  // `lanes`: the session may have lanes, which need TCP, so the session stays on TCP. `peer` is the peer of the
  // session's first connection (Transport::peer()). `resolve` resolves the server's name. `entry` is the identity with
  // which the session began; null: none.
  ServerReconnector(ServerAddress address, const resume::SessionId& session, const resume::Secret& secret, bool lanes,
                    std::string_view peer, Resolve resolve = transport::resolve,
                    std::shared_ptr<const Entry> entry = nullptr);

  // Makes one attempt, at the first address in turn that accepts a connection. A refusal there ends the session only if
  // no other address is left.
  tl::expected<Reconnected, ReconnectFailure> reconnect(uint64_t received) noexcept override;
  tl::expected<std::unique_ptr<transport::Transport>, ReconnectFailure> open_lane(
      const resume::Lane& lane) noexcept override;

 private:
  using Connected = tl::expected<transport::ConnectedFirst, std::string>;

  // Connects to the first address in turn that accepts a connection; `order` gets the tried addresses.
  Connected connect_in_turn(std::vector<Endpoint>& order);
  Connected connect_to_carrier();
  tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> connect_here();
  // Returns the identity for resuming over this connection.
  tl::expected<Entry, SessionStartError> plan(const transport::Transport& connection) const;
  // Logs in and resumes the session. A failure without `again` is a refusal.
  tl::expected<Reconnected, ReconnectFailure> enter_again(std::unique_ptr<transport::Transport> connection,
                                                          uint64_t attempt, uint64_t received,
                                                          std::optional<resume::Lane> lane);
  tl::expected<Reconnected, ReconnectFailure> enter_in_turn(uint64_t received);
  tl::unexpected<ReconnectFailure> unless_exhausted(ReconnectFailure failure) const REQUIRES(mutex_);

  const ServerAddress address_;
  const resume::SessionId session_;
  const resume::Secret secret_;
  const bool lanes_;
  const Resolve resolve_;
  const std::shared_ptr<const Entry> entry_;
  // The folder of the server's socket, if the server is on this machine.
  transport::OwnDescriptor folder_;
  // A leaf.
  Mutex mutex_;
  AddressRotation rotation_ GUARDED_BY(mutex_);
  // Used by the reconnecting thread.
  uint64_t attempts_ = 0;
  // Since the session was last carried.
  std::optional<ReconnectFailure> refusal_;
  // The attempt that the present connection came of; a lane for another one is refused, so relaxed.
  std::atomic<uint64_t> carrying_{0};
};

}  // namespace gpuwire::client
