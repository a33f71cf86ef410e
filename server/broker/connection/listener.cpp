#include "server/broker/connection/listener.hpp"

#include <algorithm>
#include <cstring>

#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "protocol/wire/limits.hpp"
#include "protocol/wire/preface.hpp"
#include "server/broker/limits.hpp"
#include "server/identity/tenant_choice.hpp"

namespace gpuwire::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using StreamSocket = asio::generic::stream_protocol::socket;
using LocalAcceptor = asio::local::stream_protocol::acceptor;

// Returns the key by which connections are counted: an IPv4 address, or the network half of an IPv6 address, since the
// owner of one address of a network has all of them.
std::string network_of(const asio::ip::address& address) {
  if (!address.is_v6()) return address.to_string();
  auto bytes = address.to_v6().to_bytes();
  if (!address.is_loopback()) std::fill(bytes.begin() + bytes.size() / 2, bytes.end(), 0);
  return asio::ip::address_v6(bytes).to_string();
}

// Returns the peer, as the kernel identifies it; nothing: it has closed the connection already.
std::optional<Caller> caller_of(StreamSocket& socket) {
  error_code error;
  auto remote = socket.remote_endpoint(error);
  if (error) return std::nullopt;
  Caller caller;
  if (remote.data()->sa_family == AF_UNIX) {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
    caller.unix_user = peer.uid;
    caller.local = true;
    caller.address = fmt::format("unix:{}", peer.uid);
    caller.peer = fmt::format("unix, user {}", peer.uid);
    return caller;
  }
  tcp::endpoint endpoint;
  std::memcpy(endpoint.data(), remote.data(), std::min(remote.size(), endpoint.capacity()));
  auto address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  caller.local = address.is_loopback();
  caller.address = network_of(address);
  caller.peer = text_of(endpoint);
  return caller;
}

// Whether the peer is on this machine, too: also through an address of the machine that is not loopback.
bool is_on_this_machine(StreamSocket& socket) {
  error_code error;
  auto remote = socket.remote_endpoint(error);
  if (error) return false;
  auto local = socket.local_endpoint(error);
  if (error || remote.data()->sa_family != local.data()->sa_family) return false;
  if (remote.data()->sa_family == AF_UNIX) return true;
  tcp::endpoint ends[2];
  std::memcpy(ends[0].data(), remote.data(), std::min(remote.size(), ends[0].capacity()));
  std::memcpy(ends[1].data(), local.data(), std::min(local.size(), ends[1].capacity()));
  return ends[0].address() == ends[1].address();
}

// Removes a socket without a listener, which a killed server has left.
void remove_stale_socket(const std::string& path) {
  struct stat facts {};
  if (::lstat(path.c_str(), &facts) != 0 || !S_ISSOCK(facts.st_mode)) return;
  asio::io_context io;
  asio::local::stream_protocol::socket probe(io);
  error_code error;
  probe.connect(asio::local::stream_protocol::endpoint(path), error);
  if (error == asio::error::connection_refused) ::unlink(path.c_str());
}

}  // namespace

// A PendingConnection reads the preface, or sends a refusal and lingers until the client has read it, all within one
// time limit.
class Listener::PendingConnection : public std::enable_shared_from_this<PendingConnection> {
  // The guard keeps the pending connection alive for the callback, and drops the callback when the listener is gone.
  template <class Callback>
  auto guard(Callback callback) {
    return listener_.lifetime_.guard([self = shared_from_this(), callback = std::move(callback)](
                                         error_code error, auto... more) { callback(error, more...); });
  }

 public:
  PendingConnection(Listener& listener, StreamSocket socket, Caller caller)
      : listener_(listener), socket_(std::move(socket)), timer_(listener.io_), caller_(std::move(caller)) {}

  Caller& caller() { return caller_; }
  OwnedDescriptor release_socket() {
    timer_.cancel();
    error_code error;
    socket_.native_non_blocking(false, error);
    return OwnedDescriptor(socket_.release(error));
  }
  void abort() {
    timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
  }

  void read_preface() {
    limit(wire::kHandshakeTimeoutMs);
    read_more();
  }

  void refuse(const Refusal& refusal) {
    listener_.events_.refused(caller_, refusal);
    answer(refusal);
  }

 private:
  void answer(const Refusal& refusal) {
    std::string reason = refusal.reason;
    wire::Preface preface = wire::refusing_preface(refusal.code, reason);
    wire::PrefaceBytes bytes = wire::encode(preface);
    answer_.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    answer_ += reason;
    limit(kRefusalLingerMs);
    asio::async_write(socket_, asio::buffer(answer_), guard([this](error_code error, size_t) {
                        if (error) return listener_.leave(*this);
                        error_code ignored;
                        socket_.shutdown(StreamSocket::shutdown_send, ignored);
                        linger();
                      }));
  }

  void limit(uint32_t ms) {
    timer_.expires_after(std::chrono::milliseconds(ms));
    timer_.async_wait(guard([this](error_code error) {
      if (error) return;
      if (answer_.empty())
        listener_.events_.refused(
            caller_, {wire::RefusalCode::not_gpuwire, "timeout",
                      fmt::format("{} bytes of a preface within {} ms", received_, wire::kHandshakeTimeoutMs)});
      error_code ignored;
      socket_.cancel(ignored);  // the pending read or write fails, and the pending connection leaves
    }));
  }

  void read_more() {
    auto rest = asio::buffer(bytes_.data() + received_, bytes_.size() - received_);
    socket_.async_read_some(rest, guard([this](error_code error, size_t got) {
                              if (error) return listener_.leave(*this);
                              received_ += got;
                              poll();
                            }));
  }

  void poll() {
    // A peer of another protocol may send little and then wait for an answer.
    wire::Preface ours;
    bool stranger = std::memcmp(bytes_.data(), ours.magic, std::min(received_, sizeof ours.magic)) != 0;
    if (received_ < bytes_.size() && !stranger) return read_more();
    std::string reason;
    wire::RefusalCode code = wire::check_client(bytes_, reason);
    // `gpuwire serve --check-config` identifies the listener, by a version that no client has.
    if (code == wire::RefusalCode::version && wire::decode(bytes_).protocol_major == 0 && is_on_this_machine(socket_))
      return answer({code, "protocol", reason});
    if (code != wire::RefusalCode::accepted) return refuse({code, "protocol", reason});
    wire::Preface preface = wire::decode(bytes_);
    if (std::any_of(std::begin(preface.session_id), std::end(preface.session_id),
                    [](uint8_t byte) { return byte != 0; }))
      return refuse({wire::RefusalCode::internal, "protocol", "this server keeps no sessions that could be resumed"});
    listener_.admit(*this, preface.flags);
  }

  void linger() {
    socket_.async_read_some(asio::buffer(bytes_), guard([this](error_code error, size_t) {
                              if (error) return listener_.leave(*this);
                              linger();
                            }));
  }

  Listener& listener_;
  StreamSocket socket_;
  asio::steady_timer timer_;
  Caller caller_;
  wire::PrefaceBytes bytes_{};
  size_t received_ = 0;
  std::string answer_;
};

Listener::Listener(asio::io_context& io, Events events) : io_(io), events_(std::move(events)) {}

Listener::~Listener() { close(); }

tl::expected<void, std::string> Listener::listen(const std::vector<ListenAddress>& addresses) {
  for (const ListenAddress& address : addresses) {
    try {
      if (address.tcp) {
        tcp::acceptor& acceptor = tcp_.emplace_back(io_).acceptor;
        acceptor.open(address.tcp->protocol());
        acceptor.set_option(tcp::acceptor::reuse_address(true));
        acceptor.bind(*address.tcp);
        acceptor.listen();
        acceptor.non_blocking(true);
        continue;
      }
      remove_stale_socket(address.unix_path);
      LocalAcceptor& acceptor = unix_.emplace_back(io_).acceptor;
      acceptor.open();
      acceptor.bind(asio::local::stream_protocol::endpoint(address.unix_path));
      unix_paths_.push_back(address.unix_path);
      ::chmod(address.unix_path.c_str(),
              0666);  // the caller's identity decides about admission; the folder decides who can connect
      acceptor.listen();
      acceptor.non_blocking(true);
    } catch (const boost::system::system_error& error) {
      return tl::unexpected(fmt::format("cannot listen on {}: {}", text_of(address), error.code().message()));
    }
  }
  return {};
}

std::vector<ListenAddress> Listener::addresses() const {
  std::vector<ListenAddress> addresses;
  for (const auto& bound : tcp_) {
    error_code error;
    addresses.push_back({bound.acceptor.local_endpoint(error), {}});
  }
  for (const std::string& path : unix_paths_) addresses.push_back({std::nullopt, path});
  return addresses;
}

void Listener::open() {
  for (auto& bound : tcp_) accept(bound);
  for (auto& bound : unix_) accept(bound);
}

void Listener::close() {
  closed_ = true;
  auto close_one = [](auto& bound) {
    error_code ignored;
    bound.retry.cancel();
    bound.acceptor.close(ignored);
  };
  for (auto& bound : tcp_) close_one(bound);
  for (auto& bound : unix_) close_one(bound);
  for (const std::string& path : unix_paths_) ::unlink(path.c_str());
  unix_paths_.clear();
}

template <class Acceptor>
void Listener::accept(BoundAddress<Acceptor>& bound) {
  if (closed_) return;
  auto socket = std::make_shared<StreamSocket>(io_);
  bound.acceptor.async_accept(*socket, lifetime_.guard([this, &bound, socket](error_code error) {
    if (error == asio::error::operation_aborted || closed_) return;
    if (!error) {
      if (auto pending = visit(std::move(*socket))) pending->read_preface();
      return accept(bound);
    }
    if (out_of_descriptors(error.value()) && accept_to_refuse(bound)) return accept(bound);
    // The connection stays in the kernel's queue: a retry at once would only burn a core.
    spdlog::warn("accept: {}", error.message());
    bound.retry.expires_after(std::chrono::milliseconds(kAcceptRetryMs));
    bound.retry.async_wait(lifetime_.guard([this, &bound](error_code stopped) {
      if (!stopped) accept(bound);
    }));
  }));
}

// Accepts with a reserved descriptor, to refuse with a text. False: no descriptor is left, or no connection waits.
template <class Acceptor>
bool Listener::accept_to_refuse(BoundAddress<Acceptor>& bound) {
  spares_.refill();
  if (!spares_.give_up_one()) return false;
  StreamSocket socket(io_);
  error_code error;
  bound.acceptor.accept(socket, error);
  if (error) return false;
  if (auto pending = visit(std::move(socket)))
    pending->refuse({wire::RefusalCode::busy, name_of(RefusalKind::overload),
                     "the server has no file descriptor left for another connection; try again"});
  return true;
}

// A client sends its preface at once, so the longest silent connection of the address with most of them is dropped
// first: a flood of silent connections keeps nobody out.
void Listener::make_room(const std::string& address) {
  auto own = from_address_.find(address);
  if (own != from_address_.end() && own->second >= kHalfOpenPerAddressMax) return drop_oldest_of(address);
  if (pending_.size() >= kHalfOpenMax) drop_oldest_of(most_crowded());
}

// Returns the address with most pending connections; of several, the one with the oldest pending connection.
std::string Listener::most_crowded() const {
  const std::string* crowded = nullptr;
  size_t most = 0;
  for (const auto& pending : pending_) {
    const std::string& address = pending->caller().address;
    size_t count = from_address_.at(address);
    if (count <= most) continue;
    crowded = &address;
    most = count;
  }
  return crowded ? *crowded : std::string();
}

void Listener::drop_oldest_of(const std::string& address) {
  auto oldest = std::find_if(pending_.begin(), pending_.end(),
                             [&](const auto& pending) { return pending->caller().address == address; });
  if (oldest == pending_.end()) return;
  spdlog::debug("dropped {}: {} connections without a preface", (*oldest)->caller().peer, pending_.size());
  std::shared_ptr<PendingConnection> dropped = *oldest;
  leave(*dropped);
}

// Returns null if the peer has closed the connection already.
std::shared_ptr<Listener::PendingConnection> Listener::visit(StreamSocket socket) {
  auto caller = caller_of(socket);
  if (!caller) return nullptr;
  make_room(caller->address);
  ++from_address_[caller->address];
  auto pending = std::make_shared<PendingConnection>(*this, std::move(socket), std::move(*caller));
  pending_.push_back(pending);
  return pending;
}

void Listener::admit(PendingConnection& pending, uint32_t preface_flags) {
  pending.caller().preface_flags = preface_flags;
  if (auto refusal = events_.judge(pending.caller())) return pending.refuse(*refusal);
  Caller caller = pending.caller();
  OwnedDescriptor socket = pending.release_socket();
  leave(pending);
  events_.enter(std::move(caller), std::move(socket));
}

void Listener::leave(PendingConnection& pending) {
  pending.abort();
  auto found = std::find_if(pending_.begin(), pending_.end(), [&](const auto& one) { return one.get() == &pending; });
  if (found == pending_.end()) return;
  auto count = from_address_.find(pending.caller().address);
  if (--count->second == 0) from_address_.erase(count);
  auto kept = *found;  // alive until this call is over
  pending_.erase(found);
  spares_.refill();
  if (pending_.empty()) events_.emptied();
}

}  // namespace gpuwire::server
