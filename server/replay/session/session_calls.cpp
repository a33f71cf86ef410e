// The calls that measure the connection.
#include <algorithm>
#include <memory>
#include <vector>

#include "protocol/wire/limits.hpp"
#include "server/base/zeroed_memory.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/session_handlers.hpp"
#include "wire/session_frames.hpp"

namespace gpuwire::server {

namespace {

constexpr size_t kSinkPieceBytes = 256u << 10;

}  // namespace

void ping(Replay& replay, Call& call) { finish(replay, call, CUDA_SUCCESS); }

void sink(Replay& replay, Call& call) {
  std::vector<std::byte> piece(std::min<uint64_t>(call.bulk.remaining(), kSinkPieceBytes));
  while (call.bulk.remaining() > 0) {
    if (!call.bulk.read(std::span(piece).first(std::min<uint64_t>(call.bulk.remaining(), piece.size())))) return;
  }
  finish(replay, call, CUDA_SUCCESS);
}

void source(Replay& replay, Call& call) {
  uint64_t bytes = call.message.getRoot<schema::Source>().getBytes();
  constexpr uint64_t kBytesMax = wire::reply_bulk_bytes_max(wire::SessionOrdinal::source);
  if (bytes > kBytesMax) throw ProtocolFault{"source: more bytes than a reply may carry"};
  // Never written, so it takes no memory, and filling it is not measured.
  static const ZeroedMemory zeros(kBytesMax);
  if (!zeros) return finish(replay, call, CUDA_ERROR_OUT_OF_MEMORY);
  call.answered = true;
  // It stays for ever, which a keeper of nothing says.
  static const auto kept = std::make_shared<const char>();
  send_result(replay, call.header.sequence, CUDA_SUCCESS, zeros.bytes().first(bytes), kept);
}

}  // namespace gpuwire::server
