// The transfer of changes in mirrored memory, in both directions: the shared half of host_regions (mapped memory) and
// graph_memory (memory that graphs copy from and to).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "client_stub/session/session.hpp"
#include "protocol/wire/byte_changes.hpp"
#include "wire/session_messages.hpp"

namespace gpuwire::client {

struct MirroredChange {
  // The region or block: the message's field for its address.
  uint64_t number = 0;
  // The offset of the compared part; a change's own offset is relative to it.
  uint64_t offset = 0;
  wire::ByteChanges bytes;
};

// Posts the changes in order, each by `post`. Precondition: the caller holds the lock that keeps changes in the order
// in which they were found. The thread of the host functions takes that lock before it answers, so the holder must not
// wait for room: it uses the room that is reserved for answers. An error is not reported: the session is over, and the
// following call reports it.
void post_changes(const std::vector<MirroredChange>& changes,
                  const std::function<CUresult(const wire::message::RegionChange& change, const Bulk& bulk)>& post);

// Returns the destination of the bulk of a notice about mirrored memory: `room`, resized. Empty for an invalid size.
// Thread: the reading one.
BulkSink mirrored_sink(std::vector<std::byte>& room, size_t bytes);

}  // namespace gpuwire::client
