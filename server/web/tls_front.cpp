#include "server/web/tls_front.hpp"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include <sys/socket.h>

#include "server/web/arrival.hpp"
#include "server/web/limits.hpp"

namespace gpuwire::server::web {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// A foreign certificate may have texts of any length.
std::string bounded(const std::string& text) { return text.substr(0, kShownTextBytesMax); }

void remove(auto& relays, const TlsRelay& relay) {
  relays.remove_if([&](const auto& one) { return one.get() == &relay; });
}

void end_oldest(auto& relays, auto which) {
  auto oldest = std::ranges::find_if(relays, which);
  if (oldest == relays.end()) return;
  const auto relay = *oldest;
  relay->end();
}

}  // namespace

TlsFront::TlsFront(asio::io_context& io, tls::Context context, Ends ends, std::function<void()> gone)
    : io_(io),
      context_(context.release()),
      acceptor_(io),
      accept_timer_(io),
      server_(io, std::move(ends.server), gone),
      page_(io, ends.page.release()) {
  watch_page(gone);
  sockaddr_storage address{};
  socklen_t bytes = sizeof address;
  ::getsockname(ends.listening.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  acceptor_.assign(address.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), ends.listening.release());
  accept();
}

TlsFront::~TlsFront() {
  for (Relays* relays : {&shaking_hands_, &relaying_, &closing_})
    while (!relays->empty()) end_oldest(*relays, [](const auto&) { return true; });
}

// The page sends nothing, so a readable pair is a closed one. The signal of a parent's death is no help: Landlock's
// rules of the page's process hold it back.
void TlsFront::watch_page(const std::function<void()>& gone) {
  page_.async_wait(boost::asio::posix::stream_descriptor::wait_read, lifetime_.guard([gone](error_code error) {
    if (error != asio::error::operation_aborted) gone();
  }));
}

void TlsFront::accept() {
  acceptor_.async_accept(lifetime_.guard([this](error_code error, tcp::socket socket) {
    if (error == asio::error::operation_aborted) return;
    if (error) {
      std::fprintf(stderr, "accept: %s\n", error.message().c_str());
      accept_timer_.expires_after(kAcceptRetry);
      accept_timer_.async_wait(lifetime_.guard([this](error_code stopped) {
        if (!stopped) accept();
      }));
      return;
    }
    TlsRelayOwner& owner = *this;
    auto relay = std::make_shared<TlsRelay>(owner, std::move(socket), context_);
    make_room_to_shake_hands(relay->peer());
    shaking_hands_.push_back(relay);
    relay->begin();
    accept();
  }));
}

// A new connection displaces only connections of its own address, or of the address with the most.
void TlsFront::make_room_to_shake_hands(const std::string& address) {
  std::map<std::string, size_t> of_address;
  for (const auto& relay : shaking_hands_) ++of_address[relay->peer()];
  std::string crowded = address;
  if (of_address[address] < kHandshakesPerAddressMax) {
    if (shaking_hands_.size() < kHandshakesMax) return;
    crowded = std::ranges::max_element(of_address, {}, [](const auto& one) { return one.second; })->first;
  }
  end_oldest(shaking_hands_, [&](const auto& relay) { return relay->peer() == crowded; });
}

void TlsFront::shaken_hands(TlsRelay& relay, std::optional<ShownCertificate> shown) {
  auto kept = relay.shared_from_this();
  if (!shown) return pass_on(kept, {});
  if (!attempts_.take(relay.peer()))
    return pass_on(kept, {.refusal = "too many certificates from your address that do not count; wait a minute"});
  server_.ask({{"command", "certificate"},
               {"peer", relay.peer()},
               {"serial", bounded(shown->serial)},
               {"tenant", shown->tenant},
               {"error", shown->verify_error},
               {"fault", bounded(shown->verify_text)},
               {"expires", shown->expires}},
              lifetime_.guard([this, kept](const tl::expected<Json, std::string>& answer) {
                auto text = [&](const char* name) {
                  return answer ? answer->value(name, std::string()) : answer.error();
                };
                if (!answer || answer->value("ok", false) != true) return pass_on(kept, {.refusal = text("error")});
                attempts_.give_back(kept->peer());
                pass_on(kept, {.grant = text("grant"), .holder = text("holder")});
              }));
}

// The page bounds its connections. Those that it has closed are the first to go.
bool TlsFront::make_room_to_relay() {
  if (relaying_.size() + closing_.size() < kRelaysMax) return true;
  if (closing_.empty()) return false;
  end_oldest(closing_, [](const auto&) { return true; });
  return true;
}

void TlsFront::pass_on(const std::shared_ptr<TlsRelay>& relay, Certificate certificate) {
  if (std::ranges::find(shaking_hands_, relay) == shaking_hands_.end()) return;  // it has ended meanwhile
  int ends[2];
  if (!make_room_to_relay() || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return relay->end();
  asio::local::stream_protocol::socket ours(io_, asio::local::stream_protocol(), ends[0]);
  if (!send_arrival(page_.native_handle(), {OwnedDescriptor(ends[1]), relay->peer(), std::move(certificate)}))
    return relay->end();
  remove(shaking_hands_, *relay);
  relaying_.push_back(relay);
  relay->pass_on(std::move(ours));
}

void TlsFront::closing(TlsRelay& relay) {
  auto kept = relay.shared_from_this();
  remove(relaying_, relay);
  closing_.push_back(std::move(kept));
}

void TlsFront::left(TlsRelay& relay) {
  for (Relays* relays : {&shaking_hands_, &relaying_, &closing_}) remove(*relays, relay);
}

}  // namespace gpuwire::server::web
