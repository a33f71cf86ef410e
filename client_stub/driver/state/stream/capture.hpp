// Stream capture as the program sees it. The server's driver captures; the stub mirrors which streams take part,
// because programs ask that in nearly every call, and applies the rules about modes and threads, which the server
// cannot: all threads of the program are one there.
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
  std::vector<CUgraphEdgeData> edges;  // empty: plain ones

  bool edges_matter() const {
    auto matters = [](const CUgraphEdgeData& edge) { return edge.from_port || edge.to_port || edge.type; };
    return std::any_of(edges.begin(), edges.end(), matters);
  }
};

struct Capture {
  uint64_t id = 0;
  ContextState* context = nullptr;
  uint64_t origin = 0;    // wire stream
  bool blocking = false;  // one of its streams synchronises with the NULL stream
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  uint64_t thread = 0;      // ThreadState::number
  CUgraph graph = nullptr;  // cuStreamBeginCaptureToGraph: the program's own
  bool invalidated = false;
  uint64_t told_graph = 0;                 // the handle that the program was given for the graph, 0: none
  std::map<uint64_t, CaptureAnswer> told;  // by wire stream
};

// The captures under way in the contexts of one session. Any thread; one leaf lock.
class Captures final : public SessionPart {
 public:
  explicit Captures(SessionParts& parts) noexcept : SessionPart(parts) {}

  // --- rules, as measured on driver 580 ----------------------------------------------------------------------------

  // ACTIVE or INVALIDATED for a stream that takes part in a capture, else NONE.
  CUstreamCaptureStatus status(const StreamState& stream) noexcept;
  // Work recorded by an event is waited for by a stream: it joins the event's capture (0: none). False: that is over.
  bool join(StreamState& stream, uint64_t capture) noexcept;
  // The stream's capture, if it takes part in one, can only end in an error from here on.
  void invalidate(const StreamState& stream) noexcept;
  bool invalidate(uint64_t capture) noexcept;  // false: it is over, or was invalid already

  // For work sent to this stream of the context. CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: it is the NULL stream, and one
  // that synchronises with it captures, which becomes invalid; CUDA_ERROR_STREAM_CAPTURE_INVALIDATED: it takes part in
  // an invalid capture.
  CUresult permit_work(ContextState& context, uint64_t wire_stream) noexcept;
  // For calls that wait for all of a context. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while something of it is captured,
  // which becomes invalid. Streams of its green contexts do not count, though it is waited for them, too.
  CUresult permit_synchronisation(ContextState& context) noexcept;
  // A stream waits for an event that was recorded in the capture `from` (0: in none). Not success: the captures are
  // invalid, but for CUDA_ERROR_INVALID_VALUE (`from` is over).
  CUresult permit_wait(const StreamState& stream, uint64_t from, bool recorded) noexcept;
  // For calls that CUDA forbids while a capture may notice them (allocating memory, for one). Success, or
  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and then the captures in question are invalid. Costs one atomic load while
  // nothing is captured.
  CUresult permit_unsafe_call() noexcept;
  // Is anything captured? Costs one atomic load.
  bool any() const noexcept { return count_.load(std::memory_order_relaxed) != 0; }
  // Is there no capture in the server's driver, either, at a frame that is sent now? With the send lock held, or where
  // later captures have to see the caller's action.
  bool none() const noexcept {
    return count_.load(std::memory_order_acquire) == 0 && changing_.load(std::memory_order_acquire) == 0;
  }
  // Around the frames by which the server's driver begins a capture, or ends one.
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
  // Is it under way, if only invalid by now?
  bool is_active(uint64_t capture) noexcept;
  // Is this the graph of a capture under way?
  bool has_graph(uint64_t graph) noexcept;

  // --- which there are ---------------------------------------------------------------------------------------------

  // A capture has begun; `capture.id` is chosen here. CUDA_ERROR_OUT_OF_MEMORY.
  CUresult add(Capture capture, StreamState& origin) noexcept;
  // Takes the capture out, and all streams with it.
  void remove(const Capture& capture) noexcept;
  // The context's captures end with it.
  void remove_of(ContextState& context) noexcept;
  // A copy of the one that the stream takes part in. False: none.
  bool find(const StreamState& stream, Capture& out);
  // Stores the program's view of a capture in this stream, and shows it to `tell`: valid until the stream's next such
  // call (CUDA driver API, cuStreamGetCaptureInfo). False: the capture is over.
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
  void after_fork_in_child() noexcept override {}  // nobody there asks

 private:
  Capture* find(uint64_t id) noexcept REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Capture> active_ GUARDED_BY(mutex_);  // a handful
  // active_.size(), for the check that nothing is captured; relaxed: a capture that another thread is just starting may
  // or may not be seen. Stored with release for none(): a thread that sees that a capture is out sees changing_ from
  // before.
  std::atomic<uint32_t> count_{0};
  std::atomic<uint32_t> changing_{0};
};

// The same for a call that has not been entered yet: it reports its other faults itself.
CUresult permit_unsafe_call() noexcept;
// The same for calls that a context that has failed answers with its error, whatever is captured.
CUresult permit_unless_failed() noexcept;

}  // namespace gpuwire::client
