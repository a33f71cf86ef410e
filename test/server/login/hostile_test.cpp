// Clients that must not be admitted, and hostile clients.
#include <vector>

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include "protocol/wire/ordinals.hpp"
#include "server/login/limits.hpp"
#include "test/server/login/login_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using namespace gpuwire::test;

namespace {

// The client's answer and the audit's line of one attempt over TLS.
struct Outcome {
  std::string answer;
  ipc::TurnedAway refusal;
};

Outcome attempt(LoginProcessFixture& login, const ClientTls& with, const std::string& token = {}) {
  LoginClient client = login.connect({.tls = true});
  std::string error = client.log_in(with, token);
  Outcome outcome{error.empty() ? client.answer() : error, {}};
  if (auto refusal = login.next_refusal()) outcome.refusal = *refusal;
  return outcome;
}

std::string header_of(wire::FrameHeader header) { return {reinterpret_cast<const char*>(&header), sizeof header}; }

wire::FrameHeader login_header(uint32_t words) {
  return {.kind = uint8_t(wire::FrameKind::control),
          .ordinal = uint32_t(wire::ControlOrdinal::login),
          .message_words = words};
}

std::string self_signed(const std::string& tenant) {
  auto now = std::chrono::system_clock::now();
  Issued issued = make_authority(tenant, {now, 10}).value();
  return issued.key_pem + issued.certificate_pem;
}

// Whether a tenant is admitted from this address.
bool gets_in(LoginProcessFixture& login, const NewCredential& tenant, const std::string& address) {
  LoginClient client = login.connect({.address = address, .tls = true});
  if (!client.log_in(ClientTls{tenant.authority, tenant.text}).empty()) return false;
  auto request = login.next_request();
  return request && request->tenant == tenant.credential.tenant;
}

}  // namespace

TEST_CASE("an expired certificate is refused with its date") {
  Lab lab;
  auto alice = lab.certificate("alice", 10, 20);
  LoginProcessFixture login(&lab);
  auto [answer, refusal] = attempt(login, {alice.authority, alice.text});
  CHECK(answer.starts_with("refused: the certificate of tenant alice expired on "));
  CHECK(refusal.kind == "expired");
  CHECK(refusal.tenant == "alice");
  CHECK(refusal.credential == alice.credential.id);
  CHECK(refusal.peer == "10.0.0.1:4711");
}

TEST_CASE("a revoked certificate is refused with its date") {
  Lab lab;
  auto alice = lab.certificate("alice");
  REQUIRE(revoke_credentials(lab.path(), alice.credential.id, false, std::chrono::system_clock::now()));
  LoginProcessFixture login(&lab);
  auto [answer, refusal] = attempt(login, {alice.authority, alice.text});
  CHECK(answer.starts_with("refused: the certificate of tenant alice was revoked on "));
  CHECK(refusal.kind == "revoked");
}

TEST_CASE("another lab's certificate is refused, also when it names a tenant of ours") {
  Lab lab, other;
  lab.certificate("alice");
  auto alice = other.certificate("alice");
  LoginProcessFixture login(&lab);
  auto [answer, refusal] = attempt(login, {lab.file("ca.pem"), alice.text});
  CHECK(answer == "refused: the client's certificate was issued by another authority than this server's");
  CHECK(refusal.kind == "foreign");
}

TEST_CASE("a self-signed certificate is refused") {
  Lab lab;
  LoginProcessFixture login(&lab);
  auto [answer, refusal] = attempt(login, {lab.file("ca.pem"), self_signed("alice")});
  CHECK(answer ==
        "refused: the client's certificate is self-signed: this server accepts only what its own authority has signed");
  CHECK(refusal.kind == "foreign");
}

TEST_CASE("a certificate that our authority signed but nobody registered is refused") {
  Lab lab;
  auto authority = read_authority(lab.file("ca.pem"), lab.file("ca.key")).value();
  Issued stray = issue_client_certificate(authority, "alice", {std::chrono::system_clock::now(), 10}).value();
  LoginProcessFixture login(&lab);
  auto [answer, refusal] = attempt(login, {lab.file("ca.pem"), stray.key_pem + stray.certificate_pem});
  CHECK(answer == "refused: the client's certificate is not in this server's register");
  CHECK(refusal.tenant == "alice");
}

TEST_CASE("the server's own certificate names no tenant") {
  Lab lab;
  LoginProcessFixture login(&lab);
  auto [answer, refusal] = attempt(login, {lab.file("ca.pem"), lab.file("server.key") + lab.file("server.pem")});
  CHECK(answer.starts_with("refused: the client's certificate is not valid: "));
  CHECK(refusal.kind == "certificate");
}

TEST_CASE("a client with neither certificate nor token is refused") {
  Lab lab;
  LoginProcessFixture login(&lab);
  auto [answer, refusal] = attempt(login, {lab.file("ca.pem")});
  CHECK(answer.starts_with("refused: this server requires a certificate or a token"));
  CHECK(refusal.kind == "no_identity");
}

TEST_CASE("unknown, foreign, expired and revoked tokens are refused, and none of them is repeated") {
  Lab lab, other;
  auto foreign = other.token("bob"), expired = lab.token("bob", 10, 20), revoked = lab.token("carol");
  REQUIRE(revoke_credentials(lab.path(), "carol", false, std::chrono::system_clock::now()));
  LoginProcessFixture login(&lab);
  ClientTls with{lab.file("ca.pem")};
  for (const std::string& token : {token_in(foreign), std::string("gpuwire_"), std::string(600, 'x')}) {
    auto [answer, refusal] = attempt(login, with, token);
    CHECK(answer == "refused: this server does not know the token");
    CHECK(refusal.kind == "token");
    CHECK(refusal.reason.find(token) == std::string::npos);
  }
  CHECK(attempt(login, with, token_in(expired)).answer.starts_with("refused: the token of tenant bob expired on "));
  auto [answer, refusal] = attempt(login, with, token_in(revoked));
  CHECK(answer.starts_with("refused: the token of tenant carol was revoked on "));
  CHECK(refusal.kind == "revoked");
  CHECK(refusal.credential == revoked.credential.id);
}

TEST_CASE("a token counts as a whole: what stands behind a NUL makes it another one") {
  Lab lab;
  auto bob = lab.token("bob");
  LoginProcessFixture login(&lab);
  CHECK(attempt(login, {lab.file("ca.pem")}, token_in(bob) + std::string("\0more", 5)).answer ==
        "refused: this server does not know the token");
  CHECK(attempt(login, {lab.file("ca.pem")}, token_in(bob) + std::string(1, '\0')).answer ==
        "refused: this server does not know the token");
}

TEST_CASE("one tenant's certificate with another's token is refused, and a bad token spoils a good certificate") {
  Lab lab;
  auto alice = lab.certificate("alice");
  auto alices = lab.token("alice"), bobs = lab.token("bob");
  LoginProcessFixture login(&lab);
  ClientTls with{alice.authority, alice.text};
  auto [answer, refusal] = attempt(login, with, token_in(bobs));
  CHECK(answer == "refused: the client's certificate and its token are of different tenants");
  CHECK(refusal.kind == "mismatch");
  CHECK(attempt(login, with, "gpuwire_nonsense").answer == "refused: this server does not know the token");
  LoginClient client = login.connect({.tls = true});
  client.log_in(with, token_in(alices));
  CHECK(login.next_request());
}

TEST_CASE("a bad token is refused even where nobody would have to say who they are") {
  LoginProcessFixture login;
  LoginClient client = login.connect({.unix_tenant = "anna", .open_tenant = "open"});
  client.log_in(std::nullopt, "gpuwire_nonsense");
  CHECK(client.answer() == "refused: this server does not know the token");
}

TEST_CASE("a client that names a token without its secret is refused as one with a wrong token") {
  Lab lab;
  auto bob = lab.token("bob"), expired = lab.token("bob", 10, 20);
  LoginProcessFixture login(&lab);
  auto attempt_plain = [&](const std::string& token, bool spoilt) {
    LoginClient client = login.connect({.open_tenant = "open"});
    CHECK(client.read_preface());
    std::string said = client.show_token(token, spoilt);
    return said.empty() ? client.answer() : said;
  };
  CHECK(attempt_plain("gpuwire_nonsense", false) == "refused: this server does not know the token");
  CHECK(attempt_plain(token_in(bob), true) == "refused: this server does not know the token");
  CHECK(attempt_plain(token_in(expired), false).starts_with("refused: the token of tenant bob expired on "));
}

TEST_CASE("TLS 1.2 is refused with an alert") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  auto [answer, refusal] = attempt(login, {alice.authority, alice.text, TLS1_2_VERSION});
  CHECK(answer.find("protocol version") != std::string::npos);
  CHECK(refusal.kind == "tls");
  CHECK(refusal.reason.find("unsupported protocol") != std::string::npos);
}

TEST_CASE("bytes that are no TLS end the connection, whatever they are") {
  Lab lab;
  LoginProcessFixture login(&lab);
  std::vector<std::string> inputs{"GET / HTTP/1.1\r\n\r\n", std::string(100, '\0'),
                                  std::string("\x16\x03\x01\x40\x00", 5) + std::string(20'000, 'x'),
                                  std::string("\x16\x03\x03\x00\x04\x01\xff\xff\xff", 9),
                                  std::string("\x15\x03\x03\x00\x02\x02\x28", 7)};
  for (const std::string& input : inputs) {
    LoginClient client = login.connect({.tls = true});
    REQUIRE(client.read_preface());
    client.send_bare(input);
    ::shutdown(client.socket(), SHUT_WR);
    CHECK(client.closed_by_server());
    CHECK(login.next_refusal());
  }
}

TEST_CASE("a client that says more before its login than a login can be is refused") {
  Lab lab;
  LoginProcessFixture login(&lab);
  LoginClient client = login.connect({.tls = true});
  REQUIRE(client.read_preface());
  // A ClientHello that claims to be 130,000 bytes long, in records of 16 KiB.
  std::string record("\x16\x03\x01\x40\x00", 5);
  std::string first = record + std::string("\x01\x01\xfb\xd0", 4) + std::string(16'380, 'x');
  client.send_bare(first);
  for (int i = 0; i < 7; ++i) client.send_bare(record + std::string(16'384, 'x'));
  CHECK(client.closed_by_server());
  auto refusal = login.next_refusal();
  REQUIRE(refusal);
  CHECK(refusal->reason == "more than 65536 bytes before the session");
}

TEST_CASE("a login frame that cannot be is refused with the reason, inside TLS and outside") {
  Lab lab;
  LoginProcessFixture login(&lab);
  wire::FrameHeader other = login_header(0), bulk = login_header(0), called = login_header(0);
  other.ordinal = uint32_t(wire::ControlOrdinal::hello);
  bulk.bulk_bytes = 1u << 20;
  called.kind = uint8_t(wire::FrameKind::called);
  struct {
    std::string bytes, reason;
  } cases[] = {{std::string(32, 'x'), "no frame where the login should begin"},
               {header_of(other), "a frame of kind 1 and ordinal 1 instead of a login"},
               {header_of(called), "a frame of kind 3 and ordinal 4 instead of a login"},
               {header_of(bulk), "a login frame with flags, a context or bulk"},
               {header_of(login_header(513)), "a login of 4104 bytes is longer than the limit of 4096"},
               {header_of(login_header(0xffffffff)), "is longer than the limit of 4096"},
               {header_of(login_header(1)) + std::string(8, '\xff'), "bad message"}};
  for (bool tls : {false, true}) {
    for (const auto& one : cases) {
      CAPTURE(one.reason);
      LoginClient client = login.connect({.tls = tls, .open_tenant = "open"});
      REQUIRE(client.read_preface());
      if (tls) REQUIRE(client.handshake({lab.file("ca.pem")}) == "");
      client.send(one.bytes);
      CHECK(client.answer().find(one.reason) != std::string::npos);
      auto refusal = login.next_refusal();
      REQUIRE(refusal);
      CHECK(refusal->kind == "protocol");
    }
  }
}

TEST_CASE("a client that sends before it is answered is refused, and the broker learns that it is gone") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  for (bool tls : {false, true}) {
    LoginClient client = login.waiting_client(shown(tls, alice));
    client.send("more");
    CHECK(client.answer() == "refused: the client spoke before it was answered");
    CHECK(login.next_as<ipc::Gone>());
  }
}

TEST_CASE("clients that stop anywhere before their login are dropped after the time limit") {
  Lab lab;
  LoginProcessFixture login(&lab);
  std::vector<LoginClient> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(login.connect({.tls = i < 3, .open_tenant = "open"}));
    REQUIRE(clients.back().read_preface());
  }
  clients[1].send_bare("\x16");
  REQUIRE(clients[2].handshake({lab.file("ca.pem")}) == "");
  clients[4].send_bare(header_of(login_header(1)));
  clients[5].send_bare(std::string(31, 'x'));
  for (auto& client : clients) CHECK(client.closed_by_server());
  for (size_t i = 0; i < clients.size(); ++i) {
    auto refusal = login.next_refusal();
    REQUIRE(refusal);
    CHECK(refusal->kind == "timeout");
  }
}

TEST_CASE("a client that says a byte now and then has no more time than others") {
  LoginProcessFixture login;
  LoginClient client = login.connect({.open_tenant = "open"});
  REQUIRE(client.read_preface());
  std::string frame = header_of(login_header(512)) + std::string(4096, '\0');
  size_t sent = 0;
  bool closed = false;
  while (!closed && sent < frame.size()) {
    pollfd ended{client.socket(), POLLIN, 0};
    closed = ::poll(&ended, 1, 100) == 1 || !client.send_bare(frame.substr(sent++, 1));
  }
  CHECK(closed);
  CHECK(sent < frame.size());
  CHECK(client.answer() == "refused: no login within 5000 ms");
}

TEST_CASE("hundreds of silent connections from one address keep out neither others nor that address") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  std::vector<LoginClient> flood;
  for (int i = 0; i < 400; ++i) flood.push_back(login.connect({.address = "10.6.6.6", .tls = true}));
  CHECK(gets_in(login, alice, "10.0.0.2"));
  CHECK(gets_in(login, alice, "10.6.6.6"));
  // The oldest connections were dropped, and the newest remain.
  for (int i = 0; i < int(400 - kAuthConnectionsPerAddressMax); ++i) REQUIRE(flood[i].closed_by_server());
  CHECK(flood.back().read_preface());
  char byte;
  CHECK(::recv(flood.back().socket(), &byte, 1, MSG_DONTWAIT) == -1);
}

TEST_CASE("a flood while a tenant is logging in does not push it out") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  LoginClient client = login.connect({.address = "10.6.6.6", .tls = true});
  REQUIRE(client.read_preface());
  REQUIRE(client.handshake({alice.authority, alice.text}) == "");
  std::vector<LoginClient> flood;
  for (int i = 0; i < 400; ++i) flood.push_back(login.connect({.address = "10.6.6.6", .tls = true}));
  client.send_login();
  auto request = login.next_request();
  REQUIRE(request);
  CHECK(request->tenant == "alice");
}

TEST_CASE(
    "connections that have begun a login and do not go on push out nobody of their address who is about to begin") {
  LoginProcessFixture login;
  auto of_the_address = [](bool tenant) {
    return ipc::Arrival{.address = "10.6.6.6", .open_tenant = tenant ? "open" : ""};
  };
  // The first bytes of a login arrive before the login process reads.
  const std::string begun = header_of(login_header(512)).substr(0, 1);
  std::vector<LoginClient> flood;
  for (size_t i = 0; i < kAuthConnectionsPerAddressMax; ++i)
    flood.push_back(login.connect(of_the_address(false), begun));
  LoginClient client = login.connect(of_the_address(true));
  REQUIRE(client.read_preface());
  flood.push_back(login.connect(of_the_address(false), begun));
  REQUIRE(flood.back().read_preface());
  client.send_login();
  auto request = login.next_request();
  REQUIRE(request);
  CHECK(request->tenant == "open");
  // Each made room for one new connection.
  CHECK(flood[0].closed_by_server());
  CHECK(flood[1].closed_by_server());
}

TEST_CASE("a flood from many addresses pushes out nobody who waits in the queue") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  LoginClient waiting = login.connect({.tls = true});
  waiting.log_in(ClientTls{alice.authority, alice.text});
  REQUIRE(login.next_request());
  ipc::ConnectionId queued = login.last();
  std::vector<LoginClient> flood;
  // Two per address, and more than the total bound; this test's descriptors limit their number.
  for (size_t i = 0; i < 450; ++i)
    flood.push_back(login.connect({.address = "10.7.0." + std::to_string(i / 2), .tls = true}));
  CHECK(gets_in(login, alice, "10.0.0.2"));
  login.send(ipc::Admitted{queued});
  CHECK(waiting.answer() == "admitted");
}
