#include "test/protocol/api/session_round_trip.hpp"

#include "protocol/cuda_abi/peer_code.hpp"
#include "wire/session_frames.hpp"

namespace gpuwire::test {

CUresult KeepingSession::begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t most,
                               const client::Bulk& bulk, Slot& slot) noexcept {
  header = {
      .kind = uint8_t(kind), .ordinal = ordinal, .sequence = ++sequence, .context = context, .bulk_bytes = bulk.bytes};
  words_max = most;
  words.assign(most, 0);
  slot.words = kj::arrayPtr(reinterpret_cast<capnp::word*>(words.data()), words.size());
  slot.sequence = sequence;
  return CUDA_SUCCESS;
}

void KeepingSession::commit(Slot&, size_t words_used) noexcept {
  words.resize(words_used);
  ++frames;
}

CUresult KeepingSession::wait(uint64_t, ReplyReader read, void* user, const client::BulkSink& sink) noexcept {
  awaited_bytes = sink.bytes;
  try {
    wire::SegmentReader message(kj::arrayPtr(reinterpret_cast<const capnp::word*>(reply.data()), reply.size()));
    read(user, message);
    return CUDA_SUCCESS;
  } catch (const kj::Exception&) {
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
}

void KeepingOutbox::notice(wire::NoticeOrdinal which, capnp::MessageBuilder& message, std::span<const std::byte> bulk) {
  auto all = message.getSegmentsForOutput();
  auto* first = reinterpret_cast<const uint64_t*>(all[0].begin());
  words.assign(first, first + all[0].size());
  segments = all.size();
  ordinal = which;
  bulk_bytes = bulk.size();
  ++notices;
}

void SessionRound::leaves() { left_ += sequence == session.sequence && session.frames == 0; }

void SessionRound::begun(CUresult result) {
  found.note("begun",
             result == CUDA_SUCCESS && sequence == session.sequence && session.frames == 1 && replies_read == 0);
}

void SessionRound::sent_frame(wire::FrameKind kind, uint32_t ordinal) {
  const wire::FrameHeader& header = session.header;
  found.note("one frame", session.frames == 1 && session.abandoned == 0);
  found.note("kind", header.kind == uint8_t(kind));
  found.note("ordinal", header.ordinal == ordinal);
  found.note("context", header.context == context);
  found.note("words", session.words.size() == session.words_max);
  found.note("bulk", header.bulk_bytes == (wire::bulk_bytes_max(kind, ordinal) ? bulk_.size() : 0));
  found.note("posted", kind != wire::FrameKind::posted || wire::session_call(ordinal).posted);
}

void SessionRound::called_with(CUresult result, int32_t told, unsigned replies) {
  found.note("result", result == cuda_abi::from_peer(told));
  found.note("reply read", replies_read == replies);
  size_t asked = wire::bulk_bytes_max(wire::FrameKind::reply, session.header.ordinal) ? bulk_.size() : 0;
  found.note("sink", session.expected_bytes == asked && session.awaited_bytes == asked);
}

}  // namespace gpuwire::test
