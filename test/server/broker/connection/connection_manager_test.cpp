// Callers become sessions through a real login process, as tenants by token and by user, and end when they are revoked.
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/wire/preface.hpp"
#include "server/identity/administration.hpp"
#include "test/server/broker/running_broker.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using server::Broker;

namespace {

// An identity folder, and a configuration that uses it: only the tenants anna and ben.
struct Lab {
  TemporaryDirectory temporary;
  std::filesystem::path identity = temporary.path() / "identity";
  Lab() { REQUIRE(server::init_identity(identity, {.hosts = {"localhost"}}, now())); }
  static server::WallTime now() { return std::chrono::system_clock::now(); }
  server::Configuration configuration() const {
    server::Configuration configuration;
    configuration.tls.directory = identity;
    configuration.tenants = {{.name = "anna"}, {.name = "ben"}};
    return configuration;
  }
  std::string token(const std::string& tenant) const {
    std::string text = server::add_token(identity, tenant, 10, {}, now()).value().text;
    text = text.substr(text.find('\n') + 1);
    text.pop_back();
    return text;
  }
};

// Returns "tenant by security" of the only session, or "none".
std::string session_of(RunningBroker& broker) {
  std::string text = "none";
  broker.act([&](Broker& of) {
    for (const auto& [number, session] : of.registry().all()) text = session.tenant + " by " + session.security;
  });
  return text;
}

// A server with room for one session: the client of one token runs, the client of the other waits in the queue.
struct FullServer {
  FullServer(const Lab& lab, const std::string& runs, const std::string& waits) : broker(1, with_room_for_one(lab)) {
    std::string text;
    REQUIRE(running.connect(broker.port()));
    REQUIRE(running.log_in(text, runs));
    REQUIRE(waiting.connect(broker.port()));
    REQUIRE(waiting.ask(text, waits));
    REQUIRE(waiting.answer(text) == "queued");
  }
  static server::Configuration with_room_for_one(const Lab& lab) {
    server::Configuration configuration = lab.configuration();
    configuration.sessions_per_gpu_max = 1;
    return configuration;
  }

  RunningBroker broker;
  WireClient running, waiting;
};

std::string refused_for(RunningBroker& broker, const std::string& token) {
  WireClient client;
  std::string text;
  REQUIRE(client.connect(broker.port()));
  CHECK_FALSE(client.log_in(text, token));
  return text;
}

// Returns the identity of the only session.
std::string identity_of_session(RunningBroker& broker) {
  std::string identity;
  broker.act([&](Broker& of) {
    const auto& id = of.registry().all().begin()->second.wire_id;
    identity.assign(id.begin(), id.end());
  });
  return identity;
}

// Returns the answer to a client that resumes this session or sends this query, in answer()'s form, with the text of a
// refusal.
std::string told(RunningBroker& broker, const std::string& token, const std::string& resume,
                 const std::string& query = {}) {
  WireClient client;
  std::string text;
  REQUIRE(client.connect(broker.port()));
  REQUIRE(client.ask(text, token, resume, query));
  std::string said = client.answer(text);
  return said == "refused" ? text : said;
}

}  // namespace

TEST_CASE("a token makes its tenant, and nobody comes in without") {
  Lab lab;
  std::string anna = lab.token("anna"), carol = lab.token("carol");
  RunningBroker broker(1, lab.configuration());
  WireClient client;
  std::string text;
  REQUIRE(client.connect(broker.port()));
  REQUIRE(client.log_in(text, anna));
  CHECK(session_of(broker) == "anna by token");
  CHECK(refused_for(broker, {}).starts_with("this server requires a certificate or a token"));
  CHECK(refused_for(broker, "gpuwire_nonsense") == "this server does not know the token");
  CHECK(refused_for(broker, carol) == "this server has no tenant \"carol\"");
}

TEST_CASE("credentials that the administrator issues and revokes count from the next connection on") {
  Lab lab;
  RunningBroker broker(1, lab.configuration());
  REQUIRE(broker.port() != 0);
  std::string anna = lab.token("anna");
  WireClient client, next;
  std::string text;
  REQUIRE(client.connect(broker.port()));
  CHECK(client.log_in(text, anna));
  REQUIRE(server::revoke_credentials(lab.identity, "anna", false, Lab::now()));
  CHECK(refused_for(broker, anna).starts_with("the token of tenant anna was revoked on "));
  CHECK(session_of(broker) == "anna by token");  // the running session continues
}

TEST_CASE("revoking can end what runs, and always ends what waits") {
  Lab lab;
  std::string anna = lab.token("anna"), ben = lab.token("ben");
  FullServer full(lab, anna, ben);
  std::string text;
  REQUIRE(server::revoke_credentials(lab.identity, "ben", false, Lab::now()));
  CHECK(full.waiting.answer(text) == "refused");
  CHECK(text.starts_with("the token of tenant ben was revoked on "));
  REQUIRE(server::revoke_credentials(lab.identity, "anna", true, Lab::now()));
  CHECK(full.running.closed_by_server());
  CHECK(eventually([&] { return session_of(full.broker) == "none"; }));
}

TEST_CASE("a client that leaves the queue makes room in it") {
  Lab lab;
  std::string anna = lab.token("anna");
  FullServer full(lab, anna, anna);
  full.waiting.close();
  auto sessions = [&] {
    size_t count = 0;
    full.broker.act([&](Broker& of) { count = of.registry().all().size(); });
    return count;
  };
  CHECK(eventually([&] { return sessions() == 1; }));
}

TEST_CASE("on a Unix socket the kernel says who calls") {
  TemporaryDirectory temporary;
  std::string path = (temporary.path() / "socket").string();
  server::Configuration configuration;
  configuration.tenants = {{.name = "anna", .unix_users = {std::to_string(::geteuid())}}};
  {
    RunningBroker broker(1, configuration, path);
    REQUIRE(broker.port() != 0);
    WireClient client;
    std::string text;
    REQUIRE(client.connect_unix(path));
    REQUIRE(client.log_in(text));
    CHECK(session_of(broker) == "anna by unix");
    CHECK(refused_for(broker, {}).starts_with("this server requires a certificate or a token"));  // over TCP
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("a login process that dies is started again, and sessions go on") {
  Lab lab;
  std::string anna = lab.token("anna");
  RunningBroker broker(1, lab.configuration());
  WireClient running;
  std::string text;
  REQUIRE(running.connect(broker.port()));
  REQUIRE(running.log_in(text, anna));
  pid_t before = -1, after = -1;
  broker.act([&](Broker& of) { before = of.connections().login_process(); });
  REQUIRE(::kill(before, SIGKILL) == 0);
  CHECK(eventually([&] {
    broker.act([&](Broker& of) { after = of.connections().login_process(); });
    return after > 0 && after != before;
  }));
  WireClient next;
  REQUIRE(next.connect(broker.port()));
  CHECK(next.log_in(text, anna));  // the login process has the identity
}

TEST_CASE("a server whose identity cannot be used does not begin") {
  Lab lab;
  REQUIRE(server::replace_private_file(lab.identity / server::kServerKeyFile, "nonsense"));
  RunningBroker broker(1, lab.configuration());
  CHECK(broker.ended());
  CHECK(broker.failure().find("server.key: no private key can be read") != std::string::npos);
}

TEST_CASE("a server with an identity takes nobody before its login process has read it, however long that takes") {
  Lab lab;
  // A login process that starts on the test's signal.
  const std::string gate = (lab.temporary.path() / "gate").string(),
                    program = (lab.temporary.path() / "login").string();
  REQUIRE(::mkfifo(gate.c_str(), 0600) == 0);
  std::ofstream(program) << "#!/bin/sh\nread word < \"" << gate << "\"\nexec \"" << GPUWIRE_TEST_LOGIN << "\"\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const std::string path = (lab.temporary.path() / "socket").string();
  RunningBroker broker(1, lab.configuration(), path, server::kSessionBeginMs, program);
  // The client waits in the kernel's queue: the broker does not accept yet, though a worker is ready.
  WireClient client;
  REQUIRE(client.connect_unix(path));
  wire::Preface preface = wire::own_preface();
  preface.flags |= wire::kPrefaceTls;
  REQUIRE(client.send(wire::encode(preface)));
  auto has_worker = [&] {
    bool ready = false;
    broker.act([&](Broker& of) { ready = of.knows_devices(); });
    return ready;
  };
  REQUIRE(eventually(has_worker));
  std::ofstream(gate) << "go\n";
  std::string text;
  auto answer = client.read_preface(text);
  REQUIRE(answer);
  CHECK(answer->status == 0);
  CHECK(broker.port() != 0);
}

TEST_CASE("a client that comes back to a session that has ended hears why, and nobody of another tenant does") {
  Lab lab;
  std::string anna = lab.token("anna"), ben = lab.token("ben");
  RunningBroker broker(1, lab.configuration());
  WireClient client;
  std::string text;
  REQUIRE(client.connect(broker.port()));
  REQUIRE(client.log_in(text, anna));
  REQUIRE(eventually([&] { return told(broker, anna, identity_of_session(broker)) == "admitted"; }));
  const std::string identity = identity_of_session(broker);
  pid_t worker = 0;
  broker.act([&](Broker& of) { worker = of.registry().all().begin()->second.worker_pid; });
  REQUIRE(::kill(worker, SIGKILL) == 0);
  REQUIRE(eventually([&] { return session_of(broker) == "none"; }));
  CHECK(told(broker, anna, identity) == "the session has ended: its process ended with signal 9 (Killed)");
  CHECK(told(broker, ben, identity) == "the session has ended");
  CHECK(told(broker, anna, std::string(16, 'x')) == "the session has ended");
}

TEST_CASE("a session that has ended with its program gets no late message") {
  Lab lab;
  std::string anna = lab.token("anna");
  RunningBroker broker(1, lab.configuration());
  WireClient client;
  std::string text;
  REQUIRE(client.connect(broker.port()));
  REQUIRE(client.log_in(text, anna));
  const std::string identity = identity_of_session(broker);
  client.close();
  REQUIRE(eventually([&] { return session_of(broker) == "none"; }));
  CHECK(told(broker, anna, identity) == "the session has ended");
}

TEST_CASE("a client is refused in words when its session's worker reads none of the connections that wait for it") {
  Lab lab;
  std::string anna = lab.token("anna");
  RunningBroker broker(1, lab.configuration());
  WireClient client;
  std::string text;
  REQUIRE(client.connect(broker.port()));
  REQUIRE(client.log_in(text, anna));
  REQUIRE(eventually([&] { return told(broker, anna, identity_of_session(broker)) == "admitted"; }));
  const std::string identity = identity_of_session(broker);
  broker.act([&](Broker& of) {
    const scheduler::SessionId session = of.registry().all().begin()->first;
    for (size_t i = 0; i < server::kUnreadPerWorkerMax; ++i) {
      int ends[2];
      REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
      server::OwnedDescriptor own(ends[0]);
      of.sessions().carry_on(session, server::OwnedDescriptor(ends[1]), {});
    }
  });
  CHECK(told(broker, anna, identity) ==
        "the session's worker accepts no connections: too many are waiting for it, and it reads none");
  CHECK(session_of(broker) == "anna by token");
}

TEST_CASE("an answer that takes time comes later, and only so many of a tenant's queries wait for theirs") {
  Lab lab;
  std::string anna = lab.token("anna"), ben = lab.token("ben");
  RunningBroker broker(1, lab.configuration());
  REQUIRE(broker.port() != 0);
  std::vector<server::QueryAnswer::Take> waiting;
  broker.act([&](Broker& of) {
    of.connections().set_query([&](const server::LoginRequest&, const std::string& query) {
      if (query != "suspend text 1") return server::QueryAnswer(std::string("now"));
      return server::QueryAnswer([&](server::QueryAnswer::Take take) { waiting.push_back(std::move(take)); });
    });
  });
  std::vector<WireClient> clients(server::kQueriesWaitingPerTenantMax);
  std::string text;
  for (WireClient& client : clients) {
    REQUIRE(client.connect(broker.port()));
    REQUIRE(client.ask(text, anna, {}, "suspend text 1"));
  }
  const auto all_wait = [&] {
    size_t count = 0;
    broker.act([&](Broker&) { count = waiting.size(); });
    return count == clients.size();
  };
  while (!all_wait()) std::this_thread::yield();
  CHECK(told(broker, anna, {}, "suspend text 1") == "32 questions of the tenant wait for their answers; try again");
  CHECK(told(broker, anna, {}, "queue text") == "told");
  WireClient other;
  REQUIRE(other.connect(broker.port()));
  REQUIRE(other.ask(text, ben, {}, "suspend text 1"));
  while (all_wait()) std::this_thread::yield();
  clients.front().close();  // its answer is dropped
  broker.act([&](Broker&) {
    for (auto& take : waiting) take(std::string("done 1 suspended\n"));
  });
  for (size_t i = 1; i < clients.size(); ++i) CHECK(clients[i].answer(text) == "told");
  CHECK(other.answer(text) == "told");
  CHECK(told(broker, anna, {}, "queue text") == "told");
}

TEST_CASE("a tenant that asks all the time is refused in one line, and others and its own programs are served") {
  Lab lab;
  std::string anna = lab.token("anna"), ben = lab.token("ben");
  RunningBroker broker(1, lab.configuration());
  REQUIRE(broker.port() != 0);
  size_t answers = 0, refusals = 0;
  const auto now = std::chrono::steady_clock::now();
  broker.act([&](Broker& of) {
    of.connections().set_query(
        [&](const server::LoginRequest& asking, const std::string& query) {
          ++answers;
          return tl::expected<std::string, std::string>(asking.tenant + " asks " + query);
        },
        server::QueryBudget([now] { return now; }));
    of.connections().observe_refusals([&](const server::ipc::TurnedAway& refusal) {
      refusals += refusal.kind == "query" && refusal.tenant == "anna";
    });
  });
  for (unsigned i = 0; i < server::kQueriesAtOnce; ++i) REQUIRE(told(broker, anna, {}, "queue text") == "told");
  constexpr size_t kMore = 20;
  for (size_t i = 0; i < kMore; ++i)
    REQUIRE(told(broker, anna, {}, "queue text") ==
            "the tenant asks too often: 40 questions at once are answered, and 20 a second; try again");
  CHECK(told(broker, ben, {}, "top text") == "told");
  WireClient client;
  std::string text;
  REQUIRE(client.connect(broker.port()));
  CHECK(client.log_in(text, anna));
  broker.act([&](Broker&) {
    CHECK(answers == server::kQueriesAtOnce + 1);
    CHECK(refusals == kMore);
  });
}
