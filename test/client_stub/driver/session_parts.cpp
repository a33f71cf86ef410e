#include "test/client_stub/driver/session_parts.hpp"

#include "client_stub/driver/process/process.hpp"
#include "client_stub/driver/state/session/server_session.hpp"

namespace gpuwire::test {

client::ServerSession& server_session() { return *client::process()->server; }

template <>
client::Captures& part() {
  return server_session().captures;
}
template <>
client::ChunkedUploads& part() {
  return server_session().chunked_uploads;
}
template <>
client::DeviceOutput& part() {
  return server_session().device_output;
}
template <>
client::GraphMemory& part() {
  return server_session().graph_memory;
}
template <>
client::GraphRecords& part() {
  return server_session().graph_records;
}
template <>
client::HostCallbacks& part() {
  return server_session().host_callbacks;
}
template <>
client::HostRegions& part() {
  return server_session().host_regions;
}
template <>
client::CachedMemory& part() {
  return server_session().cached_memory;
}
template <>
client::ManagedMemory& part() {
  return server_session().managed_memory;
}
template <>
client::MemoryInFlight& part() {
  return server_session().in_flight;
}
template <>
client::Notices& part() {
  return server_session().notices;
}
template <>
client::PendingCopies& part() {
  return server_session().pending_copies;
}
template <>
client::PinnedPointers& part() {
  return server_session().pinned_pointers;
}
template <>
client::SharedStaging& part() {
  return server_session().shared_staging;
}

}  // namespace gpuwire::test
