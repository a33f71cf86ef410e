#include "client_stub/driver/state/composition/notices.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "client_stub/driver/process/log_stderr.hpp"
#include "client_stub/driver/process/profile_file.hpp"
#include "client_stub/driver/state/context/context.hpp"
#include "client_stub/driver/state/handle/handle_table.hpp"
#include "client_stub/driver/state/session/server_session.hpp"
#include "client_stub/driver/state/copy/chunked_uploads.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/profile/gpu_spans.hpp"
#include "client_stub/driver/state/session/device_output.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/session/printable.hpp"
#include "protocol/cuda_abi/peer_code.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {
namespace {

void keep_first(std::atomic<int32_t>& place, int32_t value) noexcept {
  int32_t none = 0;
  place.compare_exchange_strong(none, value, std::memory_order_relaxed);
}

// Handles of contexts are never reused, so their generation is 1, and the handle fits the frame's context field.
ContextState* context_of_frame(uint32_t wire_context) noexcept {
  constexpr uint32_t kIndexMask = (1u << wire::kHandleIndexBits) - 1;
  uint64_t handle = wire::make_handle(wire::HandleKind::context, wire_context & kIndexMask,
                                      uint16_t(wire_context >> wire::kHandleIndexBits));
  return handles().find<ContextState>(wire::HandleKind::context, handle);
}

void completion(ServerSession& session, const schema::Completion::Reader& done) noexcept {
  const CUresult result = cuda_abi::from_peer(done.getResult());
  if (uint64_t event = done.getEvent()) {
    EventState* state = handles().find<EventState>(wire::HandleKind::event, event);
    if (!state) return;
    if (result) keep_first(state->failed, result);
    note_event_done(*state, done.getRecord());
    session.note_progress();
    return;
  }
  // Watches of a context's NULL stream carry the frame's context only in the frame; the sequence finds them.
  uint64_t stream = done.getStream();
  uint64_t sequence = done.getSequence();
  auto told = [&](StreamState& state) {
    if (result) keep_first(state.failed, result);
    raise(state.done, sequence);
    session.note_progress();
  };
  if (stream > wire::kStreamLegacy) {
    if (auto* state = handles().find<StreamState>(wire::HandleKind::stream, stream)) told(*state);
    return;
  }
  handles().for_each(wire::HandleKind::context, &session, [&](uint64_t, void* object) {
    auto* context = static_cast<ContextState*>(object);
    if (context && context->legacy.watched.load(std::memory_order_acquire) == sequence) told(context->legacy);
  });
}

void deferred_error(const ServerSession& session, const schema::DeferredError::Reader& error) noexcept {
  const CUresult result = cuda_abi::from_peer(error.getResult());
  auto note = [&](ContextState& context) {
    if (error.getSticky() || is_sticky(result)) note_fault(context, result);
    else keep_first(context.deferred, result);
  };
  if (ContextState* context = error.getContext() ? context_of_frame(error.getContext()) : nullptr) {
    note(*context);
  } else {
    handles().for_each(wire::HandleKind::context, &session, [&](uint64_t, void* object) {
      auto* state = static_cast<ContextState*>(object);
      if (state && state->alive.load(std::memory_order_relaxed)) note(*state);
    });
  }
  if (auto why = error.getMessage(); why.size() > 0) log_stderr(printable({why.begin(), why.size()}));
}

}  // namespace

void Notices::notice(wire::NoticeOrdinal ordinal, capnp::MessageReader& message) {
  switch (ordinal) {
    case wire::NoticeOrdinal::completion: return completion(session_, message.getRoot<schema::Completion>());
    case wire::NoticeOrdinal::deferred_error: {
      auto error = message.getRoot<schema::DeferredError>();
      // If the context of a copy out of a shared region has ended, this notice is the only answer.
      session_.shared_staging.has_read(error.getSequence());
      return deferred_error(session_, error);
    }
    case wire::NoticeOrdinal::host_callback: {
      auto callback = message.getRoot<schema::HostCallback>();
      session_.note_progress();
      // The stream waits for an answer that no thread would send.
      if (!session_.host_callbacks.reached(callback.getCallback(), cuda_abi::from_peer(callback.getStatus())))
        throw std::runtime_error(
            fmt::format("host function {}, which is none of the program's or has run", callback.getCallback()));
      return;
    }
    case wire::NoticeOrdinal::chunk_found: {
      auto found = message.getRoot<schema::ChunkFound>();
      session_.chunked_uploads.found(found.getSequence(), found.getFound());
      return;
    }
    case wire::NoticeOrdinal::region_read:
      return session_.shared_staging.has_read(message.getRoot<schema::RegionRead>().getSequence());
    case wire::NoticeOrdinal::freed_at_rest: {
      auto freed = message.getRoot<schema::FreedAtRest>();
      return session_.cached_memory.freed_at_rest(freed.getSequence(), freed.getFreed());
    }
    case wire::NoticeOrdinal::allocated_ahead: {
      auto allocated = message.getRoot<schema::AllocatedAhead>();
      const auto told = allocated.getAddresses();  // one call: each call counts the whole list as read
      std::array<uint64_t, std::max(wire::kPrefetchedBlocksMax, wire::kProfiledBlocksMax)> addresses{};
      const size_t count = std::min<size_t>(told.size(), addresses.size());
      for (size_t i = 0; i < count; ++i) addresses[i] = told[uint32_t(i)];
      return session_.cached_memory.allocated_ahead(allocated.getSequence(), {addresses.data(), count});
    }
    case wire::NoticeOrdinal::profile_spans: return session_.gpu_spans.told(message.getRoot<schema::ProfileSpans>());
    case wire::NoticeOrdinal::copy_data: return;  // bulk_stored() ends the copy
    case wire::NoticeOrdinal::output:
    case wire::NoticeOrdinal::region_data:
    case wire::NoticeOrdinal::graph_memory_data: return;
    case wire::NoticeOrdinal::ending: return;  // the session itself ends, and calls ended()
  }
}

BulkSink Notices::bulk_for(wire::NoticeOrdinal ordinal, capnp::MessageReader& message, size_t bulk_bytes) {
  if (ordinal == wire::NoticeOrdinal::copy_data) {
    auto copy = message.getRoot<schema::CopyData>();
    const BulkSink sink = session_.pending_copies.sink(copy.getSequence(), copy.getOffset(), bulk_bytes);
    copied_bytes_ = sink.bytes;
    return sink;
  }
  if (ordinal == wire::NoticeOrdinal::region_data) return session_.host_regions.sink(bulk_bytes);
  if (ordinal == wire::NoticeOrdinal::graph_memory_data) return session_.graph_memory.sink(bulk_bytes);
  if (ordinal == wire::NoticeOrdinal::output) {
    text_.resize(bulk_bytes);
    BulkSink sink;
    sink.data = text_.data();
    sink.bytes = bulk_bytes;
    return sink;
  }
  return {};
}

void Notices::copy_came(uint64_t sequence, uint64_t offset, bool last, bool well) {
  auto begun = copied_.find(sequence);
  const uint64_t before = begun == copied_.end() ? 0 : begun->second, bytes = std::exchange(copied_bytes_, 0);
  if (bytes != 0 && offset != before) throw std::runtime_error("a copy whose bytes do not follow each other");
  // If the sink accepts one more byte, the copy is not complete.
  const bool more_due = session_.pending_copies.sink(sequence, before + bytes, 1).bytes != 0;
  if (!last && more_due) {
    copied_[sequence] = before + bytes;
    return;
  }
  if (begun != copied_.end()) copied_.erase(begun);
  if (last && more_due && well)
    throw std::runtime_error(fmt::format("a copy that ends after {} bytes, and more were asked for", before + bytes));
}

void Notices::bulk_stored(wire::NoticeOrdinal ordinal, capnp::MessageReader& message, std::span<const std::byte> text) {
  if (ordinal == wire::NoticeOrdinal::copy_data) {
    auto copy = message.getRoot<schema::CopyData>();
    copy_came(copy.getSequence(), copy.getOffset(), copy.getLast(),
              cuda_abi::from_peer(copy.getResult()) == CUDA_SUCCESS);
    session_.pending_copies.stored(copy.getSequence(), copy.getLast());
    session_.note_progress();
  } else if (ordinal == wire::NoticeOrdinal::region_data) {
    auto change = message.getRoot<schema::RegionChange>();
    auto mask = change.getChanged();
    session_.host_regions.stored(change.getAddress(), change.getOffset(), {mask.begin(), mask.size()}, text.size());
  } else if (ordinal == wire::NoticeOrdinal::graph_memory_data) {
    auto change = message.getRoot<schema::RegionChange>();
    auto mask = change.getChanged();
    session_.graph_memory.stored(change.getAddress(), change.getOffset(), {mask.begin(), mask.size()}, text.size());
  } else if (ordinal == wire::NoticeOrdinal::output) {
    uint8_t descriptor = message.getRoot<schema::Output>().getDescriptor();
    std::span<const std::byte> printed = text.empty() ? std::span<const std::byte>(text_) : text;
    // Lines of the server are printed at once: an idle session makes no call that would print them later.
    if (descriptor == 0) log_stderr({reinterpret_cast<const char*>(printed.data()), printed.size()});
    else session_.device_output.keep(descriptor == 2, printed);
    text_.clear();
  }
}

std::chrono::nanoseconds Notices::upkeep(std::chrono::steady_clock::time_point now) noexcept {
  return std::min(session_.cached_memory.poll(now), profile_file().upkeep());
}

// The session has reported the cause to the user; from here on enter() returns its state.
void Notices::ended(CUresult, std::string_view) { parts_.notify_ended(SessionEnd::lost); }

}  // namespace gpuwire::client
