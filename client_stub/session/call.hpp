// post() and call() build one message directly in the session's send buffer. The generated functions use them: those of
// driver calls (client/forward.hpp) and of the session's own (client/session_sends.hpp).
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

// As above, for one of the session's own messages (generated/wire/session_messages.hpp). A result above the limit makes
// the call fail.
template <class Message>
[[gnu::always_inline]] inline uint32_t words_max(const Message& message) noexcept {
  return uint32_t(std::min<size_t>(words_of(message), wire::kMessageWordsMax + 1));
}

// Appends a posted call; `write` gets a Params::Builder. `sequence` is that of the frame.
//
// Inlined, because a launch spends a third of its time here; each kind has one or two callers.
template <class Params, class Write>
[[gnu::always_inline]] inline CUresult post(Session& session, uint32_t ordinal, uint32_t context, uint32_t words_max,
                                            Write&& write, const Bulk& bulk = {},
                                            uint64_t* sequence = nullptr) noexcept {
  Session::Slot slot;
  if (CUresult error = session.begin(wire::FrameKind::posted, ordinal, context, words_max, bulk, slot)) return error;
  try {
    capnp::FlatMessageBuilder message(slot.words);
    if (sequence)
      // Before `write`, which may register objects that wait for this frame's answer.
      *sequence = slot.sequence;
    write(message.initRoot<Params>());
    session.commit(slot, message.getSegmentsForOutput()[0].size());
    return CUDA_SUCCESS;
  } catch (...) {
    session.abandon(slot);
    return CUDA_ERROR_UNKNOWN;
  }
}

// Appends a called frame. The same thread must get the reply by finish_call(); frames in between share the round trip.
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

// Waits for the reply of begin_call(); `read` gets a Results::Reader, even if the result is an error. Returns the
// reply's result. A notice before the reply has already reported its `deferred`, which leave() returns. `sink` is that
// of begin_call().
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

// begin_call() and finish_call().
template <class Params, class Results, class Write, class Read>
CUresult call(Session& session, uint32_t ordinal, uint32_t context, uint32_t words_max, Write&& write, Read&& read,
              const Bulk& bulk = {}, const BulkSink& sink = {}) noexcept {
  uint64_t sequence = 0;
  if (CUresult error = begin_call<Params>(session, ordinal, context, words_max, write, sequence, bulk, sink))
    return error;
  return finish_call<Results>(session, sequence, read, sink);
}

}  // namespace gpuwire::client
