#include "protocol/transport/tcp.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>

#include "protocol/transport/stream.hpp"

namespace gpuwire::transport {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr int kBacklog = 128;

std::string address_text(const tcp::endpoint& endpoint) {
  auto address = endpoint.address();
  return fmt::format(fmt::runtime(address.is_v6() ? "[{}]:{}" : "{}:{}"), address.to_string(), endpoint.port());
}

std::string connect_cause(const error_code& error, Nanoseconds timeout) {
  if (error == asio::error::connection_refused) return "connection refused (is a gpuwire server running there?)";
  if (error == asio::error::timed_out || error == asio::error::operation_aborted)
    return fmt::format("no answer within {:.3g} s", std::chrono::duration<double>(timeout).count());
  return error.message();
}

}  // namespace

tl::expected<Endpoint, std::string> parse_endpoint(std::string_view text) {
  Endpoint endpoint{.port = kDefaultPort};
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    size_t close = text.find(']');
    if (close == text.npos) return tl::unexpected(std::string("missing ] after the address"));
    host = text.substr(1, close - 1);
    std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest[0] != ':') return tl::unexpected(std::string("expected :PORT after ]"));
    if (!rest.empty()) port = rest.substr(1);
    if (!rest.empty() && port.empty()) return tl::unexpected(std::string("the port is missing"));
  } else if (size_t colon = text.rfind(':'); colon != text.npos) {
    if (text.find(':') != colon) return tl::unexpected(std::string("write an IPv6 address as [ADDRESS]:PORT"));
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return tl::unexpected(std::string("the port is missing"));
  }
  if (host.empty()) return tl::unexpected(std::string("the host is missing"));
  if (!port.empty()) {
    auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
    if (error != std::errc() || end != port.data() + port.size())
      return tl::unexpected(fmt::format("\"{}\" is not a port", port));
  }
  endpoint.host = host;
  return endpoint;
}

tl::expected<std::vector<Endpoint>, std::string> resolve(const Endpoint& endpoint) try {
  asio::io_context context(1);
  error_code error;
  auto found = tcp::resolver(context).resolve(endpoint.host, std::to_string(endpoint.port),
                                              tcp::resolver::numeric_service, error);
  if (error || found.empty()) return tl::unexpected(fmt::format("unknown host ({})", error.message()));
  std::vector<Endpoint> addresses;
  for (const auto& address : found)
    addresses.push_back({address.endpoint().address().to_string(), address.endpoint().port()});
  return addresses;
} catch (const std::exception& thrown) {
  return tl::unexpected(std::string(thrown.what()));
}

tl::expected<std::unique_ptr<Transport>, std::string> connect_tcp(const Endpoint& endpoint, Nanoseconds timeout) {
  auto addresses = resolve(endpoint);
  if (!addresses) return tl::unexpected(std::move(addresses.error()));
  auto connected = connect_first(*addresses, timeout);
  if (!connected) return tl::unexpected(std::move(connected.error()));
  return std::move(connected->transport);
}

tl::expected<ConnectedFirst, std::string> connect_first(const std::vector<Endpoint>& addresses,
                                                        Nanoseconds timeout) try {
  asio::io_context context(1);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  size_t left = addresses.size();
  error_code error = asio::error::host_not_found;
  for (const Endpoint& named : addresses) {
    const tcp::endpoint address(asio::ip::make_address(named.host), named.port);
    // An address that does not answer must not use the other addresses' share of the time.
    auto now = std::chrono::steady_clock::now();
    auto until = now + std::max(deadline - now, Nanoseconds(0)) / left--;
    tcp::socket socket(context);
    error_code opened;
    socket.open(address.protocol(), opened);
    if (opened) {
      error = opened;
      continue;
    }
    size_socket_buffers(socket.native_handle(), true);
    error = asio::error::timed_out;
    socket.async_connect(address, [&](const error_code& result) { error = result; });
    context.restart();
    context.run_until(until);
    if (error) {
      // The handler refers to variables of this scope, so it has to run before the scope ends.
      error_code ignored, kept = error;
      socket.close(ignored);
      context.restart();
      context.run();
      error = kept;
      continue;
    }
    int descriptor = socket.release();
    if (auto transport = adopt_stream(descriptor, address_text(address)))
      return ConnectedFirst{std::move(transport), addresses.size() - 1 - left};
    ::close(descriptor);
    return tl::unexpected(std::string("too many open files"));
  }
  return tl::unexpected(connect_cause(error, timeout));
} catch (const std::exception& thrown) {
  return tl::unexpected(std::string(thrown.what()));
}

namespace {

class AsioListener final : public TcpListener {
 public:
  AsioListener() : acceptor_(context_) {}

  error_code open(const tcp::endpoint& endpoint) {
    error_code error;
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) size_socket_buffers(acceptor_.native_handle(), true);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(kBacklog, error);
    if (!error) acceptor_.non_blocking(true, error);
    return error;
  }

  Endpoint endpoint() const override {
    error_code ignored;
    auto local = acceptor_.local_endpoint(ignored);
    return {local.address().to_string(), local.port()};
  }
  bool loopback() const override {
    error_code ignored;
    return acceptor_.local_endpoint(ignored).address().is_loopback();
  }
  int descriptor() const noexcept override { return const_cast<tcp::acceptor&>(acceptor_).native_handle(); }

  Accepted accept() noexcept override try {
    // The kernel's accept4() sets close-on-exec atomically: the broker forks workers meanwhile.
    tcp::endpoint from;
    socklen_t size = socklen_t(from.capacity());
    int accepted = accept4(descriptor(), from.data(), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted < 0) return {-1, {}, errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? 0 : errno};
    from.resize(size);
    return {accepted, address_text(from)};
  } catch (const std::exception&) {
    return {-1, {}, ENOMEM};
  }

 private:
  asio::io_context context_{1};
  tcp::acceptor acceptor_;
};

}  // namespace

tl::expected<std::unique_ptr<TcpListener>, std::string> TcpListener::listen(const Endpoint& endpoint) try {
  asio::io_context context(1);
  error_code error;
  auto addresses = tcp::resolver(context).resolve(endpoint.host, std::to_string(endpoint.port),
                                                  tcp::resolver::passive | tcp::resolver::numeric_service, error);
  if (error || addresses.empty()) return tl::unexpected(fmt::format("unknown host ({})", error.message()));
  auto listener = std::make_unique<AsioListener>();
  if ((error = listener->open(addresses.begin()->endpoint()))) return tl::unexpected(error.message());
  return listener;
} catch (const std::exception& thrown) {
  return tl::unexpected(std::string(thrown.what()));
}

}  // namespace gpuwire::transport
