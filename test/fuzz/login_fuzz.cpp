// The input is what a server says to a client that logs in: its preface and answers, in pieces, then the end. Whatever
// it is, the client is admitted, or has one line of text about why not, and shows nothing on the terminal that could do
// something to it.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "client_stub/session/login.hpp"
#include "test/fuzz/frame_fuzz.hpp"

namespace {

using namespace gpuwire;
using transport::IoResult;
using transport::IoStatus;

class Recorded final : public transport::Transport {
 public:
  Recorded(std::span<const std::byte> bytes, size_t piece) : bytes_(bytes), piece_(piece) {}
  IoResult try_send(std::span<const iovec> pieces) noexcept override {
    size_t all = 0;
    for (const iovec& piece : pieces) all += piece.iov_len;
    return {IoStatus::ok, all};
  }
  IoResult try_receive(std::span<std::byte> out) noexcept override {
    size_t size = std::min({bytes_.size(), piece_, out.size()});
    if (size == 0) return {IoStatus::closed};
    std::memcpy(out.data(), bytes_.data(), size);
    bytes_ = bytes_.subspan(size);
    return {IoStatus::ok, size};
  }
  unsigned wait(unsigned interest, transport::Nanoseconds) noexcept override { return interest; }
  void wake() noexcept override {}
  void finish() noexcept override {}
  void shutdown() noexcept override {}
  int descriptor() const noexcept override { return -1; }
  void abandon_after_fork() noexcept override {}
  std::string peer() const override { return "a recording"; }

 private:
  std::span<const std::byte> bytes_;
  const size_t piece_;
};

void check_line(const std::string& line) {
  bool fine = !line.empty() && line.size() < 4096 && std::none_of(line.begin(), line.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == 0x7f;
  });
  if (!fine) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  client::Entry entry{.host = "gpu7", .gpus = data[0] % 3u};
  auto entered = client::enter(
      std::make_unique<Recorded>(std::as_bytes(std::span(data + 1, size - 1)), 1 + size_t(data[0])), entry, check_line);
  if (!entered) check_line(entered.error().cause);
  return 0;
}
