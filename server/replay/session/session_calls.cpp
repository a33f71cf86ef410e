// The calls that measure the connection, and tell where the session's time went.
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

void session_account(Replay& replay, Call& call) {
  const SessionTimes times = replay.times();
  auto ns = [](std::chrono::nanoseconds time) { return uint64_t(std::max<int64_t>(time.count(), 0)); };
  SmallMessage<> message;
  auto reply = message.root<schema::SessionAccountReply>();
  reply.setResult(CUDA_SUCCESS);
  reply.setDeferred(replay.take_deferred());
  reply.setAgeNs(ns(times.age));
  reply.setInputNs(ns(times.input));
  reply.setDeviceNs(ns(times.device));
  reply.setHeldNs(ns(times.held));
  reply.setHeld(times.held_count);
  reply.setGpuNs(ns(times.gpu));
  reply.setGpuCounted(times.gpu_counted);
  call.answered = true;
  replay.outbox().reply(call.header.sequence, *message);
}

}  // namespace gpuwire::server
