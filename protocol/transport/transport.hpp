// A connection: an ordered stream of bytes in each direction. Everything above this interface is the same for TCP, Unix sockets and the
// simulated connection of the tests.
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

// What to wait for; an or of these.
enum Interest : unsigned { kReadable = 1, kWritable = 2, kWoken = 4 };

// More pieces than this in one call are not looked at.
inline constexpr size_t kPiecesMax = 16;

// Threads: one may send while another receives and any number wait. wake() and shutdown() come from any thread at any time. Nothing here
// throws or raises a signal.
class Transport {
 public:
  virtual ~Transport() = default;

  // Never wait.
  virtual IoResult try_send(std::span<const iovec> pieces) noexcept = 0;
  virtual IoResult try_receive(std::span<std::byte> out) noexcept = 0;

  // Waits for one of `interest`, at most `timeout`, and returns those that are there; 0 after the timeout or a signal. A connection that has
  // ended is readable and writable: the next call says why. kWoken consumes the wake().
  virtual unsigned wait(unsigned interest, Nanoseconds timeout) noexcept = 0;
  // Ends one wait for kWoken, now or, when nobody waits, the next.
  virtual void wake() noexcept = 0;

  // Ends both directions: what has arrived can still be received, then comes `closed`; waiting threads wake up.
  virtual void shutdown() noexcept = 0;

  // The file descriptor, to hand to another process; -1 if there is none. Stays owned by the transport.
  virtual int descriptor() const noexcept = 0;
  // In a child after fork(): closes the descriptors; nothing else may be called after it. Async-signal-safe.
  virtual void abandon_after_fork() noexcept = 0;
  // "127.0.0.1:41234", for logs.
  virtual std::string peer() const = 0;
};

// Everything in `data`, at most for `timeout`. would_block: time ran out; `bytes` says how far it got.
IoResult send_all(Transport& transport, std::span<const iovec> data, Nanoseconds timeout) noexcept;
// Fills `out`; closed, failed, would_block: `bytes` says how far it got.
IoResult receive_all(Transport& transport, std::span<std::byte> out, Nanoseconds timeout) noexcept;

// "Connection reset by peer" and so on: why the connection ended.
std::string describe(const IoResult& result);

}  // namespace gpuwire::transport
