#include "server/web/arrival.hpp"

#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include <sys/uio.h>

#include "protocol/transport/descriptor_passing.hpp"
#include "server/control/client/metrics_json.hpp"
#include "server/web/limits.hpp"

namespace gpuwire::server::web {
namespace {

std::string word_of(const Json& words, const char* name) {
  auto found = words.find(name);
  return found != words.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

bool send_arrival(int pair, const Arrival& arrival) {
  std::string words = dump({{"peer", arrival.peer},
                            {"grant", arrival.certificate.grant},
                            {"holder", arrival.certificate.holder},
                            {"refusal", arrival.certificate.refusal}});
  if (words.size() > kArrivalBytesMax) return false;
  const iovec part{words.data(), words.size()};
  const int socket = arrival.socket.get();
  return transport::send_with_descriptors(pair, {&part, 1}, {&socket, 1}) == ssize_t(words.size());
}

std::optional<Arrival> receive_arrival(int pair, bool& over) {
  std::array<char, kArrivalBytesMax> bytes;
  const iovec part{bytes.data(), bytes.size()};
  transport::PassedDescriptors passed;
  const auto received = transport::receive_with_descriptors(pair, {&part, 1}, passed);
  over = received.bytes == 0 || (received.bytes < 0 && errno != EAGAIN);
  if (received.bytes <= 0 || passed.count() != 1) return std::nullopt;
  const Json words = Json::parse(std::string_view(bytes.data(), size_t(received.bytes)), nullptr, false);
  if (!words.is_object()) return std::nullopt;
  return Arrival{OwnedDescriptor(passed.take(0)), word_of(words, "peer"),
                 Certificate{word_of(words, "grant"), word_of(words, "holder"), word_of(words, "refusal")}};
}

}  // namespace gpuwire::server::web
