#include "client_stub/driver/host_memory/region_changes.hpp"

#include "client_stub/session/call.hpp"
#include "protocol/wire/limits.hpp"
#include "schema/session.capnp.h"

namespace gpuwire::client {

void post_changes(const Caller& caller, wire::SessionOrdinal ordinal, const std::vector<MirroredChange>& changes) {
  Session::Answering room;
  for (const MirroredChange& change : changes) {
    const auto& mask = change.bytes.mask;
    Bulk bulk{.data = change.bytes.bytes.data(), .bytes = change.bytes.bytes.size()};
    CUresult error = post<schema::RegionChange>(
        *caller.session, uint32_t(ordinal), caller.context, message_words<schema::RegionChange>(mask.size(), 1),
        [&](auto message) {
          message.setAddress(change.number);
          message.setOffset(change.offset + change.bytes.offset);
          if (!mask.empty()) message.setChanged(kj::arrayPtr(mask.data(), mask.size()));
        },
        bulk);
    if (error) return;
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
