// How what the program wrote to memory that the server mirrors gets there, and what the server wrote comes back: the
// shared half of host_regions (mapped memory) and graph_memory (memory that graphs copy from and to).
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
  uint64_t number = 0;  // which region or block: what the message calls its address
  uint64_t offset = 0;  // of the part that was compared; the changes' own offset counts from there
  wire::ByteChanges bytes;
};

// Posts them in order, each as `post` does. The caller holds the lock that keeps changes in the order in which they
// were found; the thread of the host functions takes that lock too before it answers, so the holder must not stand
// still for want of room: it sends as those who answer do. An error is not told: the session is over, which the call
// that follows reports.
void post_changes(const std::vector<MirroredChange>& changes,
                  const std::function<CUresult(const wire::message::RegionChange& change, const Bulk& bulk)>& post);

// Where the bulk of a notice about mirrored memory is read to: `room`, resized. Nothing when it cannot be such a
// notice. Reading thread only.
BulkSink mirrored_sink(std::vector<std::byte>& room, size_t bytes);

}  // namespace gpuwire::client
