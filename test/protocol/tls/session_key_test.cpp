// The second handshake: only who has the key of the session gets in.
#include <doctest/doctest.h>

#include "test/protocol/tls/certificates.hpp"
#include "test/protocol/tls/handshakes.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

namespace {

tls::SessionKey some_key(uint8_t first) {
  tls::SessionKey key{};
  for (size_t i = 0; i < key.size(); ++i) key[i] = uint8_t(first + i);
  return key;
}

}  // namespace

TEST_CASE("both ends of a first connection take the same key out of it, and two connections give two keys") {
  Authority authority = make_authority();
  tls::Credentials own = issue(&authority, {.hosts = {"DNS:gpu7"}, .server = true});
  Met first, second;
  for (Met* met : {&first, &second})
    meet(*met, client_context(authority), server_context(own, nullptr), {"gpu7", "ca.pem"});
  auto key = first.client->exported_key();
  REQUIRE(key);
  CHECK(*key == *tls::exported_key(first.server->native()));
  CHECK(*key != *second.client->exported_key());
}

TEST_CASE("two sides with the same key meet, without certificates, and carry bytes") {
  Met met;
  meet(met, tls::key_client_context(some_key(1)), tls::key_server_context(some_key(1)));
  CHECK(met.client_error == "");
  CHECK(met.server_error == "");
  CHECK(std::string(SSL_get_cipher_name(met.client->native())) == "TLS_AES_128_GCM_SHA256");
  // psk_dhe_ke: there was a key exchange beside the key.
  CHECK(SSL_get_negotiated_group(met.client->native()) != NID_undef);
  const std::byte word[] = {std::byte{1}, std::byte{2}};
  CHECK(send_all(*met.client, met.sockets.client, word));
  std::byte out[8];
  CHECK(receive_some(*met.server, met.sockets.server, out).bytes == 2);
}

TEST_CASE("a client with another key does not get in, and a server with another key is not believed") {
  Met met;
  meet(met, tls::key_client_context(some_key(1)), tls::key_server_context(some_key(2)));
  CHECK(met.server_error == "the client does not have the key of this session");
  CHECK(met.client_error != "");
}

TEST_CASE("a client without a key does not get in") {
  Authority authority = make_authority();
  Met met;
  meet(met, client_context(authority), tls::key_server_context(some_key(1)), {"gpu7", "ca.pem"});
  CHECK(met.server_error != "");
  CHECK(met.client_error != "");
}

TEST_CASE("a server that shows a certificate instead of the key is not believed") {
  Authority authority = make_authority();
  tls::Credentials own = issue(&authority, {.hosts = {"DNS:gpu7"}, .server = true});
  Met met;
  meet(met, tls::key_client_context(some_key(1)), server_context(own, nullptr));
  CHECK(met.client_error != "");
}

TEST_CASE("the second handshake follows the first on the same connection, with the key of the first") {
  Authority authority = make_authority();
  tls::Credentials own = issue(&authority, {.hosts = {"DNS:gpu7"}, .server = true});
  Met first;
  meet(first, client_context(authority), server_context(own, nullptr), {"gpu7", "ca.pem"});
  const std::byte login[] = {std::byte{7}};
  std::byte out[8];
  REQUIRE(send_all(*first.client, first.sockets.client, login));
  REQUIRE(receive_some(*first.server, first.sockets.server, out).bytes == 1);
  REQUIRE(send_all(*first.server, first.sockets.server, login));
  REQUIRE(receive_some(*first.client, first.sockets.client, out).bytes == 1);
  CHECK(first.client->drained());
  CHECK(first.server->drained());
  tls::Context client = tls::key_client_context(*first.client->exported_key()),
               server = tls::key_server_context(*first.server->exported_key());
  auto near = tls::TlsChannel::connect(client, first.sockets.client);
  auto far = tls::TlsChannel::accept(server, first.sockets.server);
  bool met = false;
  std::thread other([&] { met = bool(far->handshake(kLimit)); });
  CHECK(near->handshake(kLimit));
  other.join();
  CHECK(met);
}
