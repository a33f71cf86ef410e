// One server, as this process knows it: the connection, and everything that is kept for it. Reached by the context,
// stream, address or handle at hand. Process-wide are only what the program's own values lead through: the handle
// table, the address map, the handler of SIGSEGV and the error log (process.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/session/session_part.hpp"

namespace gpuwire::client {

class AllocationHolders;
class ArrayShapes;
class Captures;
class ChunkedUploads;
class DeviceOutput;
class GpuSpans;
class GraphMemory;
class GraphRecords;
class HostCallbacks;
class HostRegions;
class ImageUploads;
class PrefetchedImages;
class CachedMemory;
class ManagedAllocations;
class ManagedMemory;
class MemoryInFlight;
class NodeStorages;
class Notices;
class PendingCopies;
class PinnedPointers;
class PostedUploads;
class SharedStaging;
class Shares;
class UserObjects;
class Session;

// Made by cuInit and never destroyed, but in tests: programs call the driver from their last exit handlers. Any thread.
class ServerSession {
 public:
  ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;
  ~ServerSession();  // tests only: no call is under way

  // Connects to `server`, HOST:PORT. Before the session is used; the error line is Session::connect's.
  CUresult connect(std::string_view server, std::string& error);
  // The same over a connection that is already there.
  void adopt(std::unique_ptr<Session> connection) noexcept;

  // By now, whatever became of it since.
  bool connected() const noexcept { return connection_ != nullptr; }
  // Once it is connected.
  Session& connection() const noexcept { return *connection_; }
  // A caller that is no call of the program: without a context.
  Caller own_caller() noexcept { return {.session = connection_.get(), .server = this}; }

  // The two things that happen to a session as a whole. end(): orderly, at the program's end, with no lock held. When
  // the connection breaks off, `notices` tells the parts.
  void end() noexcept;
  // The program's end in the middle of a call of the thread that ends it: nothing is waited for (Session::hang_up()).
  void hang_up() noexcept;
  void after_fork_in_child() noexcept { parts_.notify_forked(); }

  // Counts what the program may have learned about the server's progress: synchronisations, and everything the server
  // tells. What was not ready at the present count is still not ready as far as the program can know; at a higher count
  // something that it waited for may imply the contrary (a stream that waited for the event, say), so the server is
  // asked once more.
  uint64_t progress() const noexcept { return progress_.load(std::memory_order_acquire); }
  void note_progress() noexcept;

 private:
  // The parts themselves, so that who uses one reads its header alone.
  struct Storage;

  SessionParts parts_;
  std::unique_ptr<Storage> storage_;
  // From 1 on, so that a state that never asked differs. Release and acquire: whoever sees the count sees the `done`
  // raised before it.
  std::atomic<uint64_t> progress_{1};

 public:
  // The parts. Include the header of each one that you use.
  ManagedMemory& managed_memory;
  PinnedPointers& pinned_pointers;
  HostRegions& host_regions;
  PendingCopies& pending_copies;
  SharedStaging& shared_staging;
  Captures& captures;
  CachedMemory& cached_memory;
  GraphMemory& graph_memory;
  GraphRecords& graph_records;
  MemoryInFlight& in_flight;
  NodeStorages& node_storages;
  UserObjects& user_objects;
  HostCallbacks& host_callbacks;
  ManagedAllocations& managed_allocations;
  DeviceOutput& device_output;
  Shares& shares;
  AllocationHolders& allocation_holders;
  ArrayShapes& array_shapes;
  ImageUploads& image_uploads;
  PrefetchedImages& prefetched_images;
  GpuSpans& gpu_spans;
  PostedUploads& posted_uploads;
  ChunkedUploads& chunked_uploads;
  // The newest frame by which the server may have recorded events of its own accord: of each foreign event that was its
  // newest record, unless the client has recorded it since (newest_record()). Release: raise(); partner: the acquire
  // load there. Before the frame leaves.
  std::atomic<uint64_t> foreign_records{0};
  // Small allocations that stay unused at the server, because their addresses are in use here. A counter alone.
  std::atomic<uint64_t> bytes_put_aside{0};

  Notices& notices;

 private:
  std::unique_ptr<Session> connection_;
};

}  // namespace gpuwire::client
