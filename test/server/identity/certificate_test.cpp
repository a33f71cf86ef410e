// Certificates, verified by libcrypto.
#include <doctest/doctest.h>

#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include "server/identity/certificate.hpp"

using namespace gpuwire::server;
using namespace std::chrono_literals;

namespace {

const WallTime kNow = std::chrono::system_clock::from_time_t(1'800'000'000);

struct Lab {
  Issued issued = make_authority("gpu7.lab.example", {kNow, kAuthorityDays}).value();
  Authority authority = read_authority(issued.certificate_pem, issued.key_pem).value();
};

// Returns X509_V_OK or the error.
int verify(const Lab& lab, const Issued& leaf, WallTime when, int purpose, const char* host = nullptr) {
  OpensslHandle<X509_STORE> store(X509_STORE_new());
  X509_STORE_add_cert(store.get(), lab.authority.certificate.get());
  CertificateHandle certificate = read_certificate(leaf.certificate_pem).value();
  X509_STORE_CTX* context = X509_STORE_CTX_new();
  X509_STORE_CTX_init(context, store.get(), certificate.get(), nullptr);
  X509_VERIFY_PARAM* parameters = X509_STORE_CTX_get0_param(context);
  X509_VERIFY_PARAM_set_time(parameters, std::chrono::system_clock::to_time_t(when));
  X509_VERIFY_PARAM_set_purpose(parameters, purpose);
  X509_VERIFY_PARAM_set_flags(parameters, X509_V_FLAG_X509_STRICT);
  if (host && !X509_VERIFY_PARAM_set1_ip_asc(parameters, host)) X509_VERIFY_PARAM_set1_host(parameters, host, 0);
  X509_verify_cert(context);
  int error = X509_STORE_CTX_get_error(context);
  X509_STORE_CTX_free(context);
  return error;
}

}  // namespace

TEST_CASE("a server certificate holds for its names and for nothing else") {
  Lab lab;
  Issued server =
      issue_server_certificate(lab.authority, {"gpu7.lab.example", "10.1.2.3", "::1"}, {kNow, kServerDays}).value();
  for (const char* host : {"gpu7.lab.example", "10.1.2.3", "::1"})
    CHECK(verify(lab, server, kNow, X509_PURPOSE_SSL_SERVER, host) == X509_V_OK);
  CHECK(verify(lab, server, kNow, X509_PURPOSE_SSL_SERVER, "gpu8.lab.example") == X509_V_ERR_HOSTNAME_MISMATCH);
  CHECK(verify(lab, server, kNow, X509_PURPOSE_SSL_SERVER, "10.1.2.4") == X509_V_ERR_IP_ADDRESS_MISMATCH);
  CHECK(verify(lab, server, kNow, X509_PURPOSE_SSL_CLIENT) == X509_V_ERR_INVALID_PURPOSE);
  auto certificate = read_certificate(server.certificate_pem).value();
  CHECK(hosts_of(certificate.get()) == std::vector<std::string>{"gpu7.lab.example", "10.1.2.3", "::1"});
}

TEST_CASE("a client certificate names its tenant and is no server's") {
  Lab lab;
  Issued client = issue_client_certificate(lab.authority, "alice", {kNow, kClientDays}).value();
  CHECK(verify(lab, client, kNow, X509_PURPOSE_SSL_CLIENT) == X509_V_OK);
  CHECK(verify(lab, client, kNow, X509_PURPOSE_SSL_SERVER) == X509_V_ERR_INVALID_PURPOSE);
  auto certificate = read_certificate(client.certificate_pem).value();
  CHECK(tenant_of(certificate.get()).value() == "alice");
  CHECK(serial_of(certificate.get()) == client.serial);
  CHECK(client.serial.size() == 32);
}

TEST_CASE("certificates count from a little before they are made until their last day") {
  Lab lab;
  Issued client = issue_client_certificate(lab.authority, "alice", {kNow, 2}).value();
  CHECK(verify(lab, client, kNow - 5min, X509_PURPOSE_SSL_CLIENT) == X509_V_OK);
  CHECK(verify(lab, client, kNow + 47h, X509_PURPOSE_SSL_CLIENT) == X509_V_OK);
  CHECK(verify(lab, client, kNow + 49h, X509_PURPOSE_SSL_CLIENT) == X509_V_ERR_CERT_HAS_EXPIRED);
  CHECK(client.expires == kNow + 48h);
}

TEST_CASE("no certificate outlives its authority, and an expired one signs nothing") {
  Issued issued = make_authority("gpu7", {kNow, 10}).value();
  Authority authority = read_authority(issued.certificate_pem, issued.key_pem).value();
  CHECK(issue_client_certificate(authority, "alice", {kNow, 365}).value().expires == issued.expires);
  CHECK(issue_client_certificate(authority, "alice", {kNow + 241h, 365}).error() ==
        "the certificate authority has expired");
}

TEST_CASE("times are those that a clock of 64 bits of nanoseconds can say, and no others") {
  CHECK(utc_time(1970, 1, 1, 0, 0, 0) == WallTime());
  CHECK(utc_time(2261, 12, 31, 23, 59, 59) < WallTime::max());
  CHECK(utc_time(2261, 12, 31, 23, 59, 59) > kNow);
  for (int year : {0, 25, 1969, 2262, 2555, 9999}) CHECK_FALSE(utc_time(year, 6, 15, 12, 0, 0));
}

TEST_CASE("a certificate whose end no clock of ours reaches has not expired") {
  auto certificate = read_certificate(Lab().issued.certificate_pem).value();
  for (const char* end : {"22620101000000Z", "25550615120000Z", "99991231235959Z"}) {
    REQUIRE(ASN1_TIME_set_string(X509_getm_notAfter(certificate.get()), end) == 1);
    CHECK(expiry_of(certificate.get()) == WallTime::max());
  }
  REQUIRE(ASN1_TIME_set_string(X509_getm_notAfter(certificate.get()), "22611231235959Z") == 1);
  CHECK(expiry_of(certificate.get()) == utc_time(2261, 12, 31, 23, 59, 59));
}

TEST_CASE("another lab's certificate is foreign") {
  Lab ours, theirs;
  Issued client = issue_client_certificate(theirs.authority, "alice", {kNow, kClientDays}).value();
  CHECK(verify(ours, client, kNow, X509_PURPOSE_SSL_CLIENT) != X509_V_OK);
}

TEST_CASE("a tenant's certificate cannot sign another") {
  Lab lab;
  Issued client = issue_client_certificate(lab.authority, "mallory", {kNow, kClientDays}).value();
  Authority false_authority = read_authority(client.certificate_pem, client.key_pem).value();
  Issued forged = issue_client_certificate(false_authority, "alice", {kNow, 1}).value();
  CHECK(verify(lab, forged, kNow, X509_PURPOSE_SSL_CLIENT) != X509_V_OK);
}

TEST_CASE("names that could mean something else in a certificate are refused") {
  Lab lab;
  for (const char* name : {"", "a b", "alice,URI:gpuwire://tenant/bob", "al/ice", "\xc3\xa4", "alice\n",
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})
    CHECK_FALSE(issue_client_certificate(lab.authority, name, {kNow, 1}));
  for (const char* host : {"", "a,DNS:b", "a b", "email:x", "10.0.0.1,IP:10.0.0.2"})
    CHECK_FALSE(issue_server_certificate(lab.authority, {host}, {kNow, 1}));
  CHECK_FALSE(issue_server_certificate(lab.authority, {}, {kNow, 1}));
  CHECK_FALSE(issue_client_certificate(lab.authority, "alice", {kNow, 0}));
  CHECK_FALSE(issue_client_certificate(lab.authority, "alice", {kNow, kValidityDaysMax + 1}));
}

TEST_CASE("a server's certificate names no tenant") {
  Lab lab;
  Issued server = issue_server_certificate(lab.authority, {"alice"}, {kNow, 1}).value();
  auto certificate = read_certificate(server.certificate_pem).value();
  CHECK_FALSE(tenant_of(certificate.get()));
}

TEST_CASE("a file that cannot be read as a certificate or key says so") {
  CHECK(read_certificate("").error().starts_with("no certificate can be read: "));
  CHECK(read_key("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
            .error()
            .starts_with("no private key can be read: "));
  Lab one, other;
  CHECK_FALSE(read_authority(one.issued.certificate_pem, other.issued.key_pem));
}

TEST_CASE("a renewed authority is trusted with what the old one has signed, and the old one with what it signs") {
  Lab old;
  Lab renewed;
  renewed.issued = renew_authority(old.authority, {kNow + 24h, kAuthorityDays}).value();
  renewed.authority = read_authority(renewed.issued.certificate_pem, renewed.issued.key_pem).value();
  CHECK(renewed.issued.key_pem == old.issued.key_pem);
  CHECK(renewed.issued.serial != old.issued.serial);
  CHECK(renewed.issued.expires > old.issued.expires);
  Issued before = issue_client_certificate(old.authority, "alice", {kNow, kClientDays}).value();
  Issued after = issue_server_certificate(renewed.authority, {"gpu7"}, {kNow + 24h, kServerDays}).value();
  CHECK(verify(renewed, before, kNow + 48h, X509_PURPOSE_SSL_CLIENT) == X509_V_OK);
  CHECK(verify(old, after, kNow + 48h, X509_PURPOSE_SSL_SERVER, "gpu7") == X509_V_OK);
}
