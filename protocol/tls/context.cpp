#include "protocol/tls/context.hpp"

#include <cstring>

#include <openssl/err.h>
#include <openssl/tls1.h>

namespace gpuwire::tls {

namespace {

constexpr char kKeyIdentity[] = "gpuwire";
constexpr size_t kKeyIdentityBytes = sizeof kKeyIdentity - 1;
constexpr unsigned char kCipher[2] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr char kCipherName[] = "TLS_AES_128_GCM_SHA256";
// The cipher that is fastest on processors with AES instructions comes first.
constexpr char kCiphers[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384";

// The settings that all contexts share.
bool restrict(SSL_CTX* context) {
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_clear_options(context, SSL_OP_ALLOW_NO_DHE_KEX);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  // OpenSSL returns after every record of any kind, so a peer cannot keep a thread busy with records that carry no
  // data.
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) &&
         SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) && SSL_CTX_set_num_tickets(context, 0) &&
         SSL_CTX_set_max_early_data(context, 0);
}

// The context owns the key, as extra data.
int key_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr,
                                                    [](void*, void* session, CRYPTO_EX_DATA*, int, long, void*) {
                                                      SSL_SESSION_free(static_cast<SSL_SESSION*>(session));
                                                    });
  return index;
}

SSL_SESSION* key_of(SSL* connection) {
  auto* session = static_cast<SSL_SESSION*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(connection), key_index()));
  if (session) SSL_SESSION_up_ref(session);
  return session;
}

int use_key(SSL* connection, const EVP_MD* digest, const unsigned char** identity, size_t* identity_bytes,
            SSL_SESSION** session) {
  *session = nullptr;
  if (digest && EVP_MD_get_type(digest) != NID_sha256) return 1;
  *session = key_of(connection);
  *identity = reinterpret_cast<const unsigned char*>(kKeyIdentity);
  *identity_bytes = kKeyIdentityBytes;
  return *session ? 1 : 0;
}

int find_key(SSL* connection, const unsigned char* identity, size_t identity_bytes, SSL_SESSION** session) {
  bool known = identity_bytes == kKeyIdentityBytes && std::memcmp(identity, kKeyIdentity, kKeyIdentityBytes) == 0;
  *session = known ? key_of(connection) : nullptr;
  return 1;
}

Context key_context(const SSL_METHOD* method, const SessionKey& key) {
  ForkSafe fork_safe;
  Context context(SSL_CTX_new(method));
  SessionHandle session(SSL_SESSION_new());
  if (!context || !session || !restrict(context.get())) return nullptr;
  if (!SSL_CTX_set_ciphersuites(context.get(), kCipherName)) return nullptr;
  Connection scratch(SSL_new(context.get()));
  const SSL_CIPHER* cipher = scratch ? SSL_CIPHER_find(scratch.get(), kCipher) : nullptr;
  if (!cipher || !SSL_SESSION_set1_master_key(session.get(), key.data(), key.size()) ||
      !SSL_SESSION_set_cipher(session.get(), cipher) ||
      !SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION))
    return nullptr;
  if (!SSL_CTX_set_ex_data(context.get(), key_index(), session.get())) return nullptr;
  (void)session.release();  // the context owns it now
  return context;
}

}  // namespace

tl::expected<Context, std::string> client_context(const Credentials& credentials) {
  if (credentials.authorities.empty())
    return tl::unexpected(std::string(
        "no CA certificate to check the server with: put identity.pem, or token and ca.pem, into ~/.config/gpuwire, or "
        "name the files (--identity, or --token-file and --ca)"));
  ForkSafe fork_safe;
  ERR_clear_error();
  Context context(SSL_CTX_new(TLS_client_method()));
  if (!context || !restrict(context.get()) || !SSL_CTX_set_ciphersuites(context.get(), kCiphers))
    return tl::unexpected(take_error());
  X509_STORE* store = SSL_CTX_get_cert_store(context.get());
  for (const auto& authority : credentials.authorities)
    if (!X509_STORE_add_cert(store, authority.get())) return tl::unexpected(take_error());
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (credentials.certificate && (!SSL_CTX_use_certificate(context.get(), credentials.certificate.get()) ||
                                  !SSL_CTX_use_PrivateKey(context.get(), credentials.key.get())))
    return tl::unexpected("the client certificate cannot be used: " + take_error());
  return context;
}

bool restrict_server(SSL_CTX* context) {
  ForkSafe fork_safe;
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, SSL_CTX_get_verify_callback(context));
  return restrict(context) && SSL_CTX_set_ciphersuites(context, kCiphers);
}

tl::expected<SessionKey, std::string> exported_key(SSL* connection, std::string_view label) {
  ForkSafe fork_safe;
  SessionKey key;
  if (SSL_export_keying_material(connection, key.data(), key.size(), label.data(), label.size(), nullptr, 0, 0) != 1)
    return tl::unexpected(take_error());
  return key;
}

Context key_client_context(const SessionKey& key) {
  Context context = key_context(TLS_client_method(), key);
  if (!context) return nullptr;
  // No signature is valid here, so a server that answers with a certificate instead of the key is refused.
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_psk_use_session_callback(context.get(), use_key);
  return context;
}

bool has_key(const Context& context) { return SSL_CTX_get_ex_data(context.get(), key_index()) != nullptr; }

Context key_server_context(const SessionKey& key) {
  Context context = key_context(TLS_server_method(), key);
  if (context) SSL_CTX_set_psk_find_session_callback(context.get(), find_key);
  return context;
}

}  // namespace gpuwire::tls
