#include "server/login/auth_server.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "server/identity/identity_directory.hpp"
#include "server/login/limits.hpp"

namespace gpuwire::server {

AuthServer::AuthServer(boost::asio::io_context& io, OwnedDescriptor broker, Clock clock, std::function<void()> closed)
    : io_(io),
      clock_(std::move(clock)),
      broker_(io, std::move(broker), ipc::Speaker::broker, ipc::kAuthWaitingMax, ipc::EventChannel::Trust::full,
              {.on_message = [this](ipc::Message message) { on_message(std::move(message)); },
               .over = [this](const std::string&) { broker_gone(); }}),
      closed_(std::move(closed)) {}

AuthServer::~AuthServer() = default;

// --- the broker ----------------------------------------------------------------------------------------------------

void AuthServer::on_message(ipc::Message message) {
  // Returns the connection that waits for an answer; null: the connection has just ended, and the broker is being
  // notified.
  auto waiting = [this](ipc::ConnectionId connection) {
    auto* found = logged_in_.find(connection);
    return found ? *found : nullptr;
  };
  std::visit(ipc::Match{[&](ipc::Identity& identity) { read_identity(identity); },
                        [&](ipc::Arrival& arrival) { welcome(std::move(arrival)); },
                        [&](ipc::Queued& place) {
                          if (auto connection = waiting(place.connection)) connection->queued(place);
                        },
                        [&](ipc::Admitted& admitted) {
                          if (auto connection = waiting(admitted.connection)) connection->admitted();
                        },
                        [&](ipc::Refused& refused) {
                          if (auto connection = waiting(refused.connection)) connection->refused(refused.why);
                        },
                        [&](ipc::Told& told) {
                          if (auto connection = waiting(told.connection)) connection->told(told);
                        },
                        [](auto&) {}},
             message);
}

void AuthServer::read_identity(const ipc::Identity& identity) {
  // In the order of kIdentityFileTexts.
  const OwnedDescriptor* files[] = {&identity.authority, &identity.server_certificate, &identity.server_key,
                                    &identity.credentials};
  static_assert(std::size(files) == std::size(kIdentityFileTexts));
  const auto missing =
      std::count_if(std::begin(files), std::end(files), [](const OwnedDescriptor* file) { return !*file; });
  if (missing == std::ssize(files)) {
    identity_.reset();
    broker_.send(ipc::IdentityRead{});
    return;
  }
  IdentityTexts texts;
  std::string error;
  if (missing) error = "not all files of the identity have arrived";
  for (size_t i = 0; i < std::size(files) && error.empty(); ++i) {
    auto text = read_descriptor(files[i]->get(), kIdentityFileTexts[i].name, kIdentityFileTexts[i].bytes_max);
    if (text) texts.*kIdentityFileTexts[i].text = std::move(*text);
    else error = text.error();
  }
  if (error.empty()) {
    auto made = ServerIdentity::make(texts, clock_());
    if (made) identity_ = std::move(*made);
    else error = made.error();
  }
  broker_.send(ipc::IdentityRead{std::move(error)});
}

// --- auth connections ----------------------------------------------------------------------------------------------

void AuthServer::welcome(ipc::Arrival arrival) {
  if (!arrival.socket) return;  // this process had no descriptor for it
  make_room(arrival.address);
  ++from_address_[arrival.address];
  AuthConnectionOwner& keeper = *this;
  auto connection = std::make_shared<AuthConnection>(io_, keeper, std::move(arrival));
  strangers_.push_back(connection);
  connection->begin();
}

// An address can only displace its own connections.
void AuthServer::make_room(const std::string& address) {
  auto own = from_address_.find(address);
  if (own != from_address_.end() && own->second >= kAuthConnectionsPerAddressMax) return drop_from(address);
  if (strangers_.size() >= kAuthConnectionsMax) drop_from(most_crowded());
}

// Of several addresses with the same number, the one with the oldest auth connection.
std::string AuthServer::most_crowded() const {
  const std::string* crowded = nullptr;
  size_t most = 0;
  for (const auto& connection : strangers_) {
    size_t count = from_address_.at(connection->arrival().address);
    if (count <= most) continue;
    crowded = &connection->arrival().address;
    most = count;
  }
  return crowded ? *crowded : std::string();
}

// The connection with more of a login stays longest. Only connections that have had time to send something are
// compared, which are the older half of the address's. Otherwise clients that send one byte at once, and no more, would
// displace each honest client of the same address that is still reading the server's preface.
void AuthServer::drop_from(const std::string& address) {
  std::shared_ptr<AuthConnection> least;
  auto own = from_address_.find(address);
  size_t compared = own == from_address_.end() ? 0 : (own->second + 1) / 2;
  for (const auto& connection : strangers_) {
    if (connection->arrival().address != address) continue;
    if (compared-- == 0) break;
    if (!least || connection->progress() < least->progress()) least = connection;
  }
  if (!least) return;
  if (least->progress() != AuthConnection::Progress::refused)
    turned_away(
        *least,
        {least->arrival().peer, name_of(RefusalKind::overload), "too many connections that had not logged in", {}, {}});
  least->drop();
}

void AuthServer::forget_stranger(AuthConnection& connection) {
  auto found =
      std::find_if(strangers_.begin(), strangers_.end(), [&](const auto& one) { return one.get() == &connection; });
  if (found == strangers_.end()) return;
  strangers_.erase(found);
  auto count = from_address_.find(connection.arrival().address);
  if (--count->second == 0) from_address_.erase(count);
}

void AuthServer::requested(AuthConnection& connection, ipc::Login request) {
  auto kept = connection.shared_from_this();
  forget_stranger(connection);
  if (!logged_in_.open_as(connection.number(), kept))
    return kept->refused(fmt::format("{} programs wait already", kLoggedInMax));
  // The broker is gone or does not read. A refusal would be final; a dropped client connects again, to the next broker.
  if (!broker_.send(std::move(request))) kept->abandon();
}

void AuthServer::gone(AuthConnection& connection, std::string why) {
  broker_.send(ipc::Gone{connection.number(), std::move(why)});
}

void AuthServer::passed(AuthConnection& connection, OwnedDescriptor socket, std::string key) {
  broker_.send(ipc::Passed{connection.number(), std::move(socket), std::move(key)});
}

// Unauthenticated callers cause these messages: if the broker does not keep up, the next message contains their count
// instead.
void AuthServer::turned_away(AuthConnection&, ipc::TurnedAway refusal) {
  if (broker_.waiting() >= kAuditBacklogMax) {
    ++unsent_;
    return;
  }
  refusal.untold = std::exchange(unsent_, 0);
  broker_.send(std::move(refusal));
}

void AuthServer::left(AuthConnection& connection) {
  forget_stranger(connection);
  logged_in_.close(connection.number());
  if (leaving_ && strangers_.empty() && logged_in_.empty()) closed_();
}

// No new client is accepted; a refused one has its kLoginRefusalLingerMs.
void AuthServer::broker_gone() {
  leaving_ = true;
  std::vector<std::shared_ptr<AuthConnection>> all(strangers_.begin(), strangers_.end());
  logged_in_.for_each(
      [&](ipc::RequestId, const std::shared_ptr<AuthConnection>& connection) { all.push_back(connection); });
  for (const auto& connection : all)
    if (connection->progress() != AuthConnection::Progress::refused) connection->abandon();
  if (strangers_.empty() && logged_in_.empty()) closed_();
}

}  // namespace gpuwire::server
