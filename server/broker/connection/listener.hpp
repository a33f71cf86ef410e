// Accepts connections: listens on TCP and Unix sockets, reads the fixed preface, refuses unsupported clients, and
// passes the others on.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>
#include <tl/expected.hpp>

#include "protocol/wire/frame.hpp"
#include "server/base/descriptors.hpp"
#include "server/base/lifetime.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/broker/limits.hpp"
#include "server/config/listen_address.hpp"

namespace gpuwire::server {

// A connection whose preface has been read.
struct Caller {
  // For logs: "10.0.0.7:4711", "unix, user 1000".
  std::string peer;
  // The key by which connections are counted.
  std::string address;
  // From this machine: loopback, or a Unix socket.
  bool local = false;
  // On a Unix socket: from the kernel.
  std::optional<uid_t> unix_user;
  uint32_t preface_flags = 0;
};

// Runs on the broker's one thread.
class Listener {
 public:
  struct Refusal {
    wire::RefusalCode code;
    // One of a few words, for the audit.
    std::string kind;
    // One line.
    std::string reason;
  };
  struct Events {
    // Returns a refusal, or nothing: then `enter` gets the socket, in blocking mode.
    std::function<std::optional<Refusal>(const Caller&)> judge;
    std::function<void(Caller, OwnedDescriptor)> enter;
    std::function<void(const Caller&, const Refusal&)> refused;
    // No connection is pending any more.
    std::function<void()> emptied;
  };
  Listener(boost::asio::io_context& io, Events events);
  ~Listener();

  // Binds the addresses; connections wait in the kernel until open(). The error names the address and the cause.
  tl::expected<void, std::string> listen(const std::vector<ListenAddress>& addresses);
  void open();
  // Accepts no more connections; pending ones may still be read, refused or passed on.
  void close();

  // Returns the addresses, with the ports that the kernel chose.
  std::vector<ListenAddress> addresses() const;
  bool empty() const { return pending_.empty(); }

 private:
  class PendingConnection;
  // One listening address, with a back-off of its own: a delayed accept() on one address does not end another's delay.
  template <class Acceptor>
  struct BoundAddress {
    explicit BoundAddress(boost::asio::io_context& io) : acceptor(io), retry(io) {}
    Acceptor acceptor;
    boost::asio::steady_timer retry;
  };
  using BoundTcp = BoundAddress<boost::asio::ip::tcp::acceptor>;
  using BoundUnix = BoundAddress<boost::asio::local::stream_protocol::acceptor>;

  template <class Acceptor>
  void accept(BoundAddress<Acceptor>& bound);
  template <class Acceptor>
  bool accept_to_refuse(BoundAddress<Acceptor>& bound);
  std::shared_ptr<PendingConnection> visit(boost::asio::generic::stream_protocol::socket socket);
  void make_room(const std::string& address);
  std::string most_crowded() const;
  void drop_oldest_of(const std::string& address);
  void admit(PendingConnection& pending, uint32_t preface_flags);
  void leave(PendingConnection& pending);

  boost::asio::io_context& io_;
  const Events events_;
  std::list<BoundTcp> tcp_;
  std::list<BoundUnix> unix_;
  // Sockets that close() or the destructor removes.
  std::vector<std::string> unix_paths_;
  SpareDescriptors spares_{kSpareDescriptors};
  // Oldest first, at most kHalfOpenMax.
  std::list<std::shared_ptr<PendingConnection>> pending_;
  // The number of pending connections.
  std::map<std::string, size_t> from_address_;
  bool closed_ = false;
  Lifetime lifetime_;
};

}  // namespace gpuwire::server
