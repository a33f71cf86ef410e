#include "protocol/transport/transport.hpp"

#include <algorithm>
#include <system_error>

namespace gpuwire::transport {

namespace {

using Clock = std::chrono::steady_clock;

iovec piece_from(const iovec& piece, size_t skip) {
  return {static_cast<char*>(piece.iov_base) + skip, piece.iov_len - skip};
}

}  // namespace

IoResult send_all(Transport& transport, std::span<const iovec> data, Nanoseconds timeout) noexcept {
  auto deadline = Clock::now() + timeout;
  size_t sent = 0, piece = 0, offset = 0;
  while (piece < data.size()) {
    if (offset == data[piece].iov_len) {
      ++piece;
      offset = 0;
      continue;
    }
    iovec pieces[kPiecesMax];
    size_t count = std::min(data.size() - piece, kPiecesMax);
    pieces[0] = piece_from(data[piece], offset);
    std::copy_n(data.begin() + piece + 1, count - 1, pieces + 1);
    IoResult result = transport.try_send({pieces, count});
    if (result.status == IoStatus::would_block) {
      auto left = deadline - Clock::now();
      if (left.count() <= 0) return {IoStatus::would_block, sent};
      transport.wait(kWritable, left);
      continue;
    }
    if (result.status != IoStatus::ok) return {result.status, sent, result.error};
    sent += result.bytes;
    size_t moved = result.bytes;
    while (moved && piece < data.size()) {
      size_t step = std::min(moved, data[piece].iov_len - offset);
      offset += step;
      moved -= step;
      if (offset == data[piece].iov_len && moved) {
        ++piece;
        offset = 0;
      }
    }
  }
  return {IoStatus::ok, sent};
}

IoResult receive_all(Transport& transport, std::span<std::byte> out, Nanoseconds timeout) noexcept {
  auto deadline = Clock::now() + timeout;
  size_t got = 0;
  while (got < out.size()) {
    IoResult result = transport.try_receive(out.subspan(got));
    if (result.status == IoStatus::would_block) {
      auto left = deadline - Clock::now();
      if (left.count() <= 0) return {IoStatus::would_block, got};
      transport.wait(kReadable, left);
      continue;
    }
    if (result.status != IoStatus::ok) return {result.status, got, result.error};
    got += result.bytes;
  }
  return {IoStatus::ok, got};
}

std::string describe(const IoResult& result) {
  switch (result.status) {
    case IoStatus::ok: return "no error";
    case IoStatus::would_block: return "no answer in time";
    case IoStatus::closed: return "the other side closed the connection";
    case IoStatus::failed: break;
  }
  return std::system_category().message(result.error);
}

}  // namespace gpuwire::transport
