// A transport is a connection: an ordered stream of bytes in each direction. The layers above this interface are the
// same for TCP, Unix sockets, shared memory, RDMA and the simulated connection of the tests.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace gpuwire::transport {

using Nanoseconds = std::chrono::nanoseconds;

enum class IoStatus : uint8_t {
  ok,           // `bytes` bytes were moved, at least one
  would_block,  // no bytes can be moved now
  closed,       // receiving: the peer has sent its last byte
  failed,       // the connection is gone; `error` is an errno value
};

struct IoResult {
  IoStatus status = IoStatus::ok;
  size_t bytes = 0;
  int error = 0;
};

// The events of a wait, combined with |.
enum Interest : unsigned { kReadable = 1, kWritable = 2, kWoken = 4 };

// The maximum of pieces that one call uses.
inline constexpr size_t kPiecesMax = 16;

// A source of the bytes of frames: a transport, or a link that outlives transports (protocol/link).
class ByteSource {
 public:
  // Never waits.
  virtual IoResult try_receive(std::span<std::byte> out) noexcept = 0;
  // Receives bulk. Precondition: no other thread uses `out`, and `out` stays valid until it is full. May wait until
  // `out` is full, but returns early if the owner has to check something.
  virtual IoResult receive_in_place(std::span<std::byte> out) noexcept { return try_receive(out); }
  // Waits at most `timeout` for one of `interest`, and returns the events that are ready; 0 after the timeout or a
  // signal. A connection that has ended is readable and writable, and the next call returns the reason. kWoken consumes
  // the wake().
  virtual unsigned wait(unsigned interest, Nanoseconds timeout) noexcept = 0;

 protected:
  ~ByteSource() = default;
};

// Threads: one may send while another receives and any number wait. Any thread may call wake() and shutdown() at any
// time. No function throws or raises a signal.
class Transport : public ByteSource {
 public:
  virtual ~Transport() = default;

  // Never waits.
  virtual IoResult try_send(std::span<const iovec> pieces) noexcept = 0;
  // Receives bulk. May wait until `out` is full if the system can do that with fewer wake-ups; otherwise like
  // try_receive().
  virtual IoResult receive_bulk(std::span<std::byte> out) noexcept { return try_receive(out); }
  // Returns true if receiving would return bytes or the end. Makes at most one system call.
  virtual bool input() noexcept { return wait(kReadable, Nanoseconds(0)) != 0; }
  // Returns the number of bytes, before decryption, that have reached this machine and were not received; 0 if unknown.
  virtual size_t unread() noexcept { return 0; }

  // Ends one wait for kWoken: a present one, or else the next.
  virtual void wake() noexcept = 0;

  // Announces that this side sends no more bytes. Sent bytes still arrive, and receiving continues.
  virtual void finish() noexcept = 0;
  // Ends both directions. Arrived bytes can still be received, then receiving returns `closed`; waiting threads wake
  // up.
  virtual void shutdown() noexcept = 0;
  // Ends both directions like a failing connection: bytes in flight may be lost, and the peer sees no orderly end, if
  // the system supports that. Precondition: no thread is inside receive_bulk().
  virtual void reset() noexcept { shutdown(); }
  // Stops receiving and wakes a waiting thread, without notifying the peer if the system supports that.
  virtual void stop_receiving() noexcept { shutdown(); }
  // Returns true if the peer, or its system, has closed its side. Called before shutdown().
  virtual bool peer_closed() noexcept { return false; }

  // Returns the file descriptor, for another process, or -1 if there is none. The transport still owns it.
  virtual int descriptor() const noexcept = 0;
  // Returns false if the user's program has closed the descriptor and may have opened another one under its number. The
  // transport then neither sends nor receives.
  virtual bool is_ours() noexcept { return true; }
  // Closes the descriptors in a child after fork(). No other function may be called afterwards. Async-signal-safe.
  virtual void abandon_after_fork() noexcept = 0;
  // Returns the reason of the failure in one line, if it says more than the system's error; else an empty string.
  virtual std::string failure() const { return {}; }
  // Returns true if the connection has failed because the peer broke its rules. A new connection would not help.
  virtual bool damaged() const noexcept { return false; }
  // Returns bytes that only the two ends of this connection can compute, or an empty string if a third party may be
  // between them.
  virtual std::string binding() { return {}; }
  // "127.0.0.1:41234", for logs.
  virtual std::string peer() const = 0;
  // The kind of the connection for messages: "tcp", "tls", "unix" or "shm".
  virtual const char* road() const noexcept { return "stream"; }

  // Releases what the calling thread held, after it has left a function of this connection by siglongjmp() and will not
  // return. `sending`, `receiving`: the thread was in a function that moves bytes in this direction. Returns false if
  // bytes may have been moved without being counted.
  virtual bool take_back_from_left_call(bool sending, bool receiving) noexcept { return !sending && !receiving; }
  // For a signal handler: returns true if the calling thread holds a lock of this connection and so may call nothing of
  // it.
  virtual bool is_inside() noexcept { return false; }
  // Returns true if the connection can be left open and unused while another one replaces it, without the peer seeing
  // an end.
  virtual bool can_be_left() const noexcept { return false; }

  // Passes a file descriptor to the peer, beside the stream and before all bytes that are sent from now on. `number`
  // identifies it for the peer. The caller keeps its own descriptor. Returns false if this connection cannot pass
  // descriptors, or not now.
  virtual bool give_descriptor(uint64_t, int) noexcept { return false; }
  // Returns the descriptor with this number that the peer has passed, which the caller then owns; -1: none has arrived.
  virtual int take_descriptor(uint64_t) noexcept { return -1; }
};

// Sends all of `data` within `timeout`. would_block: the time ran out; `bytes` is the number of sent bytes.
IoResult send_all(Transport& transport, std::span<const iovec> data, Nanoseconds timeout) noexcept;
// Fills `out`. closed, failed, would_block: `bytes` is the number of received bytes.
IoResult receive_all(Transport& transport, std::span<std::byte> out, Nanoseconds timeout) noexcept;

// Returns the reason of the connection's end, such as "Connection reset by peer".
std::string describe(const IoResult& result);

}  // namespace gpuwire::transport
