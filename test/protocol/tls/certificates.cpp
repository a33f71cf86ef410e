#include "test/protocol/tls/certificates.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

namespace gpuwire::test {

namespace {

void need(bool fine) {
  if (!fine) throw std::runtime_error("the test's certificate cannot be made: " + tls::take_error());
}

void add_extension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str());
  need(extension && X509_add_ext(certificate, extension, -1));
  X509_EXTENSION_free(extension);
}

tls::Certificate bare(const std::string& name, EVP_PKEY* key, long from_s, long until_s) {
  tls::Certificate certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  unsigned char serial[8];
  RAND_bytes(serial, sizeof serial);
  serial[0] = 1;
  BIGNUM* number = BN_bin2bn(serial, sizeof serial, nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate.get()));
  BN_free(number);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), from_s);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), until_s);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  return certificate;
}

std::string text_of(BIO* memory) {
  char* bytes = nullptr;
  long size = BIO_get_mem_data(memory, &bytes);
  return {bytes, size_t(size)};
}

}  // namespace

tls::Certificate share(const tls::Certificate& certificate) {
  X509_up_ref(certificate.get());
  return tls::Certificate(certificate.get());
}

Authority make_authority(const std::string& name) {
  tls::start_openssl();
  Authority authority;
  authority.key.reset(EVP_EC_gen("P-256"));
  authority.certificate = bare(name, authority.key.get(), -7200, 7200);
  X509* own = authority.certificate.get();
  X509_set_issuer_name(own, X509_get_subject_name(own));
  add_extension(own, own, NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(own, own, NID_key_usage, "critical,keyCertSign,cRLSign");
  need(X509_sign(own, authority.key.get(), EVP_sha256()) > 0);
  return authority;
}

tls::Credentials issue(const Authority* authority, const Wish& wish) {
  tls::start_openssl();
  tls::Credentials made;
  made.key.reset(EVP_EC_gen("P-256"));
  made.certificate = bare(wish.name, made.key.get(), wish.from_s, wish.until_s);
  X509* own = made.certificate.get();
  X509* issuer = authority ? authority->certificate.get() : own;
  X509_set_issuer_name(own, X509_get_subject_name(issuer));
  add_extension(own, issuer, NID_basic_constraints, "critical,CA:FALSE");
  add_extension(own, issuer, NID_ext_key_usage, wish.server ? "serverAuth" : "clientAuth");
  std::string hosts;
  for (const auto& host : wish.hosts) hosts += (hosts.empty() ? "" : ",") + host;
  if (!hosts.empty()) add_extension(own, issuer, NID_subject_alt_name, hosts);
  need(X509_sign(own, authority ? authority->key.get() : made.key.get(), EVP_sha256()) > 0);
  if (authority) made.authorities.push_back(share(authority->certificate));
  made.authorities_from = "ca.pem";
  return made;
}

std::string pem(const tls::Certificate& certificate) {
  tls::Bio memory(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(memory.get(), certificate.get());
  return text_of(memory.get());
}

std::string pem(const tls::PrivateKey& key) {
  tls::Bio memory(BIO_new(BIO_s_mem()));
  PEM_write_bio_PKCS8PrivateKey(memory.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return text_of(memory.get());
}

File::File(const std::string& contents, unsigned mode) {
  char path[] = "/tmp/gpuwire_tls_test_XXXXXX";
  int descriptor = mkstemp(path);
  if (descriptor < 0) throw std::runtime_error("mkstemp");
  path_ = path;
  need(::write(descriptor, contents.data(), contents.size()) == ssize_t(contents.size()));
  fchmod(descriptor, mode);
  close(descriptor);
}

File::~File() { unlink(path_.c_str()); }

tls::Context server_context(const tls::Credentials& own, const tls::Certificate& clients_authority) {
  tls::Context context(SSL_CTX_new(TLS_server_method()));
  need(context && tls::restrict_server(context.get()));
  need(SSL_CTX_use_certificate(context.get(), own.certificate.get()) == 1 &&
       SSL_CTX_use_PrivateKey(context.get(), own.key.get()) == 1);
  if (clients_authority) need(X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), clients_authority.get()) == 1);
  return context;
}

tls::Context client_context(const Authority& authority, const tls::Credentials* own) {
  tls::Credentials credentials;
  credentials.authorities.push_back(share(authority.certificate));
  if (own) {
    credentials.certificate = share(own->certificate);
    EVP_PKEY_up_ref(own->key.get());
    credentials.key.reset(own->key.get());
  }
  auto context = tls::client_context(credentials);
  if (!context) throw std::runtime_error(context.error());
  return std::move(*context);
}

}  // namespace gpuwire::test
