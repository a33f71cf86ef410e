// The socket below an OpenSSL connection. It never blocks, and raises no SIGPIPE in users' programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "protocol/tls/openssl.hpp"

namespace gpuwire::tls {

// A socket with a buffer of written bytes that were not sent, and a buffer of received bytes that OpenSSL has not read.
// OpenSSL reads and writes at most a record at a time; a system call here moves many. Thread: one at a time. Not
// movable, because the BIO points to it.
class SocketBio {
 public:
  // Not owned.
  explicit SocketBio(int descriptor);
  SocketBio(const SocketBio&) = delete;
  SocketBio& operator=(const SocketBio&) = delete;

  // Becomes the reading and writing side of the connection. Returns false if memory is short.
  bool attach(SSL* connection);

  enum class Flushed : uint8_t { all, blocked, failed };
  // Sends written bytes, as far as the socket accepts them. failed: error() has the reason.
  Flushed flush() noexcept;
  bool unsent() const { return begin_ != end_; }
  // Returns true if bytes were received from the socket that OpenSSL has not read.
  bool received() const { return in_begin_ != in_end_; }
  // Returns true if there is room for `bytes` bytes of plain data in records of kRecordBytes.
  bool room_for(size_t bytes) const;

  // Returns true if the socket had no more bytes in a call since forget_block().
  bool blocked() const { return blocked_; }
  void forget_block() { blocked_ = false; }
  bool ended() const { return ended_; }  // the peer has closed the socket
  int error() const { return error_; }   // errno of the socket; 0: none
  int descriptor() const { return descriptor_; }

 private:
  static const BIO_METHOD* method();
  static int on_read(BIO* bio, char* out, size_t size, size_t* got);
  static int on_write(BIO* bio, const char* bytes, size_t size, size_t* written);
  static long on_control(BIO* bio, int command, long number, void* pointer);

  bool receive();

  const int descriptor_;
  std::unique_ptr<std::byte[]> buffer_;
  size_t begin_ = 0, end_ = 0;
  std::unique_ptr<std::byte[]> in_;
  size_t in_begin_ = 0, in_end_ = 0;
  bool blocked_ = false;
  bool ended_ = false;
  int error_ = 0;
};

inline constexpr size_t kRecordBytes = 16384;        // plain data in a record; the maximum of TLS
inline constexpr size_t kRecordOverheadBytes = 64;   // header, type and tag take 22 bytes; there is no padding
inline constexpr size_t kReceiveBytes = 128u << 10;  // with one system call
inline constexpr size_t kUnsentBytesMax = 16 * (kRecordBytes + kRecordOverheadBytes);

}  // namespace gpuwire::tls
