// One session: this process talking to one server. Calls of all threads are appended to one ordered stream; a posted
// call returns at once, a called one waits for its reply. client_stub/session/README.md draws the threads and locks.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <capnp/message.h>

#include "protocol/wire/frame.hpp"
#include "protocol/wire/ordinals.hpp"

namespace gpuwire::client {

// What the server told about one device at session start; nothing of it is asked again.
struct DeviceFacts {
  std::string name;
  CUuuid uuid{};
  char luid[8] = {};
  uint64_t total_bytes = 0;
  std::vector<int32_t> attributes;        // by CUdevice_attribute
  std::vector<int32_t> attribute_errors;  // CUresult of each
  std::string pci_bus_id;
  std::vector<uint64_t> limits;  // by CUlimit; ~0: not available
  int32_t stream_priority_least = 0, stream_priority_greatest = 0;
  std::vector<bool> peers;
};

struct ServerFacts {
  std::string address;  // HOST:PORT as the user gave it
  std::string release;
  std::string driver_name;
  int32_t driver_version = 0;
  bool software = false;
  std::vector<DeviceFacts> devices;  // all of the server; the client applies CUDA_VISIBLE_DEVICES
  std::vector<uint8_t> ordinals;     // bitmap of known call ordinals
  // Whether the server keeps chunks of copies to the device, and how they are named: by their digests, or by digests
  // under the key.
  enum class Chunks : uint8_t { none, plain, keyed };
  Chunks chunks = Chunks::none;
  std::array<uint8_t, 32> chunk_key{};
  bool same_machine = false;  // nothing but this machine's own system is between the two
  bool knows(uint32_t ordinal) const noexcept {
    return ordinal / 8 < ordinals.size() && (ordinals[ordinal / 8] >> (ordinal % 8) & 1);
  }
};

// Raw bytes to send behind a message. Up to kPostedBulkBytesMax they are copied at once; more may only go with call(),
// which returns when the server has taken them over, so the memory may be reused after either. With `stays` more may be
// posted, too: the memory must then keep its contents until the server has executed the frame, and stay mapped until
// then or until finish_sending() has returned. With a `keeper`, too: `data` lies in what Session::keep() has given,
// which the session holds until it needs it no more.
struct Bulk {
  const void* data = nullptr;
  size_t bytes = 0;
  bool stays = false;
  std::shared_ptr<const void> keeper;
  // Pitched sources: when set, called as gather(offset, out) -> fills out with the packed bytes from `offset` on. data
  // is then unused. Any thread of the session may call it, in ascending order of offsets, until wait() returns; must
  // not throw.
  const std::function<void(size_t offset, std::span<std::byte> out)>* gather = nullptr;
};

// Where the raw bytes of a reply go. More bytes than `bytes` end the session.
struct BulkSink {
  void* data = nullptr;
  size_t bytes = 0;
  const std::function<void(size_t offset, std::span<const std::byte> piece)>* scatter = nullptr;
};

// Who takes what comes unasked. Called on whichever thread reads the connection, with no session lock held; must not
// call back into the session except post(). One object for the whole session (client_stub/driver/session/notices.cpp).
class NoticeHandler {
 public:
  virtual ~NoticeHandler() = default;
  // All but copy_data, output and ending (which the session handles). `message` is valid during the call only. May
  // throw kj::Exception: the session then ends with a fault.
  virtual void notice(wire::NoticeOrdinal ordinal, capnp::MessageReader& message) = 0;
  // For copy_data and output, also when there are 0 bytes: where its bulk goes. Asked before the bulk is read; a sink
  // of 0 bytes: thrown away; a smaller one: the session ends.
  virtual BulkSink bulk_for(wire::NoticeOrdinal ordinal, capnp::MessageReader& message, size_t bulk_bytes) = 0;
  // After the bulk has been stored (copy_data, output). `text`: what was stored at the sink's `data`.
  virtual void bulk_stored(wire::NoticeOrdinal ordinal, capnp::MessageReader& message,
                           std::span<const std::byte> text) = 0;
  // The session has ended, not by close(); every later call returns `result`. Any thread, once.
  virtual void ended(CUresult result, std::string_view reason) = 0;
  // What has to be done now and then: on the session's own thread, with no lock, after each frame that was posted and
  // when the time is over that was given. May post.
  virtual std::chrono::nanoseconds upkeep(std::chrono::steady_clock::time_point) noexcept {
    return std::chrono::nanoseconds::max();
  }
};

struct PendingCall;
class TransferProgress;
enum class Direction : uint8_t;  // transfer_progress.hpp

// Counters for --stats; relaxed, read when the program ends.
struct SessionStats {
  std::atomic<uint64_t> posted{0}, called{0}, waits{0}, wait_ns{0}, bytes_sent{0}, bytes_received{0}, flushes{0};
  std::atomic<uint64_t> stalls{0};  // frames that had to wait for room in the send window; the time is in wait_ns
  std::atomic<uint64_t> losses{0}, bytes_sent_again{0}, detached_ns{0};  // connections that were lost and replaced
};

// What the calling thread has sent and waited for, over all sessions; differences are the cost of one call. `waits` are
// round trips: several calls that were begun before the first of them was waited for are one. `bytes_received` are
// replies only.
struct ThreadTraffic {
  uint64_t waits = 0, wait_ns = 0, bytes_sent = 0, bytes_received = 0, stalls = 0;
};
extern thread_local constinit ThreadTraffic t_traffic __attribute__((tls_model("initial-exec")));

// What a session is for: a program's CUDA calls, or management queries, which need no context on a device.
enum class SessionKind : uint8_t { program, management };

class Session {
 public:
  virtual ~Session() = default;

  // Connects, shakes hands and starts nothing else; the session thread starts with the first posted call. `server` is
  // HOST:PORT. On failure `error` gets one line that names host and cause ("HOST:PORT: connection refused..."), and the
  // result is the CUDA error to give the program: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH for another protocol version, else
  // CUDA_ERROR_SYSTEM_NOT_READY or what the server asks for. Nothing is printed: that is the caller's. A session that
  // ends later prints its one line on stderr itself, before ended().
  static CUresult connect(std::string_view server, NoticeHandler& notices, std::unique_ptr<Session>& session,
                          std::string& error, SessionKind kind = SessionKind::program);

  // While one exists on a thread, what the thread posts may use room in the send window that is kept for answers to the
  // server: it may take nothing over before it has got them.
  struct Answering {
    Answering() noexcept;
    ~Answering();
  };

  // As with CU_CTX_SCHED_BLOCKING_SYNC: threads that wait for a reply leave their core soon. Any thread.
  void wait_asleep(bool sleeps) noexcept { sleeps_.store(sleeps, std::memory_order_relaxed); }

  virtual const ServerFacts& facts() const noexcept = 0;
  virtual SessionStats& stats() noexcept = 0;
  // CUDA_SUCCESS while the session lives. In a child after fork(): CUDA_ERROR_NOT_INITIALIZED (a CUDA context does not
  // survive fork).
  virtual CUresult state() const noexcept = 0;

  // --- low level; use post() and call() of call.hpp ----------------------------------------------------------------
  // One frame under construction. Holds the session's send lock from begin() to commit(): between them do nothing that
  // blocks.
  struct Slot {
    kj::ArrayPtr<capnp::word> words;  // zeroed; where the message is built
    uint64_t sequence = 0;
    PendingCall* call = nullptr;  // the session's own, set by expect_reply()
  };
  // Waits while the send window is full. words_max bounds the message. Returns an error when the session has ended (the
  // lock is then not held).
  virtual CUresult begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const Bulk& bulk,
                         Slot& slot) noexcept = 0;
  // Publishes the frame with the first `words_used` words, releases the lock.
  virtual void commit(Slot& slot, size_t words_used) noexcept = 0;
  // Drops the frame under construction (the writer threw), releases the lock.
  virtual void abandon(Slot& slot) noexcept = 0;

  // Reads the reply of a called frame in place; must not block. May throw kj::Exception (bad bytes): the session then
  // ends.
  using ReplyReader = void (*)(void* user, capnp::MessageReader& reply);
  // Flushes, then waits for the reply of `sequence`, on the thread that called expect_reply() for it; several may be
  // expected before the first is waited for. The calling thread itself reads the connection when nobody else does. The
  // sink is the one given to expect_reply().
  virtual CUresult wait(uint64_t sequence, ReplyReader read, void* user, const BulkSink& sink) noexcept = 0;
  // For called frames: registers the wait before the frame is published, so that a reply cannot come too early. Called
  // between begin and commit.
  virtual void expect_reply(Slot& slot, const BulkSink& sink) noexcept = 0;
  // Of a call without bulk whose reply is expected: nobody waits for it for now, so that whoever reads takes it. Some
  // thread, any one, has to wait() for it in the end, which then counts as no round trip.
  virtual void set_aside(uint64_t) noexcept {}

  // Memory of at least `bytes` for a Bulk with a keeper. Null: it cannot be had just now, or never; then the bulk goes
  // with a call. Any thread.
  virtual std::shared_ptr<std::byte> keep(size_t) noexcept { return nullptr; }

  // Where transfers that a caller waits for are told of (transfer_progress.hpp). Null: nobody wants to know.
  virtual std::shared_ptr<TransferProgress> progress() const noexcept { return nullptr; }
  // Bytes of such transfers that have gone by memory which the server has, too, and not over the connection.
  virtual void note_moved(Direction, uint64_t) noexcept {}
  // The position behind the last frame that was appended.
  virtual uint64_t appended_bytes() const noexcept { return 0; }

  // Sends what is buffered now.
  virtual void flush() noexcept = 0;
  // Takes what has come unasked, for a program that asks again and again for what a notice will tell. Waits for
  // nothing, and does nothing if some thread has looked a moment ago.
  virtual void look() noexcept {}
  // Returns when everything that was appended before has been sent, or the session has ended: nobody reads a caller's
  // memory any more.
  virtual void finish_sending() noexcept = 0;
  // The sequence of the last frame that was appended.
  virtual uint64_t last_sequence() const noexcept = 0;
  // Orderly end: goodbye, a short bounded effort to send, close. Never blocks on the server's answer. Later calls
  // return CUDA_ERROR_DEINITIALIZED.
  virtual void close() noexcept = 0;
  // In the child after fork(): closes the descriptors without sending anything and forgets all waits.
  // Async-signal-safe. The session sees to it itself (pthread_atfork). The object must not be destroyed in a child:
  // locks of the parent's threads may be held in its copy.
  virtual void after_fork_in_child() noexcept = 0;

 protected:
  std::atomic<bool> sleeps_{false};  // publishes nothing else
};

}  // namespace gpuwire::client
