#include "server/login/login_desk.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "server/identity/identity_directory.hpp"
#include "server/login/limits.hpp"

namespace gpuwire::server {

LoginDesk::LoginDesk(boost::asio::io_context& io, OwnedDescriptor broker, Clock clock, std::function<void()> closed)
    : io_(io), clock_(std::move(clock)), broker_(io, std::move(broker), [this](Handoff message) { heard(std::move(message)); }, [this] { broker_gone(); }), closed_(std::move(closed)) {}

LoginDesk::~LoginDesk() = default;

// --- the broker ---------------------------------------------------------------------------------------------------------------------------------

void LoginDesk::heard(Handoff message) {
  switch (login_kind(message)) {
    case LoginKind::identity: return read_identity(std::move(message));
    case LoginKind::arrival: return welcome(std::move(message));
    default: break;
  }
  auto found = logged_in_.find(connection_of(message));
  if (found == logged_in_.end()) return;  // it has just gone, and the broker is being told
  std::shared_ptr<Guest> guest = found->second;
  switch (login_kind(message)) {
    case LoginKind::queued:
      if (LoginQueued place; decode(message.text, place)) guest->queued(place);
      break;
    case LoginKind::admitted: guest->admitted(); break;
    case LoginKind::refused: guest->refused(message.text); break;
    default: break;
  }
}

void LoginDesk::read_identity(Handoff message) {
  if (!message.socket) {
    identity_.reset();
    return broker_.send(login_message(LoginKind::identity_read, 0, {}, 1));
  }
  IdentityTexts texts;
  std::string error;
  if (message.more.size() + 1 != size_t(IdentityFile::count)) error = "the broker sent not all files of the identity";
  for (size_t i = 0; i < size_t(IdentityFile::count) && error.empty(); ++i) {
    auto text = read_descriptor(i == 0 ? message.socket.get() : message.more[i - 1].get(), kIdentityFileTexts[i].name, kIdentityFileTexts[i].bytes_max);
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

// --- guests -------------------------------------------------------------------------------------------------------------------------------------

void LoginDesk::welcome(Handoff message) {
  Arrival arrival;
  if (!message.socket || !decode(message.text, arrival)) return;
  make_room(arrival.address);
  ++from_address_[arrival.address];
  GuestKeeper& keeper = *this;
  auto guest = std::make_shared<Guest>(io_, keeper, connection_of(message), std::move(arrival), std::move(message.socket));
  strangers_.push_back(guest);
  guest->begin();
}

// One address can only push out its own; and who has shown more of a login stays longest.
void LoginDesk::make_room(const std::string& address) {
  auto own = from_address_.find(address);
  if (own != from_address_.end() && own->second >= kGuestsPerAddressMax) return drop_from(address);
  if (strangers_.size() >= kGuestsMax) drop_from(most_crowded());
}

// Of several that have as many, the one whose oldest guest has been here longest.
std::string LoginDesk::most_crowded() const {
  const std::string* crowded = nullptr;
  size_t most = 0;
  for (const auto& guest : strangers_) {
    size_t count = from_address_.at(guest->arrival().address);
    if (count <= most) continue;
    crowded = &guest->arrival().address;
    most = count;
  }
  return crowded ? *crowded : std::string();
}

void LoginDesk::drop_from(const std::string& address) {
  std::shared_ptr<Guest> least;
  for (const auto& guest : strangers_) {
    if (guest->arrival().address != address) continue;
    if (!least || guest->progress() < least->progress()) least = guest;
  }
  if (!least) return;
  if (least->progress() != Guest::Progress::refused)
    turned_away(*least, {least->arrival().peer, name_of(RefusalKind::overload), "too many connections that had not logged in", {}, {}});
  least->drop();
}

void LoginDesk::forget_stranger(Guest& guest) {
  auto found = std::find_if(strangers_.begin(), strangers_.end(), [&](const auto& one) { return one.get() == &guest; });
  if (found == strangers_.end()) return;
  strangers_.erase(found);
  auto count = from_address_.find(guest.arrival().address);
  if (--count->second == 0) from_address_.erase(count);
}

void LoginDesk::requested(Guest& guest, LoginRequestMessage request) {
  auto kept = guest.shared_from_this();
  forget_stranger(guest);
  logged_in_[guest.number()] = kept;
  if (logged_in_.size() > kLoggedInMax) return kept->refused(fmt::format("{} programs wait already", kLoggedInMax));
  broker_.send(login_message(LoginKind::request, guest.number(), encode(request)));
}

void LoginDesk::gone(Guest& guest, std::string why) { broker_.send(login_message(LoginKind::gone, guest.number(), std::move(why))); }

void LoginDesk::passed(Guest& guest, OwnedDescriptor socket, std::string key) {
  Handoff message = login_message(LoginKind::passed, guest.number(), std::move(key));
  message.socket = std::move(socket);
  broker_.send(std::move(message));
}

// Strangers cause these: when the broker does not keep up, they are counted in the next that it hears, not kept.
void LoginDesk::turned_away(Guest& guest, LoginRefusal refusal) {
  if (broker_.backlog() >= kAuditBacklogMax) {
    ++untold_;
    return;
  }
  broker_.send(login_message(LoginKind::turned_away, guest.number(), encode(refusal), std::exchange(untold_, 0)));
}

void LoginDesk::left(Guest& guest) {
  forget_stranger(guest);
  logged_in_.erase(guest.number());
  if (leaving_ && strangers_.empty() && logged_in_.empty()) closed_();
}

// Nobody comes in any more; who is being refused has its kLoginRefusalLingerMs.
void LoginDesk::broker_gone() {
  leaving_ = true;
  std::vector<std::shared_ptr<Guest>> all(strangers_.begin(), strangers_.end());
  for (const auto& [number, guest] : logged_in_) all.push_back(guest);
  for (const auto& guest : all)
    if (guest->progress() != Guest::Progress::refused) guest->abandon();
  if (strangers_.empty() && logged_in_.empty()) closed_();
}

}  // namespace gpuwire::server
