// TlsRelay is one visitor's connection in the process that speaks TLS: a handshake, then bytes between the visitor and
// the process that serves the page.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>

#include "server/identity/tenant_choice.hpp"
#include "server/web/limits.hpp"
#include "server/web/site.hpp"

namespace gpuwire::server::web {

class TlsRelay;

// A relay's requests to its owner. None of these may destroy the relay at once.
class TlsRelayOwner {
 public:
  // The handshake is over. The owner calls pass_on() or end(), now or later.
  virtual void shaken_hands(TlsRelay& relay, std::optional<ShownCertificate> shown) = 0;
  // The page has closed its side, and the visitor has not.
  virtual void closing(TlsRelay& relay) = 0;
  // The last call.
  virtual void left(TlsRelay& relay) = 0;

 protected:
  ~TlsRelayOwner() = default;
};

// One thread, the io_context's. Whatever a visitor does, one piece of each direction is kept, and each wait for the
// visitor has an end, but for that of a connection on which the page waits.
class TlsRelay : public std::enable_shared_from_this<TlsRelay> {
 public:
  TlsRelay(TlsRelayOwner& owner, boost::asio::ip::tcp::socket socket, boost::asio::ssl::context& context);

  const std::string& peer() const { return peer_; }
  void begin();
  // `page`: of the pair whose other end the page has.
  void pass_on(boost::asio::local::stream_protocol::socket page);
  void end();

 private:
  using ErrorCode = boost::system::error_code;
  using Piece = std::array<char, kRelayPieceBytes>;

  template <class Callback>
  auto guard(Callback callback);
  void limit(std::chrono::milliseconds time);
  void fail_handshake(ErrorCode error);
  // An answer for a visitor who has written http:// in front of the address.
  void answer_plain();
  void linger();
  void read_visitor();
  void read_page();
  void close_to_visitor();

  TlsRelayOwner& owner_;
  boost::asio::ssl::stream<boost::asio::ip::tcp::socket> visitor_;
  const std::string peer_;
  boost::asio::local::stream_protocol::socket page_;
  boost::asio::steady_timer timer_;
  Piece from_visitor_, from_page_;
  bool open_ = true, closing_ = false;
};

}  // namespace gpuwire::server::web
