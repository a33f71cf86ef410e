// How hand-written calls answer.
#pragma once

#include <cuda.h>

#include <memory>
#include <span>
#include <string>
#include <utility>

#include <capnp/message.h>

#include "schema/session.capnp.h"
#include "server/replay/call/explain.hpp"
#include "server/replay/replay.hpp"

namespace gpuwire::server {

// A message small enough to be built without an allocation.
template <size_t kWords = 32>
class SmallMessage {
 public:
  capnp::MallocMessageBuilder& operator*() { return builder_; }
  template <class Struct>
  typename Struct::Builder root() {
    return builder_.initRoot<Struct>();
  }

 private:
  capnp::word scratch_[kWords] = {};
  capnp::MallocMessageBuilder builder_{kj::arrayPtr(scratch_, kWords)};
};

// Sends the reply of a called frame that has only a result. Any thread. `keeper`: see Outbox::reply_kept().
inline void send_result(Replay& replay, uint64_t sequence, CUresult result, std::span<const std::byte> bulk = {},
                        std::shared_ptr<const void> keeper = {}) {
  explain(replay, result);
  SmallMessage<> message;
  auto reply = message.root<schema::Result>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  if (keeper) return replay.outbox().reply_kept(sequence, *message, bulk, std::move(keeper));
  replay.outbox().reply(sequence, *message, bulk);
}

// Ends a frame of either kind: a called one gets a schema::Result, a posted one leaves its failure as a deferred error.
inline void finish(Replay& replay, Call& call, CUresult result, std::string message = {}) {
  if (call.header.kind == uint8_t(wire::FrameKind::called)) {
    call.answered = true;
    send_result(replay, call.header.sequence, result);
  } else if (result != CUDA_SUCCESS) {
    replay.fail_posted(call.header, result, std::move(message));
  }
}

// Calls a driver function. Returns CUDA_ERROR_NOT_SUPPORTED if the driver lacks it.
template <class Function, class... Arguments>
CUresult drive(Function function, Arguments... arguments) {
  return function ? function(arguments...) : CUDA_ERROR_NOT_SUPPORTED;
}

// Finds the stream that a message names by CUDA's constants or by a handle. Returns false if there is no such stream.
inline bool find_stream(Replay& replay, uint64_t handle, CUstream& stream) {
  if (handle == wire::kStreamNull || handle == wire::kStreamLegacy) {
    stream = reinterpret_cast<CUstream>(handle);
    return true;
  }
  void* native = nullptr;
  if (!replay.handles().find(wire::HandleKind::stream, handle, native)) return false;
  stream = static_cast<CUstream>(native);
  return true;
}

}  // namespace gpuwire::server
