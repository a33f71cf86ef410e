// TlsFront accepts the page's visitors, speaks TLS with them, and asks the server whose certificate they show.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "protocol/tls/openssl.hpp"
#include "server/base/lifetime.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/web/attempts.hpp"
#include "server/web/server_channel.hpp"
#include "server/web/tls_relay.hpp"

namespace gpuwire::server::web {

// The io_context's thread only. Bounds are in limits.hpp. It holds the page's key and reads nothing of HTTP. The
// process that serves the page has no key, and learns of a certificate only what the server has answered.
class TlsFront final : private TlsRelayOwner {
 public:
  struct Ends {
    // A TCP socket.
    OwnedDescriptor listening;
    // The end of the pair with the server.
    OwnedDescriptor server;
    // The end of the pair with the process that serves the page.
    OwnedDescriptor page;
  };
  // `gone`: the server, or the process that serves the page, has ended.
  TlsFront(boost::asio::io_context& io, tls::Context context, Ends ends, std::function<void()> gone);
  ~TlsFront();

 private:
  using Relays = std::list<std::shared_ptr<TlsRelay>>;

  void accept();
  void watch_page(const std::function<void()>& gone);
  void make_room_to_shake_hands(const std::string& address);
  bool make_room_to_relay();
  void pass_on(const std::shared_ptr<TlsRelay>& relay, Certificate certificate);
  void shaken_hands(TlsRelay& relay, std::optional<ShownCertificate> shown) override;
  void closing(TlsRelay& relay) override;
  void left(TlsRelay& relay) override;

  boost::asio::io_context& io_;
  boost::asio::ssl::context context_;
  boost::asio::ip::tcp::acceptor acceptor_;
  boost::asio::steady_timer accept_timer_;
  ServerChannel server_;
  boost::asio::posix::stream_descriptor page_;
  Attempts attempts_;
  // Oldest first.
  Relays shaking_hands_, relaying_, closing_;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server::web
