#include "client_stub/driver/state/host_memory/region_changes.hpp"

#include "protocol/wire/limits.hpp"

namespace gpuwire::client {

void post_changes(const std::vector<MirroredChange>& changes,
                  const std::function<CUresult(const wire::message::RegionChange& change, const Bulk& bulk)>& post) {
  Session::Answering room;
  for (const MirroredChange& change : changes) {
    Bulk bulk{.data = change.bytes.bytes.data(), .bytes = change.bytes.bytes.size()};
    if (post({.address = change.number, .offset = change.offset + change.bytes.offset, .changed = change.bytes.mask},
             bulk))
      return;
  }
}

BulkSink mirrored_sink(std::vector<std::byte>& room, size_t bytes) {
  if (bytes == 0 || bytes > wire::kRegionPieceBytes) return {};
  room.resize(bytes);
  BulkSink sink;
  sink.data = room.data();
  sink.bytes = bytes;
  return sink;
}

}  // namespace gpuwire::client
