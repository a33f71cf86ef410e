// A connection with a recording as its peer: it delivers the recorded data in pieces, then the end, and discards sent
// data.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include "protocol/transport/transport.hpp"

namespace gpuwire::test {

class Recorded final : public transport::Transport {
 public:
  Recorded(std::span<const std::byte> bytes, size_t piece) : bytes_(bytes), piece_(piece) {}
  transport::IoResult try_send(std::span<const iovec> pieces) noexcept override {
    size_t all = 0;
    for (const iovec& piece : pieces) all += piece.iov_len;
    return {transport::IoStatus::ok, all};
  }
  transport::IoResult try_receive(std::span<std::byte> out) noexcept override {
    auto got = peek(out.first(std::min(out.size(), piece_)));
    bytes_ = bytes_.subspan(got.bytes);
    return got;
  }
  // Returns the receivable data without consuming them.
  transport::IoResult peek(std::span<std::byte> out) const {
    size_t size = std::min(bytes_.size(), out.size());
    if (size == 0) return {transport::IoStatus::closed};
    std::memcpy(out.data(), bytes_.data(), size);
    return {transport::IoStatus::ok, size};
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

// Checks for one line of text without control characters.
inline void check_line(const std::string& line) {
  bool fine = !line.empty() && line.size() < 4096 && std::none_of(line.begin(), line.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == 0x7f;
  });
  if (fine) return;
  std::fprintf(stderr, "no line for a terminal, %zu bytes: \"%s\"\n", line.size(), line.c_str());
  std::abort();
}

}  // namespace gpuwire::test
