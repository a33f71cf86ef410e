#include "server/broker/front_door.hpp"

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

namespace gpuwire::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using StreamSocket = asio::generic::stream_protocol::socket;
using LocalAcceptor = asio::local::stream_protocol::acceptor;

// Who is on the other end, as the kernel says. Nothing: it has left already.
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
  if (address.is_v6() && address.to_v6().is_v4_mapped()) address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  caller.local = address.is_loopback();
  caller.address = address.to_string();
  caller.peer = text_of(endpoint);
  return caller;
}

// A path that nobody listens on any more is left over from a server that was killed.
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

std::string text_of(const tcp::endpoint& endpoint) {
  std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port()) : fmt::format("{}:{}", address, endpoint.port());
}

std::string text_of(const ListenAddress& address) { return address.tcp ? text_of(*address.tcp) : "unix:" + address.unix_path; }

// Reads the preface, or says why not and lingers until the client has read it. Everything within one time limit.
class FrontDoor::Visitor : public std::enable_shared_from_this<Visitor> {
 public:
  Visitor(FrontDoor& door, StreamSocket socket, Caller caller) : door_(door), socket_(std::move(socket)), timer_(door.io_), caller_(std::move(caller)) {}

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
    door_.events_.refused(caller_, refusal);
    std::string reason = refusal.reason;
    wire::Preface preface = wire::refusing_preface(refusal.code, reason);
    wire::PrefaceBytes bytes = wire::encode(preface);
    answer_.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    answer_ += reason;
    limit(kRefusalLingerMs);
    asio::async_write(socket_, asio::buffer(answer_), [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->door_.leave(*self);
      error_code ignored;
      self->socket_.shutdown(StreamSocket::shutdown_send, ignored);
      self->linger();
    });
  }

 private:
  void limit(uint32_t ms) {
    timer_.expires_after(std::chrono::milliseconds(ms));
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error) return;
      if (self->answer_.empty())
        self->door_.events_.refused(self->caller_, {wire::RefusalCode::not_gpuwire, "timeout", fmt::format("{} bytes of a preface within {} ms", self->received_, wire::kHandshakeTimeoutMs)});
      error_code ignored;
      self->socket_.cancel(ignored);  // the pending read or write fails, and the visitor leaves
    });
  }

  void read_more() {
    auto rest = asio::buffer(bytes_.data() + received_, bytes_.size() - received_);
    socket_.async_read_some(rest, [self = shared_from_this()](error_code error, size_t got) {
      if (error) return self->door_.leave(*self);
      self->received_ += got;
      self->look();
    });
  }

  void look() {
    // Whoever speaks another protocol may say little and then wait for an answer.
    wire::Preface ours;
    bool stranger = std::memcmp(bytes_.data(), ours.magic, std::min(received_, sizeof ours.magic)) != 0;
    if (received_ < bytes_.size() && !stranger) return read_more();
    std::string reason;
    wire::RefusalCode code = wire::check_client(bytes_, reason);
    if (code != wire::RefusalCode::accepted) return refuse({code, "protocol", reason});
    wire::Preface preface = wire::decode(bytes_);
    if (std::any_of(std::begin(preface.session_id), std::end(preface.session_id), [](uint8_t byte) { return byte != 0; }))
      return refuse({wire::RefusalCode::internal, "protocol", "this server keeps no sessions that could be resumed"});
    door_.admit(*this, preface.flags);
  }

  void linger() {
    socket_.async_read_some(asio::buffer(bytes_), [self = shared_from_this()](error_code error, size_t) {
      if (error) return self->door_.leave(*self);
      self->linger();
    });
  }

  FrontDoor& door_;
  StreamSocket socket_;
  asio::steady_timer timer_;
  Caller caller_;
  wire::PrefaceBytes bytes_{};
  size_t received_ = 0;
  std::string answer_;
};

FrontDoor::FrontDoor(asio::io_context& io, Events events) : io_(io), events_(std::move(events)), accept_timer_(io) {}

FrontDoor::~FrontDoor() { close(); }

tl::expected<void, std::string> FrontDoor::listen(const std::vector<ListenAddress>& addresses) {
  for (const ListenAddress& address : addresses) {
    try {
      if (address.tcp) {
        tcp::acceptor& acceptor = tcp_.emplace_back(io_);
        acceptor.open(address.tcp->protocol());
        acceptor.set_option(tcp::acceptor::reuse_address(true));
        acceptor.bind(*address.tcp);
        acceptor.listen();
        continue;
      }
      remove_stale_socket(address.unix_path);
      LocalAcceptor& acceptor = unix_.emplace_back(io_);
      acceptor.open();
      acceptor.bind(asio::local::stream_protocol::endpoint(address.unix_path));
      unix_paths_.push_back(address.unix_path);
      ::chmod(address.unix_path.c_str(), 0666);  // who may come in is said by the caller's identity; who may come near, by the folder
      acceptor.listen();
    } catch (const boost::system::system_error& error) {
      return tl::unexpected(fmt::format("cannot listen on {}: {}", text_of(address), error.code().message()));
    }
  }
  return {};
}

std::vector<ListenAddress> FrontDoor::addresses() const {
  std::vector<ListenAddress> addresses;
  for (const auto& acceptor : tcp_) {
    error_code error;
    addresses.push_back({acceptor.local_endpoint(error), {}});
  }
  for (const std::string& path : unix_paths_) addresses.push_back({std::nullopt, path});
  return addresses;
}

void FrontDoor::open() {
  for (auto& acceptor : tcp_) accept(acceptor);
  for (auto& acceptor : unix_) accept(acceptor);
}

void FrontDoor::close() {
  closed_ = true;
  accept_timer_.cancel();
  error_code ignored;
  for (auto& acceptor : tcp_) acceptor.close(ignored);
  for (auto& acceptor : unix_) acceptor.close(ignored);
  for (const std::string& path : unix_paths_) ::unlink(path.c_str());
  unix_paths_.clear();
}

template <class Acceptor>
void FrontDoor::accept(Acceptor& acceptor) {
  if (closed_) return;
  auto socket = std::make_shared<StreamSocket>(io_);
  acceptor.async_accept(*socket, [this, &acceptor, socket](error_code error) {
    if (error == asio::error::operation_aborted || closed_) return;
    if (!error) {
      visit(std::move(*socket));
      return accept(acceptor);
    }
    // Out of descriptors, most likely: the connection stays in the kernel's queue, and trying again at once would only burn a core.
    spdlog::warn("accept: {}", error.message());
    accept_timer_.expires_after(std::chrono::milliseconds(kAcceptRetryMs));
    accept_timer_.async_wait([this, &acceptor](error_code) { accept(acceptor); });
  });
}

// A client sends its preface at once, so whoever has been silent longest is the one to go, and of those the address that has most of them: a flood of silent
// connections keeps nobody out.
void FrontDoor::make_room(const std::string& address) {
  auto own = from_address_.find(address);
  if (own != from_address_.end() && own->second >= kHalfOpenPerAddressMax) return drop_oldest_of(address);
  if (visitors_.size() < kHalfOpenMax) return;
  auto most = std::max_element(from_address_.begin(), from_address_.end(), [](const auto& one, const auto& other) { return one.second < other.second; });
  drop_oldest_of(std::string(most->first));
}

void FrontDoor::drop_oldest_of(const std::string& address) {
  auto oldest = std::find_if(visitors_.begin(), visitors_.end(), [&](const auto& visitor) { return visitor->caller().address == address; });
  if (oldest == visitors_.end()) return;
  spdlog::debug("dropped {}: {} connections without a preface", (*oldest)->caller().peer, visitors_.size());
  std::shared_ptr<Visitor> dropped = *oldest;
  leave(*dropped);
}

void FrontDoor::visit(StreamSocket socket) {
  auto caller = caller_of(socket);
  if (!caller) return;
  make_room(caller->address);
  ++from_address_[caller->address];
  auto visitor = std::make_shared<Visitor>(*this, std::move(socket), std::move(*caller));
  visitors_.push_back(visitor);
  visitor->read_preface();
}

void FrontDoor::admit(Visitor& visitor, uint32_t preface_flags) {
  visitor.caller().preface_flags = preface_flags;
  if (auto refusal = events_.judge(visitor.caller())) return visitor.refuse(*refusal);
  Caller caller = visitor.caller();
  OwnedDescriptor socket = visitor.release_socket();
  leave(visitor);
  events_.enter(std::move(caller), std::move(socket));
}

void FrontDoor::leave(Visitor& visitor) {
  visitor.abort();
  auto found = std::find_if(visitors_.begin(), visitors_.end(), [&](const auto& one) { return one.get() == &visitor; });
  if (found == visitors_.end()) return;
  auto count = from_address_.find(visitor.caller().address);
  if (--count->second == 0) from_address_.erase(count);
  auto kept = *found;  // until this call is over
  visitors_.erase(found);
  if (visitors_.empty()) events_.emptied();
}

}  // namespace gpuwire::server
