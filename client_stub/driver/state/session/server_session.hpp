// The client's state for one server: the connection, and the parts. A call reaches it by its context, stream, address
// or handle. Process-wide are only objects that the program's own values lead through: the handle table, the address
// map, the handler of SIGSEGV and the error log (process.hpp).
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

// Made by cuInit and destroyed only in tests, because programs call the driver from their last exit handlers. Thread:
// any.
class ServerSession {
 public:
  ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;
  ~ServerSession();  // tests only; precondition: no call is in progress

  // Connects to `server`, HOST:PORT. The error line is Session::connect's. Precondition: the session is unused.
  CUresult connect(std::string_view server, std::string& error);
  // As above, over an existing connection.
  void adopt(std::unique_ptr<Session> connection) noexcept;

  // By now, whatever became of it since.
  bool connected() const noexcept { return connection_ != nullptr; }
  // Once it is connected.
  Session& connection() const noexcept { return *connection_; }
  // Returns a caller for calls of the client itself, without a context.
  Caller own_caller() noexcept { return {.session = connection_.get(), .server = this}; }

  // The two events of a whole session. end() is the orderly end at the program's end, with no lock held. After the loss
  // of the connection, `notices` notifies the parts.
  void end() noexcept;
  // The program's end in the middle of a call of the same thread: waits for nothing (Session::hang_up()).
  void hang_up() noexcept;
  void after_fork_in_child() noexcept { parts_.notify_forked(); }

  // Counts the events by which the program may learn of the server's progress: synchronisations, and all notices. A
  // result that was not ready at the present count is still not ready as far as the program can know. At a higher
  // count, a result that the program has waited for may imply that it is ready (a stream that waited for the event,
  // say), so the client asks the server once more.
  uint64_t progress() const noexcept { return progress_.load(std::memory_order_acquire); }
  void note_progress() noexcept;

 private:
  // Parts are separate headers, so that a user of one part reads its header alone.
  struct Storage;

  SessionParts parts_;
  std::unique_ptr<Storage> storage_;
  // Begins at 1, so that a state that never asked differs. Release and acquire: a thread that sees the count sees the
  // `done` that was raised before it.
  std::atomic<uint64_t> progress_{1};

 public:
  // The parts. Include the header of each part that you use.
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
  // The newest frame by which the server may have recorded events by itself: of each foreign event that was its newest
  // record, unless the client has recorded it since (newest_record()). Written before the frame leaves. Release:
  // raise(); partner: the acquire load in newest_record().
  std::atomic<uint64_t> foreign_records{0};
  // Small allocations that stay unused at the server, because this process uses their addresses. A counter alone.
  std::atomic<uint64_t> bytes_put_aside{0};

  Notices& notices;

 private:
  std::unique_ptr<Session> connection_;
};

}  // namespace gpuwire::client
