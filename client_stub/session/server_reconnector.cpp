#include "client_stub/session/server_reconnector.hpp"

#include <fcntl.h>

#include <exception>

#include "client_stub/session/handshake.hpp"
#include "client_stub/session/login.hpp"
#include "protocol/resume/exchange.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/unix.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

namespace {

// CUDA_ERROR_SYSTEM_NOT_READY would mean that CUDA could not begin: a program whose session has begun has lost its
// device, whatever keeps the session from going on (docs/differences.md).
tl::unexpected<ReconnectFailure> failed(const SessionStartError& why) {
  return tl::unexpected<ReconnectFailure>({!why.refused, CUDA_ERROR_DEVICE_UNAVAILABLE, why.cause});
}

std::optional<transport::Endpoint> endpoint_of(std::string_view peer) {
  auto endpoint = transport::parse_endpoint(peer);
  return endpoint ? std::optional(std::move(*endpoint)) : std::nullopt;
}

int open_folder_of(const std::string& path) {
  return ::open(path.substr(0, path.rfind('/') + 1).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
}

}  // namespace

ServerReconnector::ServerReconnector(ServerAddress address, const resume::SessionId& session,
                                     const resume::Secret& secret, bool lanes, std::string_view peer, Resolve resolve,
                                     std::shared_ptr<const Entry> entry)
    : address_(std::move(address)),
      session_(session),
      secret_(secret),
      lanes_(lanes),
      resolve_(std::move(resolve)),
      entry_(std::move(entry)),
      folder_(address_.kind == ServerAddress::Kind::local ? open_folder_of(address_.path) : -1),
      rotation_(address_.kind == ServerAddress::Kind::local ? std::nullopt : endpoint_of(peer)) {}

ServerReconnector::Connected ServerReconnector::connect_in_turn(std::vector<Endpoint>& order) {
  auto found = resolve_(address_.endpoint);
  {
    MutexLock lock(mutex_);
    // An unreachable resolver does not invalidate known addresses.
    order = rotation_.in_turn(found ? *found : std::vector<Endpoint>());
  }
  if (order.empty()) return tl::unexpected(std::move(found.error()));
  auto connected = transport::connect_first(order, kConnectTimeout);
  MutexLock lock(mutex_);
  for (size_t i = 0; i < (connected ? connected->index : order.size()); ++i) rotation_.failed(order[i]);
  return connected;
}

ServerReconnector::Connected ServerReconnector::connect_to_carrier() {
  std::optional<Endpoint> carrier;
  {
    MutexLock lock(mutex_);
    carrier = rotation_.carrier();
  }
  if (!carrier) return tl::unexpected(std::string("the server's address is not known"));
  return transport::connect_first({*carrier}, kConnectTimeout);
}

// The program may have changed its root folder since the session began.
tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> ServerReconnector::connect_here() {
  auto connection = reach(address_);
  if (connection || !folder_.is_ours()) return connection;
  auto beside = transport::connect_unix_in(folder_.get(), address_.path.substr(address_.path.rfind('/') + 1));
  if (beside) return std::move(*beside);
  return connection;
}

// The identity is read again, so that a token that was replaced meanwhile is used. The program may have given up the
// means to read the files: its user, its root folder or its environment. Then the identity of the session's begin is
// used.
tl::expected<Entry, SessionStartError> ServerReconnector::plan(const transport::Transport& connection) const {
  auto entry = plan_entry(address_, connection, SessionKind::program);
  if (!entry_) return entry;
  if (!entry || (entry_->secrets->name_anybody() && !entry->secrets->name_anybody())) return *entry_;
  entry->encrypted = entry_->encrypted;
  entry->shared_memory = entry_->shared_memory;
  entry->rdma = entry_->rdma;
  return entry;
}

tl::expected<Reconnected, ReconnectFailure> ServerReconnector::enter_again(
    std::unique_ptr<transport::Transport> connection, uint64_t attempt, uint64_t received,
    std::optional<resume::Lane> lane) {
  auto entry = plan(*connection);
  if (!entry) return failed(entry.error());
  entry->resume.assign(session_.begin(), session_.end());
  if (lanes_) entry->rdma = Entry::Rdma::no;
  auto entered = enter(std::move(connection), *entry, [](const std::string&) {});
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

tl::expected<Reconnected, ReconnectFailure> ServerReconnector::enter_in_turn(uint64_t received) {
  if (address_.kind == ServerAddress::Kind::local) {
    auto connection = connect_here();
    if (!connection) return failed(connection.error());
    return enter_again(std::move(*connection), attempts_, received, std::nullopt);
  }
  std::vector<Endpoint> order;
  auto connected = connect_in_turn(order);
  if (!connected) {
    MutexLock lock(mutex_);
    return unless_exhausted({true, CUDA_ERROR_DEVICE_UNAVAILABLE, std::move(connected.error())});
  }
  auto entered = enter_again(std::move(connected->transport), attempts_, received, std::nullopt);
  const Endpoint& address = order[connected->index];
  MutexLock lock(mutex_);
  if (entered) {
    rotation_.carries(address);
    refusal_.reset();
    return entered;
  }
  if (entered.error().again) {
    rotation_.failed(address);
  } else {
    rotation_.refused(address);
    if (!refusal_ || address == rotation_.carrier()) refusal_ = entered.error();
  }
  return unless_exhausted(std::move(entered.error()));
}

// The refusal of the session's own server tells the user more than the later failure of another address.
tl::unexpected<ReconnectFailure> ServerReconnector::unless_exhausted(ReconnectFailure failure) const {
  if (rotation_.exhausted() && refusal_) return tl::unexpected(*refusal_);
  failure.again = true;
  return tl::unexpected(std::move(failure));
}

tl::expected<Reconnected, ReconnectFailure> ServerReconnector::reconnect(uint64_t received) noexcept try {
  ++attempts_;
  auto again = enter_in_turn(received);
  if (again) carrying_.store(attempts_, std::memory_order_relaxed);
  return again;
} catch (const std::exception& error) {
  return tl::unexpected<ReconnectFailure>({true, CUDA_ERROR_OUT_OF_MEMORY, error.what()});
}

tl::expected<std::unique_ptr<transport::Transport>, ReconnectFailure> ServerReconnector::open_lane(
    const resume::Lane& lane) noexcept try {
  // Lanes use the address of the session's connection, because another address of the name may be another server's.
  auto connected = connect_to_carrier();
  if (!connected)
    return tl::unexpected<ReconnectFailure>({true, CUDA_ERROR_DEVICE_UNAVAILABLE, std::move(connected.error())});
  auto entered = enter_again(std::move(connected->transport), carrying_.load(std::memory_order_relaxed), 0, lane);
  if (!entered) return tl::unexpected(std::move(entered.error()));
  transport::notice_lost_peer(entered->transport->descriptor(), transport::LostPeer::replaceable);
  return std::move(entered->transport);
} catch (const std::exception& error) {
  return tl::unexpected<ReconnectFailure>({true, CUDA_ERROR_OUT_OF_MEMORY, error.what()});
}

}  // namespace gpuwire::client
