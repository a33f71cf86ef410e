// Copies to the device whose bytes the client names by digest instead of sending them (server/chunk_store).
#include <algorithm>
#include <cstring>
#include <vector>

#include "protocol/wire/limits.hpp"
#include "server/chunk_store/chunk_store.hpp"
#include "server/driver_table.hpp"
#include "server/replay/call/explain.hpp"
#include "server/replay/call/reply.hpp"
#include "server/replay/context/context.hpp"
#include "server/replay/copy/copy.hpp"
#include "server/replay/session/replay_state.hpp"
#include "server/session_notices.hpp"

namespace gpuwire::server {
namespace {

static_assert(wire::kChunkDigestBytes == digest::kDigestBytes);

std::vector<digest::Digest> read_digests(capnp::Data::Reader data) {
  std::vector<digest::Digest> digests(data.size() / digest::kDigestBytes);
  for (size_t i = 0; i < digests.size(); ++i)
    std::memcpy(digests[i].data(), data.begin() + i * digest::kDigestBytes, digest::kDigestBytes);
  return digests;
}

void send_missing(Replay& replay, uint64_t sequence, const std::vector<bool>& found, CUresult result) {
  explain(replay, result);
  SmallMessage<> message;
  auto reply = message.root<schema::ChunksReply>();
  reply.setResult(result);
  reply.setDeferred(replay.take_deferred());
  auto missing = reply.initMissing(unsigned((found.size() + 7) / 8));
  for (size_t i = 0; i < found.size(); ++i)
    if (!found[i]) missing[i / 8] = uint8_t(missing[i / 8] | 1u << (i % 8));
  replay.outbox().reply(sequence, *message);
}

// Copies the found chunks on the stream, adjacent chunks by one call.
CUresult copy_found(Replay& replay, const std::vector<bool>& found, CUdeviceptr destination, const std::byte* from,
                    uint64_t bytes, CUstream stream) {
  for (size_t first = 0; first < found.size();) {
    size_t last = first;
    while (last < found.size() && found[last] == found[first]) ++last;
    uint64_t begin = first * wire::kChunkBytes, end = std::min<uint64_t>(last * wire::kChunkBytes, bytes);
    if (found[first]) {
      CUresult result = drive(replay.driver().cuMemcpyHtoDAsync_v2, destination + begin,
                              static_cast<const void*>(from + begin), size_t(end - begin), stream);
      if (result != CUDA_SUCCESS) return result;
    }
    first = last;
  }
  return CUDA_SUCCESS;
}

}  // namespace

void copy_chunks(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::CopyChunks>();
  const uint64_t bytes = params.getBytes(), sequence = call.header.sequence;
  const size_t count = size_t((bytes + wire::kChunkBytes - 1) / wire::kChunkBytes);
  if (bytes == 0 || bytes > wire::kChunkCopyBytesMax || params.getDigests().size() != count * digest::kDigestBytes)
    throw ProtocolFault{"copy_chunks: its digests are not those of so many bytes"};
  std::vector<bool> found(count);
  call.answered = true;
  auto answer = [&](CUresult result) { send_missing(replay, sequence, found, result); };
  Context* context = replay.state().contexts().current();
  if (!context) return answer(CUDA_ERROR_INVALID_CONTEXT);
  CUstream stream = nullptr;
  if (!find_stream(replay, params.getStream(), stream)) return answer(CUDA_ERROR_INVALID_HANDLE);
  context = replay.state().contexts().enter_stream(stream);
  if (CUresult refused = refuse_capture(replay, stream)) return answer(refused);
  ChunkStore* store = replay.state().chunks();
  std::vector<digest::Digest> digests = read_digests(params.getDigests());
  if (!store || std::none_of(digests.begin(), digests.end(), [&](const auto& one) { return store->holds(one); }))
    return answer(CUDA_SUCCESS);
  StagingBlock block = take_staging(replay, *context, bytes);
  if (!block) return answer(CUDA_ERROR_OUT_OF_MEMORY);
  found = store->fetch(digests, {block.data(), size_t(bytes)});
  CUresult result = copy_found(replay, found, params.getDestination(), block.data(), bytes, stream);
  // The block is kept even after a failure, because copies already on the stream read it.
  CUresult kept = keep_upload(replay, call, *context, stream, std::move(block), params.getBlocking());
  if (result == CUDA_SUCCESS) result = kept;
  if (result != CUDA_SUCCESS || !params.getBlocking()) return answer(result);
  answer_arrived(replay, call, *context, stream,
                 [&replay, sequence, found](CUresult arrived) { send_missing(replay, sequence, found, arrived); });
}

void find_chunk(Replay& replay, Call& call) {
  auto params = call.message.getRoot<schema::FindChunk>();
  std::vector<digest::Digest> digests = read_digests(params.getDigest());
  if (params.getDigest().size() != digests.size() * digest::kDigestBytes || digests.size() > 1)
    throw ProtocolFault{"find_chunk: a digest of a wrong size"};
  ChunkStore* store = replay.state().chunks();
  notify::chunk_found(replay.outbox(), {.sequence = call.header.sequence,
                                        .found = store && !digests.empty() && store->holds(digests[0])});
  finish(replay, call, CUDA_SUCCESS);
}

}  // namespace gpuwire::server
