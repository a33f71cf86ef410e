#include "client_stub/session/server_reconnector.hpp"

#include <exception>

#include "client_stub/session/handshake.hpp"
#include "client_stub/session/login.hpp"
#include "protocol/resume/exchange.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

namespace {

constexpr std::chrono::milliseconds kAnswerTimeout{wire::kHandshakeTimeoutMs};

tl::unexpected<ReconnectFailure> failed(const SessionStartError& why) {
  return tl::unexpected<ReconnectFailure>({!why.refused, why.result, why.cause});
}

}  // namespace

tl::expected<Reconnected, ReconnectFailure> ServerReconnector::enter_again(uint64_t attempt, uint64_t received,
                                                                           std::optional<resume::Lane> lane) {
  auto connection = reach(address_);
  if (!connection) return failed(connection.error());
  // Identities are read anew: a token that was exchanged meanwhile counts.
  auto entry = plan_entry(address_, **connection, SessionKind::program);
  if (!entry) return failed(entry.error());
  entry->resume.assign(session_.begin(), session_.end());
  if (lanes_) entry->rdma = Entry::Rdma::no;
  auto entered = enter(std::move(*connection), *entry, [](const std::string&) {});
  if (!entered) return failed(entered.error());
  auto end = transport::own_end_of((*entered)->descriptor());
  auto server_received =
      resume::ask(**entered, {session_, secret_, attempt, received, end.address, end.machine, lane}, kAnswerTimeout);
  if (!server_received) {
    auto& why = server_received.error();
    return tl::unexpected<ReconnectFailure>(
        {!why.refused, CUDA_ERROR_DEVICE_UNAVAILABLE, (why.refused ? "the server refuses: " : "") + why.cause});
  }
  return Reconnected{std::move(*entered), *server_received};
}

tl::expected<Reconnected, ReconnectFailure> ServerReconnector::reconnect(uint64_t received) noexcept try {
  auto again = enter_again(++attempts_, received, std::nullopt);
  if (again) carrying_.store(attempts_, std::memory_order_relaxed);
  return again;
} catch (const std::exception& error) {
  return tl::unexpected<ReconnectFailure>({true, CUDA_ERROR_OUT_OF_MEMORY, error.what()});
}

tl::expected<std::unique_ptr<transport::Transport>, ReconnectFailure> ServerReconnector::open_lane(
    const resume::Lane& lane) noexcept try {
  auto entered = enter_again(carrying_.load(std::memory_order_relaxed), 0, lane);
  if (!entered) return tl::unexpected(std::move(entered.error()));
  transport::notice_lost_peer(entered->transport->descriptor(), transport::LostPeer::replaceable);
  return std::move(entered->transport);
} catch (const std::exception& error) {
  return tl::unexpected<ReconnectFailure>({true, CUDA_ERROR_OUT_OF_MEMORY, error.what()});
}

}  // namespace gpuwire::client
