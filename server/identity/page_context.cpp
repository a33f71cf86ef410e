#include "server/identity/page_context.hpp"

#include <algorithm>
#include <climits>
#include <vector>

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include "protocol/tls/context.hpp"
#include "server/identity/client_certificates.hpp"

namespace gpuwire::server {
namespace {

constexpr size_t kChainLengthMax = 16;

using Failure = tl::unexpected<std::string>;

// The first is the page's own.
std::vector<CertificateHandle> read_chain(const std::string& pem) {
  std::vector<CertificateHandle> chain;
  OpensslHandle<BIO> bio(BIO_new_mem_buf(pem.data(), int(std::min<size_t>(pem.size(), INT_MAX))));
  while (bio && chain.size() < kChainLengthMax) {
    CertificateHandle one(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
    if (!one) break;
    chain.push_back(std::move(one));
  }
  ERR_clear_error();
  return chain;
}

bool use(SSL_CTX* context, const std::vector<CertificateHandle>& chain, EVP_PKEY* key) {
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1 || SSL_CTX_use_PrivateKey(context, key) != 1)
    return false;
  return std::all_of(chain.begin() + 1, chain.end(),
                     [&](const auto& one) { return SSL_CTX_add1_chain_cert(context, one.get()) == 1; });
}

}  // namespace

tl::expected<tls::Context, std::string> make_page_context(const PageTexts& texts, WallTime now) {
  tls::start_openssl();
  const std::vector<CertificateHandle> chain = read_chain(texts.certificate);
  if (chain.empty()) return Failure(std::string("web_certificate: there is no certificate in PEM format in it"));
  auto key = read_key(texts.key);
  if (!key) return Failure("web_key: " + key.error());
  if (X509_check_private_key(chain.front().get(), key->get()) != 1)
    return Failure(openssl_error("web_key: not the key of the first certificate of web_certificate"));
  if (const WallTime end = expiry_of(chain.front().get()); end <= now)
    return Failure(fmt::format("web_certificate: it expired on {}", to_words(end)));
  tls::Context context(SSL_CTX_new(TLS_server_method()));
  if (!context || !tls::restrict_server(context.get()) || !use(context.get(), chain, key->get()))
    return Failure(openssl_error("the web page's TLS settings"));
  // A visitor's records stand in the memory of this process alone, one behind the other, so that no read has to return
  // to its caller for the sake of others.
  SSL_CTX_set_mode(context.get(), SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);
  if (texts.authority.empty()) return context;
  auto authority = read_certificate(texts.authority);
  if (!authority) return Failure("the authority of tenants' certificates: " + authority.error());
  if (!ask_for_certificates(context.get(), authority->get()))
    return Failure(openssl_error("the web page's TLS settings"));
  return context;
}

}  // namespace gpuwire::server
