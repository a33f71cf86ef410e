// The process's session and its parts, for tests that need not read the header with all of them.
#pragma once

namespace gpuwire::client {

class Captures;
class ChunkedUploads;
class DeviceOutput;
class GraphMemory;
class GraphRecords;
class HostCallbacks;
class HostRegions;
class CachedMemory;
class ManagedMemory;
class MemoryInFlight;
class Notices;
class PendingCopies;
class PinnedPointers;
class ServerSession;
class SharedStaging;

}  // namespace gpuwire::client

namespace gpuwire::test {

// Returns the process's session. Precondition: it has one.
client::ServerSession& server_session();

// Returns a part of it.
template <class Part>
Part& part();

template <>
client::Captures& part();
template <>
client::ChunkedUploads& part();
template <>
client::DeviceOutput& part();
template <>
client::GraphMemory& part();
template <>
client::GraphRecords& part();
template <>
client::HostCallbacks& part();
template <>
client::HostRegions& part();
template <>
client::CachedMemory& part();
template <>
client::ManagedMemory& part();
template <>
client::MemoryInFlight& part();
template <>
client::Notices& part();
template <>
client::PendingCopies& part();
template <>
client::PinnedPointers& part();
template <>
client::SharedStaging& part();

}  // namespace gpuwire::test
