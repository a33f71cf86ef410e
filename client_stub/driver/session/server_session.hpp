// One server, as this process knows it: the connection, and everything that is kept for it. Reached by the context,
// stream, address or handle at hand. Process-wide are only what the program's own values lead through: the handle
// table, the address map, the handler of SIGSEGV and the error log (process.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "client_stub/driver/memory/allocation_handle.hpp"
#include "client_stub/driver/array/array_shapes.hpp"
#include "client_stub/driver/call/caller.hpp"
#include "client_stub/driver/stream/capture.hpp"
#include "client_stub/driver/session/device_output.hpp"
#include "client_stub/driver/graph/graph.hpp"
#include "client_stub/driver/graph/graph_memory.hpp"
#include "client_stub/driver/graph/graph_records.hpp"
#include "client_stub/driver/stream/host_callbacks.hpp"
#include "client_stub/driver/memory/kept_memory.hpp"
#include "client_stub/driver/host_memory/host_regions.hpp"
#include "client_stub/driver/module/image_uploads.hpp"
#include "client_stub/driver/module/images_ahead.hpp"
#include "client_stub/driver/managed_memory/managed_allocations.hpp"
#include "client_stub/driver/managed_memory/managed_memory.hpp"
#include "client_stub/driver/profile/gpu_spans.hpp"
#include "client_stub/driver/session/notices.hpp"
#include "client_stub/driver/copy/chunked_uploads.hpp"
#include "client_stub/driver/copy/pending_copies.hpp"
#include "client_stub/driver/copy/posted_uploads.hpp"
#include "client_stub/driver/copy/shared_staging.hpp"
#include "client_stub/driver/host_memory/pinned_pointers.hpp"
#include "client_stub/driver/session/session_part.hpp"
#include "client_stub/driver/memory/shares.hpp"
#include "client_stub/driver/graph/user_objects.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

// Made by cuInit and never destroyed, but in tests: programs call the driver from their last exit handlers. Any thread.
class ServerSession {
 public:
  ServerSession() = default;
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;
  ~ServerSession();  // tests only: no call is under way

  // Connects to `server`, HOST:PORT. Before the session is used; the error line is Session::connect's.
  CUresult connect(std::string_view server, std::string& error);
  // The same over a connection that is already there.
  void adopt(std::unique_ptr<Session> connection) noexcept {
    connection_ = std::move(connection);
    chunked_uploads.begin(connection_->facts());
  }

  // By now, whatever became of it since.
  bool connected() const noexcept { return connection_ != nullptr; }
  // Once it is connected.
  Session& connection() const noexcept { return *connection_; }
  // A caller that is no call of the program: without a context.
  Caller own_caller() noexcept { return {.session = connection_.get(), .server = this}; }

  // The two things that happen to a session as a whole. end(): orderly, at the program's end, with no lock held. When
  // the connection breaks off, `notices` tells the parts.
  void end() noexcept;
  void after_fork_in_child() noexcept { parts_.tell_forked(); }

  // Counts what the program may have learned about the server's progress: synchronisations, and everything the server
  // tells. What was not ready at the present count is still not ready as far as the program can know; at a higher count
  // something that it waited for may imply the contrary (a stream that waited for the event, say), so the server is
  // asked once more.
  uint64_t progress() const noexcept { return progress_.load(std::memory_order_acquire); }
  void note_progress() noexcept {
    progress_.fetch_add(1, std::memory_order_release);
    managed_memory.settle();
  }

 private:
  SessionParts parts_;
  // From 1 on, so that a state that never asked differs. Release and acquire: whoever sees the count sees the `done`
  // raised before it.
  std::atomic<uint64_t> progress_{1};

 public:
  // The parts. What work looks at before it is sent comes first.
  ManagedMemory managed_memory{*this, parts_};
  PinnedPointers pinned_pointers{parts_};
  HostRegions host_regions{*this, parts_};
  PendingCopies pending_copies{parts_};
  SharedStaging shared_staging{parts_};
  Captures captures{parts_};
  KeptMemory kept_memory{*this, parts_};
  GraphMemory graph_memory{*this, parts_};
  GraphRecords graph_records{parts_};  // after graph_memory: holds its blocks
  NodeStorages node_storages{parts_};
  UserObjects user_objects{parts_};
  HostCallbacks host_callbacks{*this, parts_};
  ManagedAllocations managed_allocations{parts_};
  DeviceOutput device_output{parts_};
  Shares shares{parts_};
  AllocationHolders allocation_holders{parts_};
  ArrayShapes array_shapes{parts_};
  ImageUploads image_uploads{parts_};
  ImagesAhead images_ahead{parts_};
  GpuSpans gpu_spans{*this, parts_};
  // Neither the end of the session nor a child has anything to do with it.
  PostedUploads posted_uploads;
  ChunkedUploads chunked_uploads{dedup_wish(std::getenv("GPUWIRE_DEDUP"))};
  // Small allocations that stay unused at the server, because their addresses are in use here. A counter alone.
  std::atomic<uint64_t> bytes_put_aside{0};

  Notices notices{*this, parts_};

 private:
  std::unique_ptr<Session> connection_;
};

}  // namespace gpuwire::client
