#include "server/control/client/control_client.hpp"

#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "protocol/transport/connecting.hpp"
#include "server/control/client/limits.hpp"

namespace gpuwire::server {

tl::expected<ControlClient, std::string> ControlClient::connect(const std::filesystem::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string text = path.string();
  if (text.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return tl::unexpected(fmt::format("{} is too long for the path of a socket", text));
  }
  std::memcpy(address.sun_path, text.data(), text.size());
  ControlClient client;
  client.socket_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!client.socket_ || transport::connect_through_signals(
                             client.socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    int cause = errno;
    std::string error = fmt::format("no server answers at {}: {}", text, std::strerror(cause));
    client.socket_.reset();
    errno = cause;
    return tl::unexpected(error);
  }
  return client;
}

tl::expected<Json, std::string> ControlClient::ask(const Json& request, uint32_t timeout_ms) {
  std::string line = dump(request) + "\n";
  for (std::string_view rest = line; !rest.empty();) {
    ssize_t sent = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0)
      return tl::unexpected(
          fmt::format("the server's control socket does not take the request: {}", std::strerror(errno)));
    rest.remove_prefix(size_t(sent));
  }
  return next_answer(int(timeout_ms));
}

tl::expected<Json, std::string> ControlClient::next_answer(int timeout_ms) {
  using Clock = std::chrono::steady_clock;
  auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
  size_t looked = 0;
  size_t end = 0;
  while ((end = received_.find('\n', looked)) == std::string::npos) {
    looked = received_.size();
    if (looked > kControlAnswerBytesMax)
      return tl::unexpected(fmt::format("an answer of more than {} bytes", kControlAnswerBytesMax));
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    pollfd ready{socket_.get(), POLLIN, 0};
    int polled = left > 0 ? ::poll(&ready, 1, int(left)) : 0;
    if (polled < 0 && errno == EINTR) continue;
    if (polled == 0) return tl::unexpected(fmt::format("no answer within {} ms", timeout_ms));
    char piece[65536];
    ssize_t got = ::recv(socket_.get(), piece, sizeof piece, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return tl::unexpected(std::string("the server has closed the control connection"));
    received_.append(piece, size_t(got));
  }
  Json answer = Json::parse(received_.begin(), received_.begin() + std::ptrdiff_t(end), nullptr, false);
  received_.erase(0, end + 1);
  if (!answer.is_object()) return tl::unexpected(std::string("an answer that is not a JSON object"));
  if (auto ok = answer.find("ok"); ok == answer.end() || *ok != true) {
    auto error = answer.find("error");
    std::string text = error != answer.end() && error->is_string() ? error->get<std::string>() : "the server refuses";
    if (auto lines = answer.find("errors"); lines != answer.end() && lines->is_array())
      for (const Json& one : *lines) text += "\n  " + (one.is_string() ? one.get<std::string>() : dump(one));
    return tl::unexpected(text);
  }
  return answer;
}

tl::expected<Snapshot, std::string> ControlClient::snapshot() {
  auto answer = ask({{"command", "snapshot"}});
  if (!answer) return tl::unexpected(answer.error());
  auto found = answer->find("snapshot");
  if (found == answer->end()) return tl::unexpected(std::string("an answer without a snapshot"));
  return snapshot_from_json(*found);
}

}  // namespace gpuwire::server
