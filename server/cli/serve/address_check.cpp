#include "server/cli/serve/address_check.hpp"

#include <array>
#include <cstring>
#include <filesystem>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "protocol/transport/connecting.hpp"
#include "protocol/wire/preface.hpp"
#include "server/base/owned_descriptor.hpp"
#include "server/cli/serve/folder_check.hpp"
#include "server/config/listen_address.hpp"

namespace gpuwire::server {
namespace {

namespace asio = boost::asio;
namespace fs = std::filesystem;

// Identifies the server behind a connection, by its answer.
using Recognise = bool (*)(int connection);

void limit_waits(int connection) {
  const timeval limit{kWhoHasItMs / 1000, kWhoHasItMs % 1000 * 1000};
  static_cast<void>(::setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  static_cast<void>(::setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
}

// Reads up to this many bytes, until they are `enough` or no more arrive.
std::string answer_of(int connection, const void* question, size_t bytes, size_t answer_bytes_max,
                      bool (*enough)(const std::string& answer)) {
  std::string answer;
  if (::send(connection, question, bytes, MSG_NOSIGNAL) != ssize_t(bytes)) return answer;
  std::array<char, 4096> piece;
  while (answer.size() < answer_bytes_max && !enough(answer)) {
    const ssize_t got = ::recv(connection, piece.data(), std::min(piece.size(), answer_bytes_max - answer.size()), 0);
    if (got <= 0) break;
    answer.append(piece.data(), size_t(got));
  }
  return answer;
}

wire::ServerAnswer sender_of(const std::string& answer) {
  wire::Preface preface;
  std::string said;
  return wire::check_server(std::as_bytes(std::span(answer)), preface, said);
}

// Sends a preface without a version: the broker refuses it, and starts no worker for it.
bool is_server(int connection) {
  wire::Preface question = wire::own_preface();
  question.protocol_major = question.protocol_minor = 0;
  const wire::PrefaceBytes bytes = wire::encode(question);
  // Other servers may send less than a preface and then wait.
  const auto enough = [](const std::string& answer) { return sender_of(answer) != wire::ServerAnswer::incomplete; };
  const wire::ServerAnswer who =
      sender_of(answer_of(connection, bytes.data(), bytes.size(), sizeof(wire::Preface), enough));
  return who != wire::ServerAnswer::incomplete && who != wire::ServerAnswer::not_gpuwire;
}

bool is_no_http(const std::string& answer) {
  constexpr std::string_view kHttp = "HTTP/";
  return answer.size() >= kHttp.size() && !answer.starts_with(kHttp);
}

bool has_metrics(const std::string& answer) { return answer.find("gpuwire_up") != std::string::npos; }

bool is_metrics(int connection) {
  constexpr std::string_view kQuestion = "GET /metrics HTTP/1.0\r\n\r\n";
  constexpr size_t kAnswerBytesMax = 4 << 20;
  const auto enough = [](const std::string& answer) { return is_no_http(answer) || has_metrics(answer); };
  return has_metrics(answer_of(connection, kQuestion.data(), kQuestion.size(), kAnswerBytesMax, enough));
}

bool has_web_page(const std::string& answer) { return answer.find("Server: gpuwire-web") != std::string::npos; }

bool is_web_page(int connection) {
  constexpr std::string_view kQuestion = "GET /sign-in HTTP/1.0\r\n\r\n";
  constexpr size_t kAnswerBytesMax = 16 << 10;
  const auto enough = [](const std::string& answer) { return is_no_http(answer) || has_web_page(answer); };
  return has_web_page(answer_of(connection, kQuestion.data(), kQuestion.size(), kAnswerBytesMax, enough));
}

bool answers(const sockaddr* address, socklen_t bytes, Recognise recognise) {
  OwnedDescriptor connection(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!connection) return false;
  limit_waits(connection.get());
  return transport::connect_through_signals(connection.get(), address, bytes) == 0 && recognise(connection.get());
}

// Returns this machine's addresses for a wildcard address.
std::vector<asio::ip::address> own_addresses(bool v6) {
  std::vector<asio::ip::address> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    if (!one->ifa_addr) continue;
    if (one->ifa_addr->sa_family == AF_INET) {
      const auto* in = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
      found.emplace_back(asio::ip::address_v4(ntohl(in->sin_addr.s_addr)));
    } else if (v6 && one->ifa_addr->sa_family == AF_INET6) {
      const auto* in = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      asio::ip::address_v6::bytes_type bytes;
      std::memcpy(bytes.data(), &in->sin6_addr, bytes.size());
      found.emplace_back(asio::ip::address_v6(bytes, in->sin6_scope_id));
    }
  }
  ::freeifaddrs(list);
  return found;
}

bool has(const asio::ip::tcp::endpoint& endpoint, Recognise recognise) {
  if (!endpoint.address().is_unspecified()) return answers(endpoint.data(), socklen_t(endpoint.size()), recognise);
  for (const asio::ip::address& address : own_addresses(endpoint.address().is_v6())) {
    const asio::ip::tcp::endpoint one(address, endpoint.port());
    if (answers(one.data(), socklen_t(one.size()), recognise)) return true;
  }
  return false;
}

std::string wrong_with_endpoint(const std::string& text, const asio::ip::tcp::endpoint& endpoint, Recognise recognise) {
  asio::io_context io;
  asio::ip::tcp::acceptor acceptor(io);
  boost::system::error_code error;
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(asio::ip::tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error || (error == asio::error::address_in_use && has(endpoint, recognise))) return {};
  if (error == asio::error::address_in_use)
    return fmt::format("cannot listen on {}: the address is in use, and not by a gpuwire server", text);
  return fmt::format("cannot listen on {}: {}", text, error.message());
}

}  // namespace

std::string wrong_with_socket(const std::string& path) {
  if (path.size() >= sizeof(sockaddr_un::sun_path)) return fmt::format("{} is too long for the path of a socket", path);
  const fs::path file(path), folder = fs::absolute(file).parent_path();
  std::error_code error;
  if (fs::exists(file, error) && !fs::is_socket(file, error)) return fmt::format("{} exists and is not a socket", path);
  const std::string wrong = wrong_with_making(folder);
  return wrong.empty() ? wrong : fmt::format("{}: {}", path, wrong);
}

std::string wrong_with_address(const std::string& text) {
  auto address = parse_listen(text);
  if (!address) return address.error();
  if (address->tcp) return wrong_with_endpoint(text, *address->tcp, is_server);
  if (std::string wrong = wrong_with_socket(address->unix_path); !wrong.empty()) return wrong;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path, address->unix_path.c_str(), address->unix_path.size() + 1);
  auto reached = [](int) { return true; };
  const auto* generic = reinterpret_cast<const sockaddr*>(&name);
  // A socket without a listener was left by an ended server.
  if (!answers(generic, sizeof name, reached) || answers(generic, sizeof name, is_server)) return {};
  return fmt::format("cannot listen on {}: the address is in use, and not by a gpuwire server", text);
}

std::string wrong_with_metrics_address(const std::string& text) {
  auto address = parse_listen(text);
  if (!address) return address.error();
  return address->tcp ? wrong_with_endpoint(text, *address->tcp, is_metrics) : wrong_with_socket(address->unix_path);
}

std::string wrong_with_web_address(const std::string& text) {
  auto address = parse_listen_address(text);
  return address ? wrong_with_endpoint(text, *address, is_web_page) : address.error();
}

}  // namespace gpuwire::server
