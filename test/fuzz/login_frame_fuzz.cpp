// The input is a client's data in place of a login, in pieces. The result does not depend on the pieces, the reader
// takes no byte after the login, and the stored texts are safe for a log.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <tuple>

#include "server/login/limits.hpp"
#include "server/login/login_frame.hpp"
#include "test/fuzz/frame_fuzz.hpp"

namespace {

using namespace gpuwire;
using namespace gpuwire::server;

using Outcome = std::tuple<LoginFrameReader::State, size_t, std::string, std::string, std::string>;

Outcome read(std::span<const std::byte> bytes, size_t piece) {
  LoginFrameReader reader;
  auto state = LoginFrameReader::State::incomplete;
  size_t taken = 0;
  while (state == LoginFrameReader::State::incomplete && taken < bytes.size()) {
    auto space = reader.space();
    if (space.empty()) std::abort();
    size_t count = std::min({space.size(), piece, bytes.size() - taken});
    std::memcpy(space.data(), bytes.data() + taken, count);
    taken += count;
    state = reader.filled(count);
  }
  if (taken > sizeof(wire::FrameHeader) + wire::kLoginBytesMax) std::abort();
  return {state, taken, reader.fault(), reader.frame().program, reader.frame().token};
}

void check_text(const std::string& text) {
  bool fine = text.size() <= kLoginTextBytesMax &&
              std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; });
  if (!fine) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  Outcome whole = read(bytes, bytes.size());
  if (whole != read(bytes, 1 + size_t(data[0]))) std::abort();
  check_text(std::get<3>(whole));
  return 0;
}
