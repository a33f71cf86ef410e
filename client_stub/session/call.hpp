// post() and call(): one message each, built straight in the session's send buffer. Generated functions are made of
// them: those of driver calls (client/forward.hpp) and of the session's own (client/session_sends.hpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include <capnp/message.h>
#include <kj/exception.h>

#include "client_stub/session/session.hpp"
#include "protocol/cuda_abi/peer_code.hpp"
#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

// Words of a message of type Params with `data_bytes` bytes in lists, texts and data (of `lists` pieces).
template <class Params>
constexpr uint32_t message_words(size_t data_bytes = 0, size_t lists = 0) {
  auto size = capnp::_::structSize<Params>();
  return 1 + size.data + size.pointers + uint32_t((data_bytes + 7) / 8 + 2 * lists);
}

// The same for one of the session's own messages (generated/wire/session_messages.hpp). Refuses a message that exceeds
// the limit.
template <class Message>
[[gnu::always_inline]] inline uint32_t words_max(const Message& message) noexcept {
  return uint32_t(std::min<size_t>(words_of(message), wire::kMessageWordsMax + 1));
}

// Appends a posted call; `write` gets a Params::Builder. `sequence` is that of the frame.
// Inlined at its call, of which each kind has one or two: a launch spends a third of its time here.
template <class Params, class Write>
[[gnu::always_inline]] inline CUresult post(Session& session, uint32_t ordinal, uint32_t context, uint32_t words_max,
                                            Write&& write, const Bulk& bulk = {},
                                            uint64_t* sequence = nullptr) noexcept {
  Session::Slot slot;
  if (CUresult error = session.begin(wire::FrameKind::posted, ordinal, context, words_max, bulk, slot)) return error;
  try {
    capnp::FlatMessageBuilder message(slot.words);
    if (sequence)
      *sequence = slot.sequence;  // before `write`, which may register objects that wait for this frame's answer
    write(message.initRoot<Params>());
    session.commit(slot, message.getSegmentsForOutput()[0].size());
    return CUDA_SUCCESS;
  } catch (...) {
    session.abandon(slot);
    return CUDA_ERROR_UNKNOWN;
  }
}

// Appends a called frame. The same thread has to fetch its reply by finish_call(); frames in between travel in the same
// round trip.
template <class Params, class Write>
CUresult begin_call(Session& session, uint32_t ordinal, uint32_t context, uint32_t words_max, Write&& write,
                    uint64_t& sequence, const Bulk& bulk = {}, const BulkSink& sink = {}) noexcept {
  Session::Slot slot;
  if (CUresult error = session.begin(wire::FrameKind::called, ordinal, context, words_max, bulk, slot)) return error;
  sequence = slot.sequence;
  try {
    capnp::FlatMessageBuilder message(slot.words);
    write(message.initRoot<Params>());
    session.expect_reply(slot, sink);
    session.commit(slot, message.getSegmentsForOutput()[0].size());
  } catch (...) {
    session.abandon(slot);
    return CUDA_ERROR_UNKNOWN;
  }
  return CUDA_SUCCESS;
}

// Waits for that reply; `read` gets a Results::Reader, also when the result is an error. Returns the reply's result. A
// notice before the reply has reported its `deferred` already, which surfaces in leave(). The sink is the one given to
// begin_call().
template <class Results, class Read>
CUresult finish_call(Session& session, uint64_t sequence, Read&& read, const BulkSink& sink = {}) noexcept {
  struct Reply {
    Read& read;
    CUresult result = CUDA_ERROR_UNKNOWN;
  } reply{read};
  CUresult waited = session.wait(
      sequence,
      [](void* user, capnp::MessageReader& message) {
        auto& self = *static_cast<Reply*>(user);
        auto results = message.getRoot<Results>();
        self.result = cuda_abi::from_peer(results.getResult());
        self.read(results);
        return self.result;
      },
      &reply, sink);
  return waited ? waited : reply.result;
}

// Both at once.
template <class Params, class Results, class Write, class Read>
CUresult call(Session& session, uint32_t ordinal, uint32_t context, uint32_t words_max, Write&& write, Read&& read,
              const Bulk& bulk = {}, const BulkSink& sink = {}) noexcept {
  uint64_t sequence = 0;
  if (CUresult error = begin_call<Params>(session, ordinal, context, words_max, write, sequence, bulk, sink))
    return error;
  return finish_call<Results>(session, sequence, read, sink);
}

}  // namespace gpuwire::client
