// The program's view of stream capture. The server's driver captures. The client records which streams take part,
// because programs query that in nearly every call, and applies the rules about modes and threads, which the server
// cannot: to the server all threads of the program are one.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"

namespace gpuwire::client {

class ServerSession;
struct ContextState;
struct StreamState;

// The program's view of a capture: the graph, and the nodes that precede the stream's next work.
struct CaptureAnswer {
  uint64_t graph = 0;
  std::vector<CUgraphNode> nodes;
  // Empty if all edges are plain.
  std::vector<CUgraphEdgeData> edges;

  bool edges_matter() const {
    auto matters = [](const CUgraphEdgeData& edge) { return edge.from_port || edge.to_port || edge.type; };
    return std::any_of(edges.begin(), edges.end(), matters);
  }
};

struct Capture {
  uint64_t id = 0;
  ContextState* context = nullptr;
  // The wire handle of the stream in which the capture began.
  uint64_t origin = 0;
  // One of the capture's streams synchronises with the NULL stream.
  bool blocking = false;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  // ThreadState::number of the thread that began the capture.
  uint64_t thread = 0;
  // The program's own graph (cuStreamBeginCaptureToGraph).
  CUgraph graph = nullptr;
  bool invalidated = false;
  // The handle of the graph that the program was given; 0: none.
  uint64_t told_graph = 0;
  // The answers that the program got, by wire stream.
  std::map<uint64_t, CaptureAnswer> told;
};

// The captures under way in the contexts of one session. Any thread; one leaf lock.
class Captures final : public SessionPart {
 public:
  explicit Captures(SessionParts& parts) noexcept : SessionPart(parts) {}

  // --- rules, as measured on driver 580 ----------------------------------------------------------------------------

  // Returns ACTIVE or INVALIDATED for a stream that takes part in a capture, else NONE.
  CUstreamCaptureStatus status(const StreamState& stream) noexcept;
  // Adds a stream to a capture (0: none), because it waits for an event that was recorded there. Returns false if the
  // capture has ended.
  bool join(StreamState& stream, uint64_t capture) noexcept;
  // Invalidates the stream's capture, if it takes part in one: the capture can then only end in an error.
  void invalidate(const StreamState& stream) noexcept;
  // Returns false if the capture has ended, or was invalid already.
  bool invalidate(uint64_t capture) noexcept;

  // Checks work for this stream of the context. CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: it is the NULL stream, and a stream
  // that synchronises with it captures; that capture becomes invalid. CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: the stream
  // takes part in an invalid capture.
  CUresult permit_work(ContextState& context, uint64_t wire_stream) noexcept;
  // Checks a call that waits for all work of a context. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: work of the context is
  // being captured; the captures become invalid. Streams of its green contexts do not count, although the call waits
  // for them, too.
  CUresult permit_synchronisation(ContextState& context) noexcept;
  // Checks a stream's wait for an event that was recorded in the capture `from` (0: in none). After an error the
  // captures are invalid, except for CUDA_ERROR_INVALID_VALUE (`from` has ended).
  CUresult permit_wait(const StreamState& stream, uint64_t from, bool recorded) noexcept;
  // Checks a call that CUDA forbids during captures, such as an allocation of memory. Returns success, or
  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, which makes the captures in question invalid. Costs one atomic load while
  // nothing is captured.
  CUresult permit_unsafe_call() noexcept;
  // Returns whether anything is captured. Costs one atomic load.
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  // Returns whether the server's driver has no capture either when a frame that is sent now arrives. Lock: the send
  // lock, unless later captures have to see the caller's action.
  bool none() const noexcept {
    return count_.load(std::memory_order_acquire) == 0 && changing_.load(std::memory_order_acquire) == 0;
  }
  // Exists around the frames by which the server's driver begins a capture, or ends one.
  class Changing {
   public:
    explicit Changing(Captures& captures) noexcept : captures_(captures) {
      captures_.changing_.fetch_add(1, std::memory_order_acq_rel);
    }
    ~Changing() { captures_.changing_.fetch_sub(1, std::memory_order_release); }
    Changing(const Changing&) = delete;
    Changing& operator=(const Changing&) = delete;

   private:
    Captures& captures_;
  };
  // Returns whether the capture is under way, even if it is invalid.
  bool is_active(uint64_t capture) noexcept;
  // Returns whether the graph is that of a capture under way.
  bool has_graph(uint64_t graph) noexcept;

  // --- which there are ---------------------------------------------------------------------------------------------

  // Adds a capture that has begun, and chooses its id. May return CUDA_ERROR_OUT_OF_MEMORY.
  CUresult add(Capture capture, StreamState& origin) noexcept;
  // Removes the capture and its streams.
  void remove(const Capture& capture) noexcept;
  // Removes the captures of a context that ends.
  void remove_of(ContextState& context) noexcept;
  // Copies the capture in which the stream takes part. Returns false if there is none.
  bool find(const StreamState& stream, Capture& out);
  // Stores the program's view of a capture in this stream, and passes it to `visit`. The view is valid until the
  // stream's next such call (CUDA driver API, cuStreamGetCaptureInfo). Returns false if the capture has ended.
  template <class Visit>
  bool keep(uint64_t capture, uint64_t wire_stream, CaptureAnswer told, Visit&& visit) {
    MutexLock lock(mutex_);
    Capture* found = find(capture);
    if (!found) return false;
    found->told_graph = told.graph;
    CaptureAnswer& kept = found->told[wire_stream];
    kept = std::move(told);
    visit(kept);
    return true;
  }

  void ended(SessionEnd) noexcept override {}      // calls fail before they ask
  void after_fork_in_child() noexcept override {}  // a child does not use it

 private:
  Capture* find(uint64_t id) noexcept REQUIRES(mutex_);

  Mutex mutex_;
  // There are only a few.
  std::vector<Capture> active_ GUARDED_BY(mutex_);
  // The size of active_, for the check that nothing is captured. Relaxed there: a capture that another thread is just
  // starting may or may not be seen. Stored with release for none(): a thread that sees that a capture has been removed
  // sees the earlier value of changing_.
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> changing_{0};
};

// Checks a call that has not been entered yet, as Captures::permit_unsafe_call() does; the call itself reports its
// other faults.
CUresult permit_unsafe_call() noexcept;
// The same for calls for which a context with a fault returns its error, whatever is captured.
CUresult permit_unless_failed() noexcept;

}  // namespace gpuwire::client
