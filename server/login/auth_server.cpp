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
      broker_(
          io, std::move(broker), [this](IpcMessage message) { heard(std::move(message)); }, [this] { broker_gone(); }),
      closed_(std::move(closed)) {}

AuthServer::~AuthServer() = default;

// --- the broker
// ---------------------------------------------------------------------------------------------------------------------------------

void AuthServer::heard(IpcMessage message) {
  switch (login_kind(message)) {
    case LoginKind::identity: return read_identity(std::move(message));
    case LoginKind::arrival: return welcome(std::move(message));
    default: break;
  }
  auto found = logged_in_.find(connection_of(message));
  if (found == logged_in_.end()) return;  // it has just gone, and the broker is being told
  std::shared_ptr<AuthConnection> connection = found->second;
  switch (login_kind(message)) {
    case LoginKind::queued:
      if (LoginQueued place; decode(message.text, place)) connection->queued(place);
      break;
    case LoginKind::admitted: connection->admitted(); break;
    case LoginKind::refused: connection->refused(message.text); break;
    default: break;
  }
}

void AuthServer::read_identity(IpcMessage message) {
  if (!message.socket) {
    identity_.reset();
    return broker_.send(login_message(LoginKind::identity_read, 0, {}, 1));
  }
  IdentityTexts texts;
  std::string error;
  if (message.more.size() + 1 != size_t(IdentityFile::count)) error = "the broker sent not all files of the identity";
  for (size_t i = 0; i < size_t(IdentityFile::count) && error.empty(); ++i) {
    auto text = read_descriptor(i == 0 ? message.socket.get() : message.more[i - 1].get(), kIdentityFileTexts[i].name,
                                kIdentityFileTexts[i].bytes_max);
    if (text) texts.*kIdentityFileTexts[i].text = std::move(*text);
    else error = text.error();
  }
  if (error.empty()) {
    auto made = ServerIdentity::make(texts, clock_());
    if (made) identity_ = std::move(*made);
    else error = made.error();
  }
  broker_.send(login_message(LoginKind::identity_read, 0, error, error.empty()));
}

// --- auth connections
// -------------------------------------------------------------------------------------------------------------------------------------

void AuthServer::welcome(IpcMessage message) {
  Arrival arrival;
  if (!message.socket || !decode(message.text, arrival)) return;
  make_room(arrival.address);
  ++from_address_[arrival.address];
  AuthConnectionOwner& keeper = *this;
  auto connection = std::make_shared<AuthConnection>(io_, keeper, connection_of(message), std::move(arrival),
                                                     std::move(message.socket));
  strangers_.push_back(connection);
  connection->begin();
}

// One address can only push out its own; and who has shown more of a login stays longest.
void AuthServer::make_room(const std::string& address) {
  auto own = from_address_.find(address);
  if (own != from_address_.end() && own->second >= kAuthConnectionsPerAddressMax) return drop_from(address);
  if (strangers_.size() >= kAuthConnectionsMax) drop_from(most_crowded());
}

// Of several that have as many, the one whose oldest auth connection has been here longest.
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

void AuthServer::drop_from(const std::string& address) {
  std::shared_ptr<AuthConnection> least;
  for (const auto& connection : strangers_) {
    if (connection->arrival().address != address) continue;
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

void AuthServer::requested(AuthConnection& connection, LoginRequestMessage request) {
  auto kept = connection.shared_from_this();
  forget_stranger(connection);
  logged_in_[connection.number()] = kept;
  if (logged_in_.size() > kLoggedInMax) return kept->refused(fmt::format("{} programs wait already", kLoggedInMax));
  broker_.send(login_message(LoginKind::request, connection.number(), encode(request)));
}

void AuthServer::gone(AuthConnection& connection, std::string why) {
  broker_.send(login_message(LoginKind::gone, connection.number(), std::move(why)));
}

void AuthServer::passed(AuthConnection& connection, OwnedDescriptor socket, std::string key) {
  IpcMessage message = login_message(LoginKind::passed, connection.number(), std::move(key));
  message.socket = std::move(socket);
  broker_.send(std::move(message));
}

// Strangers cause these: when the broker does not keep up, they are counted in the next that it hears, not kept.
void AuthServer::turned_away(AuthConnection& connection, LoginRefusal refusal) {
  if (broker_.backlog() >= kAuditBacklogMax) {
    ++untold_;
    return;
  }
  broker_.send(login_message(LoginKind::turned_away, connection.number(), encode(refusal), std::exchange(untold_, 0)));
}

void AuthServer::left(AuthConnection& connection) {
  forget_stranger(connection);
  logged_in_.erase(connection.number());
  if (leaving_ && strangers_.empty() && logged_in_.empty()) closed_();
}

// Nobody comes in any more; who is being refused has its kLoginRefusalLingerMs.
void AuthServer::broker_gone() {
  leaving_ = true;
  std::vector<std::shared_ptr<AuthConnection>> all(strangers_.begin(), strangers_.end());
  for (const auto& [number, connection] : logged_in_) all.push_back(connection);
  for (const auto& connection : all)
    if (connection->progress() != AuthConnection::Progress::refused) connection->abandon();
  if (strangers_.empty() && logged_in_.empty()) closed_();
}

}  // namespace gpuwire::server
