// One TLS connection over a socket. The channel holds its lock only briefly: callers wait outside, with poll().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "protocol/threads/held_mutex.hpp"
#include "protocol/tls/context.hpp"
#include "protocol/tls/failure.hpp"
#include "protocol/tls/openssl.hpp"
#include "protocol/tls/socket_bio.hpp"
#include "protocol/transport/transport.hpp"

namespace gpuwire::tls {

using transport::IoResult;
using transport::IoStatus;
using transport::Nanoseconds;

// TLS requires a new key after at most 2^24.5 records of AES-GCM, which bulk reaches within an hour.
inline constexpr uint64_t kRecordsPerKey = 1ull << 23;
// The maximum of bytes that one try_send() encrypts, because the other direction waits for the lock meanwhile.
inline constexpr size_t kSendBytesMax = 256u << 10;
// The maximum of bytes of a peek: a frame's header, with room.
inline constexpr size_t kPeekBytesMax = 64;

// Threads: one may send while another receives, and any thread may call the other functions; one mutex serialises them.
// The descriptor's owner keeps it, it outlives the channel, and it may be blocking or not.
class TlsChannel {
 public:
  // Creates the client's side. The server's certificate has to be for `wanted.host`, a name or an address. Without a
  // host no name is checked, because a key authenticates the server (key_client_context()). Returns null if memory is
  // short.
  static std::unique_ptr<TlsChannel> connect(const Context& context, int descriptor, Wanted wanted = {});
  static std::unique_ptr<TlsChannel> accept(const Context& context, int descriptor);
  ~TlsChannel();

  // Does the handshake, and waits for the peer for at most `timeout` in all. The error is one line. With a key context,
  // fails unless the key was used.
  tl::expected<void, std::string> handshake(Nanoseconds timeout);
  // Does one step of the handshake without waiting, for callers that wait by other means.
  enum class Step : uint8_t { done, wants_read, wants_write, failed };
  Step step();

  // Send and receive like Transport's functions, without waiting. Bytes count as sent when the kernel has accepted
  // their complete records. After `would_block`, the next call has to begin with the same bytes, because they are
  // encrypted already; it may have more.
  IoResult try_send(std::span<const iovec> pieces) noexcept;
  IoResult try_receive(std::span<std::byte> out) noexcept;
  // Receives like try_receive(), but the bytes stay to be received. At most kPeekBytesMax bytes, in any number of
  // records.
  IoResult try_peek(std::span<std::byte> out) noexcept;

  // Returns true if there may be more to receive than the descriptor shows. A caller polls only if this is false.
  bool pending() const noexcept;
  // Returns true if encrypted bytes wait for the socket. The next call that sends or receives sends them.
  bool unsent() const noexcept;
  // Returns true if no byte was read from the socket beyond those that try_receive() has returned.
  bool drained() const noexcept;

  // Announces that nothing more will be sent (close_notify), if the socket accepts it at once. The socket stays open.
  void close_notify() noexcept;
  // If the calling thread has left this channel by siglongjmp(): releases its lock, breaks the channel and returns
  // true.
  bool take_back_from_left_call() noexcept;
  // For a signal handler: returns true if the calling thread may be inside.
  bool is_inside() noexcept { return !is_seen_free(mutex_); }

  tl::expected<SessionKey, std::string> exported_key();
  // Returns bytes that only the two ends of this connection can compute, or an empty string on failure.
  std::string binding();
  // Returns the reason of a failure in one line, or an empty string.
  std::string failure() const;
  // Returns true if the failure is the end of the connection, without a reason from the other side.
  bool dropped() const;
  // Returns true if the connection has ended, with close_notify or without.
  bool ended() const;
  // For reading only: the lock does not guard it.
  SSL* native() const { return connection_.get(); }
  // For tests, which use new keys sooner.
  void set_records_per_key(uint64_t records) { records_per_key_ = records; }

 private:
  TlsChannel(Connection connection, int descriptor, bool client, Wanted wanted);
  static std::unique_ptr<TlsChannel> make(const Context& context, int descriptor, bool client, Wanted wanted);

  class Pieces;
  // Lock: mutex_ is held, for all of these.
  Step step_locked();
  bool encrypt(Pieces& pieces, size_t& encrypted);
  bool encrypt_record(const std::byte* bytes, size_t size);
  // Returns true if bytes were read from the socket and not returned to the caller, decrypted or not.
  bool more_here() const { return SSL_has_pending(connection_.get()) || socket_.received(); }
  IoResult receive(std::span<std::byte> out);
  IoResult receive_ended(int error);
  IoResult fail(int error);
  IoResult sending_failed();
  void note_failure();
  std::string closed_text() const;

  mutable std::mutex mutex_;
  // Guarded by mutex_:
  SocketBio socket_;
  CertificateFault fault_;
  Connection connection_;
  const bool client_;
  const Wanted wanted_;
  std::string failure_;
  bool dropped_ = false;
  // The context is one with a key.
  bool keyed_ = false;
  bool established_ = false;
  // close_notify was called.
  bool shut_ = false;
  bool pending_ = false;
  // Bytes of a peek that were not received yet.
  std::array<std::byte, kPeekBytesMax> held_;
  size_t held_bytes_ = 0;
  // The errno that all later calls return; 0: none.
  int broken_ = 0;
  // Bytes that earlier calls have encrypted and that no call has reported as sent.
  size_t owed_ = 0;
  // With the present key.
  uint64_t records_ = 0;
  uint64_t records_per_key_ = kRecordsPerKey;
  // Gathers short pieces into one record.
  std::unique_ptr<std::byte[]> record_;
};

}  // namespace gpuwire::tls
