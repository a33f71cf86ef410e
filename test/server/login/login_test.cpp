// From the preface to admission: the client's identity, and the messages to it and to the broker.
#include <fstream>
#include <sstream>

#include <doctest/doctest.h>
#include <sys/socket.h>

#include "protocol/wire/preface.hpp"
#include "test/server/login/login_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using namespace gpuwire::test;

namespace {
constexpr uint32_t kLogin = uint32_t(wire::kPrefaceLogin) | wire::kPrefaceTokenChallenge;  // the flags of every server
}

TEST_CASE("a client on an open address is the open tenant, and what it says of itself cannot mark a log") {
  LoginProcessFixture login;
  // Over a Unix socket the client may share memory, and RDMA is not offered.
  LoginClient client = login.connect({.open_tenant = "open", .rdma = true});
  auto preface = client.read_preface();
  REQUIRE(preface);
  CHECK(preface->flags == (kLogin | wire::kPrefaceSharedMemory));  // it came over a Unix socket
  client.send_login({}, 2);
  auto request = login.next_request();
  REQUIRE(request);
  CHECK(request->tenant == "open");
  CHECK(request->security == "plain");
  CHECK(request->credential == "");
  CHECK(request->gpus == 2);
  CHECK(request->program == "vector_add");
  CHECK(request->host == "laptop  [2J");
  CHECK(request->process_id == 4711);
}

TEST_CASE("where nobody is let in who shows nothing, the preface says so, and who leaves then is not reported") {
  Lab lab;
  LoginProcessFixture login(&lab);
  {
    LoginClient client = login.connect({.peer = "the one that leaves"});
    auto preface = client.read_preface();
    REQUIRE(preface);
    CHECK(preface->flags == (kLogin | wire::kPrefaceIdentity | wire::kPrefaceSharedMemory));
  }
  LoginClient other = login.connect({.peer = "the one that asks"});
  CHECK(other.log_in(std::nullopt) == "");
  auto refusal = login.next_refusal();
  REQUIRE(refusal);
  CHECK(refusal->peer == "the one that asks");
  CHECK(refusal->kind == "no_identity");
}

TEST_CASE("a queued client is told its place, and an admitted one's connection comes back bare") {
  LoginProcessFixture login;
  LoginClient client = login.waiting_client(std::nullopt);
  login.send(ipc::Queued{login.last(), 2, 3, "all GPUs are taken"});
  CHECK(client.answer() == "queued 2 of 3: all GPUs are taken");
  login.send(ipc::Queued{login.last(), 1, 3, "all GPUs are taken"});
  CHECK(client.answer() == "queued 1 of 3: all GPUs are taken");
  login.send(ipc::Admitted{login.last()});
  CHECK(client.answer() == "admitted");
  client.send_bare("hello");
  auto passed = login.next_as<ipc::Passed>();
  REQUIRE(passed);
  CHECK(passed->connection == login.last());
  CHECK(passed->tls_key.empty());
  char got[8] = "";
  CHECK(::recv(passed->socket.get(), got, 5, MSG_WAITALL) == 5);  // and is blocking, as a worker expects
  CHECK(std::string(got) == "hello");
}

TEST_CASE("a certificate names the tenant, and both ends have the same key for the second handshake") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  LoginClient client = login.connect({.tls = true});
  auto preface = client.read_preface();
  REQUIRE(preface);
  CHECK(preface->flags == (kLogin | wire::kPrefaceTls));
  REQUIRE(client.handshake({alice.authority, alice.text}) == "");
  client.send_login();
  auto request = login.next_request();
  REQUIRE(request);
  CHECK(request->tenant == "alice");
  CHECK(request->security == "tls certificate");
  CHECK(request->credential == alice.credential.id);
  login.send(ipc::Admitted{login.last()});
  CHECK(client.answer() == "admitted");
  client.send_bare("the second handshake");
  auto passed = login.next_as<ipc::Passed>();
  REQUIRE(passed);
  CHECK(passed->tls_key.size() == 32);
  CHECK(passed->tls_key == client.exported_key());
  char got[32] = "";
  CHECK(::recv(passed->socket.get(), got, 20, MSG_WAITALL) == 20);
  CHECK(std::string(got) == "the second handshake");
}

TEST_CASE("a token names the tenant, inside TLS and where nothing needs to be encrypted") {
  Lab lab;
  auto bob = lab.token("bob");
  LoginProcessFixture login(&lab);
  for (bool tls : {true, false}) {
    LoginClient client = login.connect({.tls = tls, .unix_tenant = "somebody", .open_tenant = "open"});
    CHECK(client.log_in(tls ? std::optional(ClientTls{bob.authority}) : std::nullopt, token_in(bob)) == "");
    auto request = login.next_request();
    REQUIRE(request);
    CHECK(request->tenant == "bob");
    CHECK(request->security == (tls ? "tls token" : "token"));
    CHECK(request->credential == bob.credential.id);
  }
}

TEST_CASE("a token is shown without TLS to a server that has proven that it knows the token") {
  Lab lab;
  auto bob = lab.token("bob");
  LoginProcessFixture login(&lab);
  LoginClient client = login.connect({.open_tenant = "open"});
  REQUIRE(client.read_preface());
  CHECK(client.show_token(token_in(bob)) == "");
  auto request = login.next_request();
  REQUIRE(request);
  CHECK(request->tenant == "bob");
  CHECK(request->security == "token");
  CHECK(request->credential == bob.credential.id);
}

TEST_CASE("the user behind a Unix socket is a tenant, and goes before the open one") {
  LoginProcessFixture login;
  LoginClient client =
      login.connect({.peer = "unix, user 1000", .address = "unix:1000", .unix_tenant = "anna", .open_tenant = "open"});
  client.log_in(std::nullopt);
  auto request = login.next_request();
  REQUIRE(request);
  CHECK(request->tenant == "anna");
  CHECK(request->security == "unix");
}

TEST_CASE("the broker's refusal reaches the client in words, inside TLS and outside") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  for (bool tls : {true, false}) {
    LoginClient client = login.waiting_client(shown(tls, alice));
    login.send(ipc::Refused{login.last(), "tenant alice may use 1 GPU, and 2 are asked for"});
    CHECK(client.answer() == "refused: tenant alice may use 1 GPU, and 2 are asked for");
    CHECK(client.answer() == "closed: end");
  }
}

TEST_CASE("a client that leaves while it waits is reported") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  for (bool tls : {true, false}) {
    LoginClient client = login.waiting_client(shown(tls, alice));
    client.close();
    auto gone = login.next_as<ipc::Gone>();
    REQUIRE(gone);
    CHECK(gone->connection == login.last());
    CHECK(gone->why == "the client left while it waited");
    login.send(ipc::Admitted{login.last()});  // comes too late, and has no effect
  }
  LoginClient next = login.connect({.open_tenant = "open"});
  next.log_in(std::nullopt);
  CHECK(login.next_request());
}

TEST_CASE("a revoked credential is refused from the moment that the process has the new register") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  LoginClient before = login.connect({.tls = true});
  before.log_in(ClientTls{alice.authority, alice.text});
  CHECK(login.next_request());
  REQUIRE(revoke_credentials(lab.path(), "alice", false, std::chrono::system_clock::now()));
  LoginClient between = login.connect({.tls = true});
  REQUIRE(between.read_preface());
  REQUIRE(between.handshake({alice.authority, alice.text}) == "");
  REQUIRE(login.give_identity(lab.path()) == "");
  between.send_login();  // it was connecting already
  CHECK(between.answer().starts_with("refused: the certificate of tenant alice was revoked on "));
  LoginClient after = login.connect({.tls = true});
  CHECK(after.log_in(ClientTls{alice.authority, alice.text}) == "");
  CHECK(after.answer().starts_with("refused: the certificate of tenant alice was revoked on "));
}

TEST_CASE("a renewed server is used at once, and an identity that cannot be read changes nothing") {
  Lab lab;
  auto alice = lab.certificate("alice");
  LoginProcessFixture login(&lab);
  REQUIRE(renew_server(lab.path(), {"gpu8"}, true, 10, std::chrono::system_clock::now()));
  REQUIRE(login.give_identity(lab.path()) == "");
  const struct {
    std::string file, text, reason;
  } cases[] = {{"server.key", lab.file("ca.key"), "server.key: not the key of server.pem"},
               {"server.key", "nonsense", "server.key: no private key can be read"},
               {"register.json", "{}", "register.json: its format is not 1"}};
  for (const auto& [file, text, reason] : cases) {
    std::string before = lab.file(file);
    REQUIRE(replace_private_file(lab.path() / file, text));
    CHECK(login.give_identity(lab.path()).starts_with(reason));
    REQUIRE(replace_private_file(lab.path() / file, before));
  }
  LoginClient client = login.connect({.tls = true});
  CHECK(client.log_in(ClientTls{alice.authority, alice.text}) == "");
  CHECK(login.next_request());
}

TEST_CASE("a server whose certificate has expired says so, and what to do") {
  TemporaryDirectory temporary;
  auto long_ago = std::chrono::system_clock::now() - std::chrono::hours(24 * 30);
  REQUIRE(init_identity(temporary.path() / "old", {.hosts = {"gpu7"}, .server_days = 20}, long_ago));
  LoginProcessFixture login;
  std::string why = login.give_identity(temporary.path() / "old");
  CHECK(why.starts_with("server.pem: it expired on "));
  CHECK(why.ends_with("gpuwire admin renew makes a new one"));
}

TEST_CASE("the process has given up its rights, and ends with the broker") {
  Lab lab;
  LoginProcessFixture login(&lab);
  std::ostringstream text;
  text << std::ifstream("/proc/" + std::to_string(login.pid()) + "/status").rdbuf();
  std::string status = text.str();
  CHECK(status.find("NoNewPrivs:\t1") != std::string::npos);
  CHECK(status.find("CapEff:\t0000000000000000") != std::string::npos);
  if (::geteuid() == 0) CHECK(status.find("Uid:\t65534\t65534\t65534\t65534") != std::string::npos);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(status.find("Seccomp:\t2") != std::string::npos);
#endif
  login.leave();
  CHECK(login.wait() == 0);
}
