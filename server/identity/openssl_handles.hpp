// Owners of libcrypto's objects, and its errors as text.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <openssl/bio.h>
#include <openssl/bn.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

namespace gpuwire::server {

struct OpensslFree {
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(BIO* bio) const { BIO_free_all(bio); }
  void operator()(BIGNUM* number) const { BN_clear_free(number); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
};
template <class Object>
using OpensslHandle = std::unique_ptr<Object, OpensslFree>;
using CertificateHandle = OpensslHandle<X509>;
using KeyHandle = OpensslHandle<EVP_PKEY>;

// Returns "WHAT: ERROR" with the first error of this thread's queue, and empties the queue.
std::string openssl_error(std::string_view what);

}  // namespace gpuwire::server
