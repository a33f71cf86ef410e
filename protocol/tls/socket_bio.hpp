// The socket below an OpenSSL connection: it never blocks, and raises no SIGPIPE in other people's programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "protocol/tls/openssl.hpp"

namespace gpuwire::tls {

// The socket with written bytes that are not sent yet, and received bytes that nobody has asked for: OpenSSL moves a
// record or less at a time, a system call here moves many. One thread at a time. Not movable: the BIO points to it.
class SocketBio {
 public:
  explicit SocketBio(int descriptor);  // not owned
  SocketBio(const SocketBio&) = delete;
  SocketBio& operator=(const SocketBio&) = delete;

  // Gives the connection its reading and writing side. False: out of memory.
  bool attach(SSL* connection);

  enum class Flushed : uint8_t { all, blocked, failed };
  // Sends written bytes, as far as the socket takes them; failed: error() has the reason.
  Flushed flush() noexcept;
  bool unsent() const { return begin_ != end_; }
  // Bytes were taken from the socket that OpenSSL has not asked for.
  bool received() const { return in_begin_ != in_end_; }
  // Is there room for `bytes` of plain data in records of kRecordBytes?
  bool room_for(size_t bytes) const;

  // Since forget_block(): the socket had nothing more to read.
  bool blocked() const { return blocked_; }
  void forget_block() { blocked_ = false; }
  bool ended() const { return ended_; }  // the peer closed, without a word of TLS as far as is known here
  int error() const { return error_; }   // errno of the socket, 0: none
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

inline constexpr size_t kRecordBytes = 16384;        // of plain data, the most that TLS allows in one
inline constexpr size_t kRecordOverheadBytes = 64;   // header, type and tag take 22; no padding is made
inline constexpr size_t kReceiveBytes = 128u << 10;  // with one system call
inline constexpr size_t kUnsentBytesMax = 16 * (kRecordBytes + kRecordOverheadBytes);

}  // namespace gpuwire::tls
