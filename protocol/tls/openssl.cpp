#include "protocol/tls/openssl.hpp"

#include <pthread.h>

#include <openssl/crypto.h>
#include <openssl/err.h>

namespace gpuwire::tls {

namespace {

// Constant-initialised and never destroyed, because threads may still be in a handshake while the program runs its exit
// handlers.
constinit std::mutex g_fork_mutex;

}  // namespace

void start_openssl() noexcept {
  static const bool started = [] {
    pthread_atfork([] { g_fork_mutex.lock(); }, [] { g_fork_mutex.unlock(); }, [] { g_fork_mutex.unlock(); });
    return OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, nullptr) == 1;
  }();
  (void)started;
}

ForkSafe::ForkSafe() : lock_((start_openssl(), g_fork_mutex)) {}

std::string take_error() {
  unsigned long error = ERR_get_error();
  ERR_clear_error();
  const char* reason = error ? ERR_reason_error_string(error) : nullptr;
  return reason ? reason : "unknown error";
}

}  // namespace gpuwire::tls
