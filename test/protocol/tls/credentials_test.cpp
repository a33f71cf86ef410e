// The files of a client.
#include <doctest/doctest.h>

#include "test/protocol/tls/certificates.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

namespace {

struct Bundle {
  Authority authority = make_authority();
  tls::Credentials alice = issue(&authority, {.name = "alice"});
  std::string text = "# alice at gpu7\n" + pem(alice.key) + pem(alice.certificate) + pem(authority.certificate);
};

std::string identity_error(const File& file) {
  auto read = tls::read_identity(file.path());
  REQUIRE_FALSE(read);
  // Every one names the file; the rest is compared.
  REQUIRE(read.error().find(file.path()) != std::string::npos);
  return read.error();
}

}  // namespace

TEST_CASE("a bundle gives the client's key and certificate and the authority that it trusts") {
  Bundle bundle;
  File file(bundle.text);
  auto read = tls::read_identity(file.path());
  REQUIRE(read);
  CHECK(X509_cmp(read->certificate.get(), bundle.alice.certificate.get()) == 0);
  CHECK(EVP_PKEY_eq(read->key.get(), bundle.alice.key.get()) == 1);
  REQUIRE(read->authorities.size() == 1);
  CHECK(X509_cmp(read->authorities[0].get(), bundle.authority.certificate.get()) == 0);
  CHECK(read->authorities_from == file.path());
}

TEST_CASE("a secret that others can read is refused with what to do about it") {
  Bundle bundle;
  for (unsigned mode : {0640u, 0604u, 0660u}) {
    File identity(bundle.text, mode), token("gpuwire_0123456789abcdef\n", mode);
    CHECK(identity_error(identity) ==
          identity.path() + " holds a secret that others can read: chmod 600 " + identity.path());
    auto read = tls::read_token(token.path());
    REQUIRE_FALSE(read);
    CHECK(read.error() == token.path() + " holds a secret that others can read: chmod 600 " + token.path());
  }
}

TEST_CASE("a file that is no bundle is refused, and the error names the missing part") {
  Bundle bundle;
  auto error = [](const std::string& text) {
    File file(text);
    std::string said = identity_error(file);
    return said.substr(said.find(file.path()) + file.path().size());
  };
  CHECK(error("") == " holds no private key: it is not an identity");
  CHECK(error(pem(bundle.alice.certificate)) == " holds no private key: it is not an identity");
  CHECK(error(pem(bundle.alice.key)) == " holds no certificate: it is not an identity");
  CHECK(error(pem(bundle.alice.key) + pem(bundle.authority.certificate)) ==
        ": the private key does not belong to the first certificate");
  CHECK(error(bundle.text + pem(bundle.alice.key)) == " holds more than one private key");
  CHECK(error(bundle.text.substr(0, bundle.text.size() - 100)) == " is damaged: not in PEM format to its end");
  CHECK(error(std::string(tls::kCredentialBytesMax + 1, '\n')) == " is longer than 262144 bytes");
  auto missing = tls::read_identity("/nonexistent/alice.pem");
  REQUIRE_FALSE(missing);
  CHECK(missing.error() == "/nonexistent/alice.pem: No such file or directory");
  CHECK(tls::read_identity("/tmp").error() == "/tmp: not a file");
}

TEST_CASE("a file of authorities replaces those of the bundle and may be read by anybody") {
  Bundle bundle;
  Authority other = make_authority("other CA");
  File identity(bundle.text), authorities(pem(other.certificate), 0644);
  auto read = tls::read_identity(identity.path());
  REQUIRE(read);
  REQUIRE(tls::read_authorities(authorities.path(), *read));
  REQUIRE(read->authorities.size() == 1);
  CHECK(X509_cmp(read->authorities[0].get(), other.certificate.get()) == 0);
  CHECK(read->authorities_from == authorities.path());
}

TEST_CASE("a token is the first line that says something") {
  File file("# alice at gpu7\n\n  gpuwire_0123456789abcdef \r\nsecond\n"), none("# nothing\n"),
      strange("gpuwire_0123456789 abcdef\n");
  CHECK(tls::read_token(file.path()) == std::string("gpuwire_0123456789abcdef"));
  CHECK_FALSE(tls::read_token(none.path()));
  CHECK(tls::read_token(strange.path()).error() == strange.path() + " holds no token");
}
