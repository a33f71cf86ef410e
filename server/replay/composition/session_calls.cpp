// The calls that measure the connection, report the session's account of time, and ask for a profile.
#include <algorithm>
#include <memory>
#include <vector>

#include "protocol/wire/limits.hpp"
#include "server/base/zeroed_memory.hpp"
#include "server/replay/call/profiler.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/replay/session/replay_state.hpp"
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
  // The zeros live as long as the process, so the keeper owns nothing.
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

namespace {

void send_clock(Replay& replay, Call& call, CUresult result) {
  SmallMessage<> message;
  auto reply = message.root<schema::ProfileClockReply>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  // The clock is read last, directly before the reply is sent.
  if (Profiler* profiler = replay.profiler()) reply.setNowNs(profiler->now_ns());
  call.answered = true;
  replay.outbox().reply(call.header.sequence, *message);
}

}  // namespace

void profile_begin(Replay& replay, Call& call) {
  Profiler* profiler = replay.profiler();
  if (!profiler) return send_clock(replay, call, CUDA_ERROR_NOT_SUPPORTED);
  // Once the session has a context, other threads may be in the functions that would be wrapped for timing.
  const bool early = replay.state().contexts().empty();
  send_clock(replay, call, early ? profiler->begin(replay.handles(), replay.outbox()) : CUDA_ERROR_ILLEGAL_STATE);
}

void profile_clock(Replay& replay, Call& call) {
  send_clock(replay, call, replay.profiler() ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
}

void profile_end(Replay& replay, Call& call) {
  Profiler* profiler = replay.profiler();
  const Profiler::Totals totals = profiler ? profiler->end() : Profiler::Totals{};
  SmallMessage<> message;
  auto reply = message.root<schema::ProfileEndReply>();
  reply.setResult(profiler ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
  reply.setDeferred(replay.take_deferred());
  reply.setTimed(totals.timed);
  reply.setDropped(totals.dropped);
  reply.setErrorNs(totals.error_ns);
  call.answered = true;
  replay.outbox().reply(call.header.sequence, *message);
}

}  // namespace gpuwire::server
