// The input is a peer's data on a connection that resumes a session: for the client, whose secret the peer does not
// know, and for the server, which asks for a proof of the secret. No peer without the secret is accepted, and a
// reported cause has one line.
#include <chrono>
#include <cstdlib>

#include "protocol/resume/exchange.hpp"
#include "protocol/wire/limits.hpp"
#include "test/fuzz/frame_fuzz.hpp"
#include "test/fuzz/recorded.hpp"

using namespace gpuwire;

namespace {

constexpr std::chrono::seconds kLimit{10};  // a recording is never waited for
constexpr resume::SessionId kSession{1, 2, 3};
constexpr resume::Secret kSecret{4, 5, 6};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  auto bytes = std::as_bytes(std::span(data + 1, size - 1));
  const size_t piece = 1 + size_t(data[0]);
  test::Recorded server(bytes, piece);
  std::optional<resume::Lane> lane;
  if (data[0] % 4 == 0) lane = {.set = 1, .number = 2, .count = 3};
  auto received = resume::ask(server, {kSession, kSecret, 7, 1000, "127.0.0.1:1", "machine", lane}, kLimit);
  if (!received) {
    test::check_line(received.error().cause);
    if (received.error().cause.size() > wire::kRefusalBytesMax + 256) std::abort();
  }
  test::Recorded client(bytes, piece);
  auto heard = resume::receive_request(client, kSession, kSecret, kLimit);
  if (heard) std::abort();
  test::check_line(heard.error());
  return 0;
}
