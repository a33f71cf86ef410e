// A connection: an ordered stream of bytes in each direction. Everything above this interface is the same for TCP, Unix
// sockets and the simulated connection of the tests.
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
  ok,           // `bytes` were moved, at least one
  would_block,  // none just now
  closed,       // receiving: the peer has sent its last byte
  failed,       // the connection is gone; `error` is an errno value
};

struct IoResult {
  IoStatus status = IoStatus::ok;
  size_t bytes = 0;
  int error = 0;
};

// The events of a wait; an or of these.
enum Interest : unsigned { kReadable = 1, kWritable = 2, kWoken = 4 };

// More pieces than this in one call are not looked at.
inline constexpr size_t kPiecesMax = 16;

// The source of frames: a connection, or a link that outlives connections (protocol/link).
class ByteSource {
 public:
  // Never waits.
  virtual IoResult try_receive(std::span<std::byte> out) noexcept = 0;
  // The same, where `out` is nobody else's and stays: for bulk. May wait until it is full, but not without coming back
  // where the owner has to look at something.
  virtual IoResult receive_in_place(std::span<std::byte> out) noexcept { return try_receive(out); }
  // Waits for one of `interest`, at most `timeout`, and returns those that are there; 0 after the timeout or a signal.
  // A connection that has ended is readable and writable: the next call says why. kWoken consumes the wake().
  virtual unsigned wait(unsigned interest, Nanoseconds timeout) noexcept = 0;

 protected:
  ~ByteSource() = default;
};

// Threads: one may send while another receives and any number wait. wake() and shutdown() come from any thread at any
// time. Nothing here throws or raises a signal.
class Transport : public ByteSource {
 public:
  virtual ~Transport() = default;

  // Never waits.
  virtual IoResult try_send(std::span<const iovec> pieces) noexcept = 0;
  // For bulk: may wait until `out` is full, where the system does that by itself, which saves wake-ups; else as
  // try_receive().
  virtual IoResult receive_bulk(std::span<std::byte> out) noexcept { return try_receive(out); }
  // Is there anything to receive, the end included? Costs one system call at most.
  virtual bool input() noexcept { return wait(kReadable, Nanoseconds(0)) != 0; }
  // Bytes that have reached this machine and that nobody has received, before decryption; 0 where this is unknown.
  virtual size_t unread() noexcept { return 0; }

  // Ends one wait for kWoken, now or, when nobody waits, the next.
  virtual void wake() noexcept = 0;

  // No more bytes will be sent; sent bytes still arrive, and receiving continues.
  virtual void finish() noexcept = 0;
  // Ends both directions: arrived bytes can still be received, then comes `closed`; waiting threads wake up.
  virtual void shutdown() noexcept = 0;
  // Ends both directions as a breaking connection does: bytes in flight may be lost, and the peer sees no orderly end,
  // where the system can do that. Not while a thread is inside receive_bulk().
  virtual void reset() noexcept { shutdown(); }
  // No more bytes will be received, and a waiting thread wakes up, but the peer is not notified, where the system can
  // do that.
  virtual void stop_receiving() noexcept { shutdown(); }
  // Has the peer closed its side, or its system for it? To be asked before shutdown().
  virtual bool peer_closed() noexcept { return false; }

  // The file descriptor, to hand to another process; -1 if there is none. Stays owned by the transport.
  virtual int descriptor() const noexcept = 0;
  // False: the program that this process is has closed the descriptor, and may have another one of this number. Nothing
  // is sent by it then or taken from it.
  virtual bool is_ours() noexcept { return true; }
  // In a child after fork(): closes the descriptors; nothing else may be called after it. Async-signal-safe.
  virtual void abandon_after_fork() noexcept = 0;
  // Why it has failed, in one line, where there is more to say than the error of the system; else empty.
  virtual std::string failure() const { return {}; }
  // It has failed because the peer broke its rules, and not because something was lost: another connection is no help.
  virtual bool damaged() const noexcept { return false; }
  // Bytes that only the two ends of this very connection can compute; empty where nothing keeps others from being in
  // it.
  virtual std::string binding() { return {}; }
  // "127.0.0.1:41234", for logs.
  virtual std::string peer() const = 0;
  // "tcp", "tls", "unix" or "shm", for people.
  virtual const char* road() const noexcept { return "stream"; }

  // The calling thread was inside this connection when it left by siglongjmp(), and will not come back: releases what
  // it held. `sending`, `receiving`: it was in a function that moves bytes this way. False: bytes may have been moved
  // without being counted.
  virtual bool take_back_from_left_call(bool sending, bool receiving) noexcept { return !sending && !receiving; }
  // In a signal handler: does the calling thread hold a lock of this connection's, so that it may call nothing of it?
  virtual bool is_inside() noexcept { return false; }
  // May it be left open and unused, with another one in its place, without the peer's taking that for an end?
  virtual bool can_be_left() const noexcept { return false; }

  // A file descriptor for the peer, beside the stream and before all bytes that are sent from now on. `number`: the
  // name by which the peer asks for it. The caller keeps its own. False: this connection carries no descriptors, or not
  // at present.
  virtual bool give_descriptor(uint64_t, int) noexcept { return false; }
  // One that the peer has given, the caller's from here on; -1: none of this number has come.
  virtual int take_descriptor(uint64_t) noexcept { return -1; }
};

// Everything in `data`, at most for `timeout`. would_block: time ran out; `bytes` says how far it got.
IoResult send_all(Transport& transport, std::span<const iovec> data, Nanoseconds timeout) noexcept;
// Fills `out`; closed, failed, would_block: `bytes` says how far it got.
IoResult receive_all(Transport& transport, std::span<std::byte> out, Nanoseconds timeout) noexcept;

// "Connection reset by peer" and so on: why the connection ended.
std::string describe(const IoResult& result);

}  // namespace gpuwire::transport
