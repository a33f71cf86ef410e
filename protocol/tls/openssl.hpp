// OpenSSL as this project uses it: started without exit handlers and without anybody's configuration file, and left in
// order across fork().
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace gpuwire::tls {

template <auto Free>
struct Freed {
  template <class T>
  void operator()(T* object) const {
    Free(object);
  }
};
using Context = std::unique_ptr<SSL_CTX, Freed<SSL_CTX_free>>;
using Connection = std::unique_ptr<SSL, Freed<SSL_free>>;
using SessionHandle = std::unique_ptr<SSL_SESSION, Freed<SSL_SESSION_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;

// Idempotent, any thread. Whatever makes an OpenSSL object here calls it first: the first start decides about the exit
// handlers, and a library inside other people's programs may not free its state while their threads still run. A
// program that brings its own OpenSSL has another copy.
void start_openssl() noexcept;

// Held around uses of OpenSSL's process-wide state (contexts, handshakes, random numbers), never around a wait: fork()
// waits for it, so that a child finds none of OpenSSL's own locks held. Reading and writing records does not need it.
class ForkSafe {
 public:
  ForkSafe();

 private:
  std::lock_guard<std::mutex> lock_;
};

// The first of the calling thread's errors in words, "unknown error" without one; takes all of them away.
std::string take_error();

}  // namespace gpuwire::tls
