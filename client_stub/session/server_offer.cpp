#include "client_stub/session/server_offer.hpp"

#include <algorithm>
#include <charconv>

#include "client_stub/session/printable.hpp"

namespace gpuwire::client {

namespace {

constexpr unsigned kPermille = 1000;

template <class Number>
bool read(std::string_view text, Number& number) {
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && rest == text.data() + text.size();
}

std::string_view take_word(std::string_view& text) {
  const size_t end = std::min(text.find(' '), text.size());
  std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

bool read_start(std::string_view word, ServerOffer::Start& start) {
  if (word == "now") start = ServerOffer::Start::now;
  else if (word == "queued") start = ServerOffer::Start::queued;
  else if (word == "no") start = ServerOffer::Start::no;
  else return false;
  return true;
}

bool read_gpu(std::string_view line, ServerOffer& offer) {
  OfferedGpu gpu;
  if (!read(take_word(line), gpu.free_bytes) || !read(take_word(line), gpu.total_bytes) ||
      !read(take_word(line), gpu.sessions) || !read(take_word(line), gpu.busy_permille))
    return false;
  gpu.free_bytes = std::min(gpu.free_bytes, gpu.total_bytes);
  gpu.busy_permille = std::min(gpu.busy_permille, kPermille);
  gpu.name = printable(line);
  if (offer.gpus.size() < kOfferedGpusMax) offer.gpus.push_back(std::move(gpu));
  return true;
}

// Ignores lines with an unknown first word, which a newer server sends.
bool read_line(std::string_view line, ServerOffer& offer) {
  const std::string_view key = take_word(line);
  if (key == "start") return read_start(line, offer.start);
  if (key == "place") return read(line, offer.place);
  if (key == "waiting") return read(line, offer.waiting);
  if (key == "in") return read(line, offer.after_s.emplace());
  if (key == "why") return offer.why = printable(line), true;
  if (key == "gpu") return read_gpu(line, offer);
  return true;
}

}  // namespace

std::optional<ServerOffer> parse_offer(std::string_view answer) {
  ServerOffer offer;
  for (size_t lines = 0; !answer.empty(); ++lines) {
    const size_t end = std::min(answer.find('\n'), answer.size());
    if (lines == kOfferLinesMax || !read_line(answer.substr(0, end), offer)) return std::nullopt;
    answer.remove_prefix(std::min(end + 1, answer.size()));
  }
  if (offer.start == ServerOffer::Start::unknown) return std::nullopt;
  return offer;
}

}  // namespace gpuwire::client
