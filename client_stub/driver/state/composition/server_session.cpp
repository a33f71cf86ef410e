#include "client_stub/driver/state/session/server_session.hpp"

#include <utility>

#include "client_stub/driver/state/array/array_shapes.hpp"
#include "client_stub/driver/state/copy/chunked_uploads.hpp"
#include "client_stub/driver/state/copy/memory_in_flight.hpp"
#include "client_stub/driver/state/copy/pending_copies.hpp"
#include "client_stub/driver/state/copy/posted_uploads.hpp"
#include "client_stub/driver/state/copy/shared_staging.hpp"
#include "client_stub/driver/state/graph/graph.hpp"
#include "client_stub/driver/state/graph/graph_memory.hpp"
#include "client_stub/driver/state/graph/graph_records.hpp"
#include "client_stub/driver/state/graph/user_objects.hpp"
#include "client_stub/driver/state/host_memory/host_regions.hpp"
#include "client_stub/driver/state/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/state/managed_memory/managed_allocations.hpp"
#include "client_stub/driver/state/managed_memory/managed_memory.hpp"
#include "client_stub/driver/state/memory/allocation_handle.hpp"
#include "client_stub/driver/state/memory/cached_memory.hpp"
#include "client_stub/driver/state/memory/shares.hpp"
#include "client_stub/driver/state/module/image_uploads.hpp"
#include "client_stub/driver/state/module/prefetched_images.hpp"
#include "client_stub/driver/state/profile/gpu_spans.hpp"
#include "client_stub/driver/state/session/device_output.hpp"
#include "client_stub/driver/state/composition/notices.hpp"
#include "client_stub/driver/state/stream/capture.hpp"
#include "client_stub/driver/state/stream/host_callbacks.hpp"
#include "client_stub/session/environment.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

// Parts are notified of the session's end in the order of these members. The parts that are asked before work is sent
// come first, and graph_records and in_flight come after graph_memory, whose blocks they hold.
struct ServerSession::Storage {
  Storage(ServerSession& of, SessionParts& all) : session(of), parts(all) {}

  ServerSession& session;
  SessionParts& parts;
  ManagedMemory managed_memory{session, parts};
  PinnedPointers pinned_pointers{parts};
  HostRegions host_regions{session, parts, pinned_pointers};
  PendingCopies pending_copies{parts};
  SharedStaging shared_staging{parts};
  Captures captures{parts};
  CachedMemory cached_memory{session, parts};
  GraphMemory graph_memory{session, parts};
  GraphRecords graph_records{parts};
  MemoryInFlight in_flight{session, parts};
  NodeStorages node_storages{parts};
  UserObjects user_objects{parts};
  HostCallbacks host_callbacks{session, parts};
  ManagedAllocations managed_allocations{parts};
  DeviceOutput device_output{parts};
  Shares shares{parts};
  AllocationHolders allocation_holders{parts};
  ArrayShapes array_shapes{parts};
  ImageUploads image_uploads{parts};
  PrefetchedImages prefetched_images{parts};
  GpuSpans gpu_spans{session, parts};
  PostedUploads posted_uploads;
  ChunkedUploads chunked_uploads{dedup_wish(setting("GPUWIRE_DEDUP"))};
  Notices notices{session, parts};
};

ServerSession::ServerSession()
    : storage_(std::make_unique<Storage>(*this, parts_)),
      managed_memory(storage_->managed_memory),
      pinned_pointers(storage_->pinned_pointers),
      host_regions(storage_->host_regions),
      pending_copies(storage_->pending_copies),
      shared_staging(storage_->shared_staging),
      captures(storage_->captures),
      cached_memory(storage_->cached_memory),
      graph_memory(storage_->graph_memory),
      graph_records(storage_->graph_records),
      in_flight(storage_->in_flight),
      node_storages(storage_->node_storages),
      user_objects(storage_->user_objects),
      host_callbacks(storage_->host_callbacks),
      managed_allocations(storage_->managed_allocations),
      device_output(storage_->device_output),
      shares(storage_->shares),
      allocation_holders(storage_->allocation_holders),
      array_shapes(storage_->array_shapes),
      image_uploads(storage_->image_uploads),
      prefetched_images(storage_->prefetched_images),
      gpu_spans(storage_->gpu_spans),
      posted_uploads(storage_->posted_uploads),
      chunked_uploads(storage_->chunked_uploads),
      notices(storage_->notices) {}

void ServerSession::adopt(std::unique_ptr<Session> connection) noexcept {
  connection_ = std::move(connection);
  chunked_uploads.begin(connection_->facts());
}

void ServerSession::note_progress() noexcept {
  progress_.fetch_add(1, std::memory_order_release);
  managed_memory.settle();
}

CUresult ServerSession::connect(std::string_view server, std::string& error) {
  CUresult result = Session::connect(server, notices, connection_, error);
  if (connection_) chunked_uploads.begin(connection_->facts());
  return result;
}

// A lost session has notified its parts already; parts accept a second notification.
void ServerSession::end() noexcept {
  connection_->close();
  // A thread that has left a call in the middle holds the session's locks, and possibly those of the parts.
  if (connection_->state() == CUDA_SUCCESS) return;
  parts_.notify_ended(SessionEnd::closed);
}

void ServerSession::hang_up() noexcept { connection_->hang_up(); }

// The threads that use the connection end first, then the connection, whose threads use the parts.
ServerSession::~ServerSession() {
  host_callbacks.stop();
  managed_memory.clear();
  connection_.reset();
}

}  // namespace gpuwire::client
