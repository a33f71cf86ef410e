// The transfer of changes in memory that the server mirrors, in both directions: the shared half of host_regions
// (mapped memory) and graph_memory (memory that graphs copy from and to).
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
  uint64_t number = 0;  // the region or block: the message's field for its address
  uint64_t offset = 0;  // of the part that was compared; the changes' own offset counts from there
  wire::ByteChanges bytes;
};

// Posts them in order, each as `post` does. The caller holds the lock that keeps changes in the order in which they
// were found; the thread of the host functions takes that lock too before it answers, so the holder must not wait for
// room: it sends as the answering threads do. An error is not reported: the session is over, which the following call
// reports.
void post_changes(const std::vector<MirroredChange>& changes,
                  const std::function<CUresult(const wire::message::RegionChange& change, const Bulk& bulk)>& post);

// Where the bulk of a notice about mirrored memory is read to: `room`, resized. Nothing when it cannot be such a
// notice. Reading thread only.
BulkSink mirrored_sink(std::vector<std::byte>& room, size_t bytes);

}  // namespace gpuwire::client
