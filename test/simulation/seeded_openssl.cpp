// RAND_METHOD, OpenSSL's interface for a program's own random numbers, is deprecated.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "test/simulation/seeded_openssl.hpp"

#include <mutex>
#include <random>

#include <openssl/rand.h>

#include "protocol/tls/openssl.hpp"

namespace gpuwire::simulation {

namespace {

std::mutex g_mutex;
std::mt19937_64 g_random;  // guarded by g_mutex

int draw(unsigned char* out, int bytes) {
  std::lock_guard lock(g_mutex);
  for (int i = 0; i < bytes; ++i) out[i] = static_cast<unsigned char>(g_random());
  return 1;
}

const RAND_METHOD kMethod = {nullptr, draw, nullptr, nullptr, draw, [] { return 1; }};

}  // namespace

void seed_openssl(uint64_t seed) {
  tls::start_openssl();
  {
    std::lock_guard lock(g_mutex);
    g_random.seed(seed);
  }
  RAND_set_rand_method(&kMethod);
}

}  // namespace gpuwire::simulation
