// The input is a server's data for a client that logs in: its preface and answers, in pieces, then the end. For any
// input the client is admitted, or has a reason of one line, and writes no control characters to the terminal.
#include <memory>

#include "client_stub/session/login.hpp"
#include "test/fuzz/frame_fuzz.hpp"
#include "test/fuzz/recorded.hpp"

using namespace gpuwire;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  client::Entry entry{.host = "gpu7", .gpus = data[0] % 3u};
  auto entered =
      client::enter(std::make_unique<test::Recorded>(std::as_bytes(std::span(data + 1, size - 1)), 1 + size_t(data[0])),
                    entry, test::check_line);
  if (!entered) test::check_line(entered.error().cause);
  return 0;
}
