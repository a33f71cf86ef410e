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
#include "protocol/wire/terminal_text.hpp"

namespace gpuwire::client {

// The server's facts about one device at session start; the client never asks for them again.
struct DeviceFacts {
  wire::ForeignText name;
  CUuuid uuid{};
  char luid[8] = {};
  uint64_t total_bytes = 0;
  // By CUdevice_attribute.
  std::vector<int32_t> attributes;
  // CUresult of each.
  std::vector<int32_t> attribute_errors;
  wire::ForeignText pci_bus_id;
  // By CUlimit; ~0: not available.
  std::vector<uint64_t> limits;
  int32_t stream_priority_least = 0, stream_priority_greatest = 0;
  std::vector<bool> peers;
};

struct ServerFacts {
  // HOST:PORT as the user gave it.
  std::string address;
  wire::ForeignText release;
  wire::ForeignText driver_name;
  int32_t driver_version = 0;
  bool software = false;
  // All of the server; the client applies CUDA_VISIBLE_DEVICES.
  std::vector<DeviceFacts> devices;
  // Bitmap of known call ordinals.
  std::vector<uint8_t> ordinals;
  // Whether the server keeps chunks of copies to the device, and how they are named: by their digests, or by digests
  // under the key.
  enum class Chunks : uint8_t { none, plain, keyed };
  Chunks chunks = Chunks::none;
  std::array<uint8_t, 32> chunk_key{};
  // Client and server are on one machine.
  bool same_machine = false;
  // Every stream waits for reported copies (Welcome.ordersUploads).
  bool orders_uploads = false;
  bool knows(uint32_t ordinal) const noexcept {
    return ordinal / 8 < ordinals.size() && (ordinals[ordinal / 8] >> (ordinal % 8) & 1);
  }
};

// Raw bytes to send behind a message. Bulk up to kPostedBulkBytesMax is copied at once. Larger bulk goes only with
// call(), which returns when the server has consumed the bytes. In both cases the memory may be reused afterwards. With
// `stays`, larger bulk may be posted: the memory must then keep its contents until the server has executed the frame,
// and stay mapped until then or until finish_sending() has returned. With a `keeper`, larger bulk may be posted too:
// `data` lies in memory of Session::keep(), which the session holds as long as it needs it.
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

// The destination of a reply's raw bytes. More bytes than `bytes` end the session, and so does a reply of success with
// fewer.
struct BulkSink {
  void* data = nullptr;
  size_t bytes = 0;
  const std::function<void(size_t offset, std::span<const std::byte> piece)>* scatter = nullptr;
};

// The receiver of notices. Called on the thread that reads the connection, with no session lock held; must not call
// back into the session except post(). One object for the whole session
// (client_stub/driver/state/composition/notices.cpp).
class NoticeHandler {
 public:
  virtual ~NoticeHandler() = default;
  // All notices except copy_data, output and ending (which the session handles). `message` is valid during the call
  // only. May throw kj::Exception: the session then ends with a fault.
  virtual void notice(wire::NoticeOrdinal ordinal, capnp::MessageReader& message) = 0;
  // Returns the destination of the bulk of copy_data and output, even for 0 bytes. Called before the bulk is read. The
  // session discards the bulk for a sink of 0 bytes, and ends for a smaller sink than needed.
  virtual BulkSink bulk_for(wire::NoticeOrdinal ordinal, capnp::MessageReader& message, size_t bulk_bytes) = 0;
  // Called after the bulk has been stored (copy_data, output). `text`: the bytes stored at the sink's `data`.
  virtual void bulk_stored(wire::NoticeOrdinal ordinal, capnp::MessageReader& message,
                           std::span<const std::byte> text) = 0;
  // The session has ended, but not by close(); every later call returns `result`. Thread: any. Called once.
  virtual void ended(CUresult result, std::string_view reason) = 0;
  // Periodic work: runs on the session's own thread, with no lock, after each posted frame and at the given time. May
  // post.
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
  // Frames that waited for room in the send window; their time is in wait_ns.
  std::atomic<uint64_t> stalls{0};
  // Connections that were lost and replaced.
  std::atomic<uint64_t> losses{0}, bytes_sent_again{0}, detached_ns{0};
};

// The calling thread's sent bytes and waits, over all sessions; the difference of two readings is the cost of one call.
// `waits` are round trips: several calls that were begun before the first of them was waited for count as one.
// `bytes_received` counts replies only.
struct ThreadTraffic {
  uint64_t waits = 0, wait_ns = 0, bytes_sent = 0, bytes_received = 0, stalls = 0;
};
extern thread_local constinit ThreadTraffic t_traffic __attribute__((tls_model("initial-exec")));

// The purpose of a session: a program's CUDA calls, or management queries, which need no context on a device.
enum class SessionKind : uint8_t { program, management };

class Session {
 public:
  virtual ~Session() = default;

  // Connects and makes the handshake; the session thread starts with the first posted call. `server` is HOST:PORT. On
  // failure `error` gets one line that names host and cause ("HOST:PORT: connection refused..."), and the result is the
  // CUDA error for the program: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH for another protocol version, otherwise
  // CUDA_ERROR_SYSTEM_NOT_READY or the server's error. Prints nothing: the caller does. A session that ends later
  // prints its one line on stderr itself, before ended().
  static CUresult connect(std::string_view server, NoticeHandler& notices, std::unique_ptr<Session>& session,
                          std::string& error, SessionKind kind = SessionKind::program);

  // While an object exists on a thread, the thread's posts may use the room in the send window that is reserved for
  // answers to the server, which may acknowledge nothing before it has received them.
  struct Answering {
    Answering() noexcept;
    ~Answering();
  };

  // As with CU_CTX_SCHED_BLOCKING_SYNC: threads that wait for a reply release their core soon. Thread: any.
  void wait_asleep(bool sleeps) noexcept { sleeps_.store(sleeps, std::memory_order_relaxed); }

  virtual const ServerFacts& facts() const noexcept = 0;
  virtual SessionStats& stats() noexcept = 0;
  // CUDA_SUCCESS while the session lives. In a child after fork(): CUDA_ERROR_NOT_INITIALIZED (a CUDA context does not
  // survive fork).
  virtual CUresult state() const noexcept = 0;

  // --- low level; use post() and call() of call.hpp ----------------------------------------------------------------
  // One frame under construction. The session's send lock is held from begin() to commit(); the code between them must
  // not block.
  struct Slot {
    // Zeroed; where the message is built.
    kj::ArrayPtr<capnp::word> words;
    uint64_t sequence = 0;
    // Set by expect_reply().
    PendingCall* call = nullptr;
  };
  // Waits while the send window is full. `words_max` bounds the message. Returns an error, without the lock, if the
  // session has ended.
  virtual CUresult begin(wire::FrameKind kind, uint32_t ordinal, uint32_t context, uint32_t words_max, const Bulk& bulk,
                         Slot& slot) noexcept = 0;
  // Publishes the frame with the first `words_used` words, and releases the lock.
  virtual void commit(Slot& slot, size_t words_used) noexcept = 0;
  // Drops the frame under construction (the writer threw), and releases the lock.
  virtual void abandon(Slot& slot) noexcept = 0;

  // Reads the reply of a called frame in place, and returns its result. Must not block. May throw kj::Exception
  // (invalid bytes), which ends the session. The session also ends if the result is success and fewer bytes than the
  // sink's have come.
  using ReplyReader = CUresult (*)(void* user, capnp::MessageReader& reply);
  // Flushes, then waits for the reply of `sequence`, on the thread that called expect_reply() for it; a thread may
  // expect several replies before it waits for the first. The calling thread reads the connection itself if no other
  // thread does. `sink` is that of expect_reply().
  virtual CUresult wait(uint64_t sequence, ReplyReader read, void* user, const BulkSink& sink) noexcept = 0;
  // Registers the wait of a called frame before the frame is published, so that its reply always finds it. Called
  // between begin() and commit().
  virtual void expect_reply(Slot& slot, const BulkSink& sink) noexcept = 0;
  // Sets aside a call without bulk whose reply is expected: no thread waits for it for now, and the reading thread
  // stores its reply. Some thread must wait() for it in the end; that wait counts as no round trip.
  virtual void set_aside(uint64_t) noexcept {}

  // Returns memory of at least `bytes` for a Bulk with a keeper. Null: unavailable at present, or always; the bulk must
  // then be sent with a call. Thread: any.
  virtual std::shared_ptr<std::byte> keep(size_t) noexcept { return nullptr; }

  // The observer of transfers that a caller waits for (transfer_progress.hpp). Null: none.
  virtual std::shared_ptr<TransferProgress> progress() const noexcept { return nullptr; }
  // Counts bytes of such transfers that went through memory shared with the server, not over the connection.
  virtual void note_moved(Direction, uint64_t) noexcept {}
  // The position behind the last appended frame.
  virtual uint64_t appended_bytes() const noexcept { return 0; }

  // Sends the buffered bytes.
  virtual void flush() noexcept = 0;
  // Receives arrived notices, for a program that polls for a result of a notice. Does not wait, and does nothing if a
  // thread has just polled.
  virtual void poll() noexcept {}
  // Returns when all earlier frames have been sent, or the session has ended: from then on no thread reads a caller's
  // memory.
  virtual void finish_sending() noexcept = 0;
  // The sequence of the last appended frame.
  virtual uint64_t last_sequence() const noexcept = 0;
  // Orderly end: goodbye, a short bounded effort to send, close. Never blocks on the server's answer. Later calls
  // return CUDA_ERROR_DEINITIALIZED.
  virtual void close() noexcept = 0;
  // The end if the program exits from within a call: from a signal handler that interrupted a call whose locks this
  // thread may hold. Attempts a goodbye; waits for nothing and allocates nothing. The kernel closes the connection.
  virtual void hang_up() noexcept {}
  // For a thread that has left a call by siglongjmp() and begins another one: releases everything that the thread held.
  // A state that cannot be repaired ends the session. Thread: any, not inside a call.
  virtual void take_back_from_left_call() noexcept {}
  // In the child after fork(): closes the descriptors without sending, and forgets all waits. Async-signal-safe. The
  // session registers it itself (pthread_atfork). The object must not be destroyed in a child, because threads of the
  // parent may have held its locks.
  virtual void after_fork_in_child() noexcept = 0;

 protected:
  // Publishes nothing else.
  std::atomic<bool> sleeps_{false};
};

}  // namespace gpuwire::client
