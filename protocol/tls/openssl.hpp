// The start of OpenSSL, without exit handlers and without a configuration file, and the lock that keeps it usable
// across fork().
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

// Starts OpenSSL; later calls do nothing. Thread: any. Called before each creation of an OpenSSL object, because the
// first start decides about the exit handlers, and a library inside a user's program may not free its state while the
// program's threads run. A program's own OpenSSL is another copy.
void start_openssl() noexcept;

// Held while OpenSSL's process-wide state (contexts, handshakes, random numbers) is used, and never during a wait.
// fork() waits for it, so that a child finds none of OpenSSL's locks held. Reading and writing records does not need
// it.
class ForkSafe {
 public:
  ForkSafe();

 private:
  std::lock_guard<std::mutex> lock_;
};

// Returns the first of the calling thread's errors as text, or "unknown error", and removes all of them.
std::string take_error();

}  // namespace gpuwire::tls
