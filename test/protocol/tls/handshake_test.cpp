// The first handshake: who is let in, and what is said to who is not.
#include <doctest/doctest.h>

#include <cstring>

#include "test/protocol/tls/certificates.hpp"
#include "test/protocol/tls/handshakes.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

namespace {

// A server with a certificate of the client's authority for gpu7 and 127.0.0.1, but for what `wish` says otherwise.
struct Lab {
  Authority authority = make_authority();
  tls::Credentials server =
      issue(&authority, {.name = "gpu7", .hosts = {"DNS:gpu7", "DNS:gpu7.lab", "IP:127.0.0.1"}, .server = true});
  tls::Context server_side() const { return server_context(server, authority.certificate); }
};

void meet_as(Met& met, const Lab& lab, const std::string& host) {
  meet(met, client_context(lab.authority), lab.server_side(), {host, "ca.pem"});
}

// What the client hears when it reads after a handshake that was fine from its side.
std::string told_after_handshake(Met& met) {
  std::byte out[16];
  auto result = receive_some(*met.client, met.sockets.client, out);
  CHECK(result.status == transport::IoStatus::failed);
  return met.client->failure();
}

}  // namespace

TEST_CASE(
    "a client takes a server whose certificate its authority has signed for the name or the address that it called") {
  Lab lab;
  for (const char* host : {"gpu7", "gpu7.lab", "127.0.0.1"}) {
    CAPTURE(host);
    Met met;
    meet_as(met, lab, host);
    CHECK(met.client_error == "");
    CHECK(met.server_error == "");
  }
}

TEST_CASE("a server of another name or address is refused with both names") {
  Lab lab;
  for (const char* host : {"gpu8", "gpu7.lab.evil", "127.0.0.2", "GPU"}) {
    CAPTURE(host);
    Met met;
    meet_as(met, lab, host);
    CHECK(met.client_error == std::string("the server's certificate is for gpu7, gpu7.lab, 127.0.0.1, not ") + host);
    CHECK(met.server_error != "");
  }
}

TEST_CASE("the common name of a certificate counts for nothing") {
  Lab lab;
  lab.server = issue(&lab.authority, {.name = "gpu7", .server = true});
  Met met;
  meet_as(met, lab, "gpu7");
  CHECK(met.client_error == "the server's certificate is for no host at all, so not for gpu7");
}

TEST_CASE("a server whose certificate is out of its time is refused with the day") {
  Lab lab;
  Met late, early;
  lab.server = issue(&lab.authority, {.hosts = {"DNS:gpu7"}, .server = true, .from_s = -7200, .until_s = -3600});
  meet_as(late, lab, "gpu7");
  CHECK(late.client_error.starts_with("the server's certificate has expired: it was valid until 20"));
  lab.server = issue(&lab.authority, {.hosts = {"DNS:gpu7"}, .server = true, .from_s = 3600, .until_s = 7200});
  meet_as(early, lab, "gpu7");
  CHECK(early.client_error.starts_with("the server's certificate is only valid from 20"));
}

TEST_CASE("a server that somebody else has signed is refused with the file of who counts") {
  Lab lab;
  Authority foreign = make_authority("test CA");
  Met by_foreign, by_itself;
  lab.server = issue(&foreign, {.hosts = {"DNS:gpu7"}, .server = true});
  meet_as(by_foreign, lab, "gpu7");
  CHECK(by_foreign.client_error == "the server's certificate is not signed by the CA in ca.pem");
  lab.server = issue(nullptr, {.hosts = {"DNS:gpu7"}, .server = true});
  meet_as(by_itself, lab, "gpu7");
  CHECK(by_itself.client_error == "the server's certificate is not signed by the CA in ca.pem");
}

TEST_CASE("a tenant's certificate makes no server") {
  Lab lab;
  lab.server = issue(&lab.authority, {.name = "tenant", .hosts = {"DNS:gpu7"}});
  Met met;
  meet_as(met, lab, "gpu7");
  CHECK(met.client_error == "the certificate that the server presents is not a server certificate");
}

TEST_CASE("the server sees the certificate that the client shows, and none where it shows none") {
  Lab lab;
  tls::Credentials alice = issue(&lab.authority, {.name = "alice"});
  Met with, without;
  meet(with, client_context(lab.authority, &alice), lab.server_side(), {"gpu7", "ca.pem"});
  meet(without, client_context(lab.authority), lab.server_side(), {"gpu7", "ca.pem"});
  CHECK(with.server_error == "");
  CHECK(without.server_error == "");
  tls::Certificate shown(SSL_get1_peer_certificate(with.server->native())),
      none(SSL_get1_peer_certificate(without.server->native()));
  REQUIRE(shown);
  CHECK(X509_cmp(shown.get(), alice.certificate.get()) == 0);
  CHECK_FALSE(none);
}

TEST_CASE("a client hears why its certificate is refused") {
  Lab lab;
  Authority foreign = make_authority("foreign CA");
  tls::Credentials stranger = issue(&foreign, {.name = "alice"}),
                   old = issue(&lab.authority, {.name = "alice", .from_s = -7200, .until_s = -3600});
  Met by_foreign, too_late;
  meet(by_foreign, client_context(lab.authority, &stranger), lab.server_side(), {"gpu7", "ca.pem"});
  CHECK(by_foreign.server_error != "");
  CHECK(told_after_handshake(by_foreign) == "the server refuses your certificate: it is not signed by its CA");
  meet(too_late, client_context(lab.authority, &old), lab.server_side(), {"gpu7", "ca.pem"});
  CHECK(told_after_handshake(too_late) == "the server refuses your certificate: it has expired");
}

TEST_CASE("a revoked certificate is called revoked") {
  Lab lab;
  tls::Credentials alice = issue(&lab.authority, {.name = "alice"});
  tls::Context server = lab.server_side();
  SSL_CTX_set_verify(server.get(), SSL_VERIFY_PEER, [](int, X509_STORE_CTX* checked) {
    X509_STORE_CTX_set_error(checked, X509_V_ERR_CERT_REVOKED);
    return 0;
  });
  SocketPair sockets;
  tls::Context client = client_context(lab.authority, &alice);
  auto near = tls::TlsChannel::connect(client, sockets.client, {"gpu7", "ca.pem"});
  // Not a channel, which has a callback of its own: a server as any program makes one.
  tls::Connection far(SSL_new(server.get()));
  SSL_set_fd(far.get(), sockets.server);
  std::thread other([&] { SSL_accept(far.get()); });
  CHECK(near->handshake(kLimit));
  other.join();
  std::byte out[16];
  CHECK(receive_some(*near, sockets.client, out).status == transport::IoStatus::failed);
  CHECK(near->failure() == "the server refuses your certificate: it is revoked");
}

TEST_CASE("a server or a client that only speaks TLS 1.2 is refused and told apart") {
  Lab lab;
  tls::Context old_server = lab.server_side(), old_client = client_context(lab.authority);
  for (SSL_CTX* context : {old_server.get(), old_client.get()}) {
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
  }
  Met server_is_old, client_is_old;
  meet(server_is_old, client_context(lab.authority), old_server, {"gpu7", "ca.pem"});
  CHECK(server_is_old.client_error == "the server does not speak TLS 1.3");
  meet(client_is_old, old_client, lab.server_side(), {"gpu7", "ca.pem"});
  CHECK(client_is_old.server_error == "the client does not speak TLS 1.3");
}

TEST_CASE("a peer that is no TLS server, says nothing, or leaves is told apart") {
  Lab lab;
  tls::Context client = client_context(lab.authority);
  auto shake = [&](auto&& other, std::chrono::milliseconds limit) {
    SocketPair sockets;
    auto channel = tls::TlsChannel::connect(client, sockets.client, {"gpu7", "ca.pem"});
    other(sockets);
    auto done = channel->handshake(limit);
    REQUIRE_FALSE(done);
    return done.error();
  };
  const char http[] = "HTTP/1.1 400 Bad Request\r\n\r\n";
  CHECK(shake([&](SocketPair& s) { CHECK(::write(s.server, http, sizeof http) > 0); }, kLimit) ==
        "the server does not speak TLS where it should");
  CHECK(shake([](SocketPair& s) { s.close_server(); }, kLimit) != "");
  CHECK(shake([](SocketPair& s) { ::shutdown(s.server, SHUT_WR); }, kLimit) == "the server closed the connection");
  CHECK(shake([](SocketPair&) {}, std::chrono::milliseconds(30)) == "the TLS handshake was not finished in time");
}

TEST_CASE("a client without an authority does not even try") {
  auto context = tls::client_context(tls::Credentials{});
  REQUIRE_FALSE(context);
  CHECK(context.error() ==
        "no CA certificate to check the server with: put identity.pem, or token and ca.pem, into ~/.config/gpuwire, or "
        "name the files (--identity, or --token-file and --ca)");
}

TEST_CASE("a server gives no tickets and resumes nothing") {
  Lab lab;
  Met met;
  meet_as(met, lab, "gpu7");
  std::byte out[16];
  CHECK(met.client->try_receive(out).status == transport::IoStatus::would_block);
  CHECK_FALSE(SSL_SESSION_is_resumable(SSL_get0_session(met.client->native())));
  CHECK(std::string(SSL_get_version(met.client->native())) == "TLSv1.3");
}

TEST_CASE("a server that has gone before the client's last word has dropped the connection") {
  Lab lab;
  SocketPair sockets;
  auto client = tls::TlsChannel::connect(client_context(lab.authority), sockets.client, {"gpu7", "ca.pem"});
  auto server = tls::TlsChannel::accept(lab.server_side(), sockets.server);
  REQUIRE(client->step() == tls::TlsChannel::Step::wants_read);
  REQUIRE(server->step() == tls::TlsChannel::Step::wants_read);
  sockets.close_server();
  CHECK(client->step() == tls::TlsChannel::Step::failed);
  CHECK(client->dropped());
  CHECK(client->failure() == "the server closed the connection");
}

TEST_CASE("a client whose words no longer leave hears why it was refused") {
  Lab lab;
  tls::Credentials old = issue(&lab.authority, {.name = "alice", .from_s = -7200, .until_s = -3600});
  Met met;
  meet(met, client_context(lab.authority, &old), lab.server_side(), {"gpu7", "ca.pem"});
  met.sockets.close_server();
  std::byte out[16] = {};
  CHECK_FALSE(send_all(*met.client, met.sockets.client, out));
  CHECK(met.client->failure() == "the server refuses your certificate: it has expired");
  CHECK_FALSE(met.client->dropped());
}
