// One TLS connection over a socket. Everything that it needs a lock for is short: waiting is the caller's, by poll,
// outside.
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

// TLS asks for a new key after at most 2^24.5 records of AES-GCM; bulk gets there within the hour.
inline constexpr uint64_t kRecordsPerKey = 1ull << 23;
// The most bytes that one try_send() encrypts: the other direction waits for the lock meanwhile.
inline constexpr size_t kSendBytesMax = 256u << 10;
// The most bytes of a look ahead: a frame's header, with room.
inline constexpr size_t kPeekBytesMax = 64;

// Threads: one may send while another receives, any may ask the rest; one mutex lets them in one after the other. The
// descriptor stays its owner's, outlives the channel, and may be blocking or not.
class TlsChannel {
 public:
  // This side is the client; the server's certificate has to be for `wanted.host`, a name or an address. Without a host
  // no name is checked, because a key authenticates the server (key_client_context()). Null: out of memory.
  static std::unique_ptr<TlsChannel> connect(const Context& context, int descriptor, Wanted wanted = {});
  static std::unique_ptr<TlsChannel> accept(const Context& context, int descriptor);
  ~TlsChannel();

  // Shakes hands, waiting for the peer for `timeout` in all. Error: one line. With a key context: fails unless the key
  // was used.
  tl::expected<void, std::string> handshake(Nanoseconds timeout);
  // For callers that wait by other means: one step without waiting.
  enum class Step : uint8_t { done, wants_read, wants_write, failed };
  Step step();

  // As Transport's: they never wait. Bytes count as sent when the system has taken their whole records. After
  // `would_block` the next call has to begin with the bytes that this one began with (and may have more), because they
  // are encrypted already.
  IoResult try_send(std::span<const iovec> pieces) noexcept;
  IoResult try_receive(std::span<std::byte> out) noexcept;
  // The same, and it stays to be received; of at most kPeekBytesMax bytes, in however many records they come.
  IoResult try_peek(std::span<std::byte> out) noexcept;

  // There may be more to receive than the descriptor shows: poll only when this is false.
  bool pending() const noexcept;
  // Encrypted bytes wait for the socket; they leave with the next call that sends or receives.
  bool unsent() const noexcept;
  // No byte beyond those that try_receive() has returned was read from the socket.
  bool drained() const noexcept;

  // Says that nothing more will be sent (close_notify), if the socket takes it at once. The socket stays open.
  void close_notify() noexcept;
  // A thread that was inside has left by siglongjmp(): if it is the calling one, its lock is given back, and the
  // channel is broken. True: it was.
  bool take_back_from_left_call() noexcept;
  // In a signal handler: may the calling thread be inside?
  bool is_inside() noexcept { return !is_seen_free(mutex_); }

  tl::expected<SessionKey, std::string> exported_key();
  // Bytes that only the two ends of this connection can compute. Empty: it has failed.
  std::string binding();
  // Not empty after something has failed: why, in one line.
  std::string failure() const;
  // The failure is that the connection has ended, and nobody has said why.
  bool dropped() const;
  // The bytes have come to an end, however that was said.
  bool ended() const;
  // Only to look at: the lock does not guard it.
  SSL* native() const { return connection_.get(); }
  // Tests ask for new keys sooner.
  void set_records_per_key(uint64_t records) { records_per_key_ = records; }

 private:
  TlsChannel(Connection connection, int descriptor, bool client, Wanted wanted);
  static std::unique_ptr<TlsChannel> make(const Context& context, int descriptor, bool client, Wanted wanted);

  class Pieces;
  // All of these: with the lock.
  Step step_locked();
  bool encrypt(Pieces& pieces, size_t& encrypted);
  bool encrypt_record(const std::byte* bytes, size_t size);
  // Taken from the socket and not given out, in whatever state.
  bool more_here() const { return SSL_has_pending(connection_.get()) || socket_.received(); }
  IoResult receive(std::span<std::byte> out);
  IoResult receive_ended(int error);
  IoResult fail(int error);
  IoResult sending_failed();
  void note_failure();
  std::string closed_text() const;

  mutable std::mutex mutex_;
  // Under mutex_:
  SocketBio socket_;
  CertificateFault fault_;
  Connection connection_;
  const bool client_;
  const Wanted wanted_;
  std::string failure_;
  bool dropped_ = false;
  bool keyed_ = false;  // the context is one with a key
  bool established_ = false;
  bool shut_ = false;  // close_notify was called
  bool pending_ = false;
  std::array<std::byte, kPeekBytesMax> held_;  // bytes of a look ahead that nobody has received yet
  size_t held_bytes_ = 0;
  int broken_ = 0;        // errno that all later calls give; 0: none
  size_t owed_ = 0;       // bytes encrypted by earlier calls, of which no call has said yet that they were sent
  uint64_t records_ = 0;  // under the present key
  uint64_t records_per_key_ = kRecordsPerKey;
  std::unique_ptr<std::byte[]> record_;  // gathers small pieces into one record
};

}  // namespace gpuwire::tls
