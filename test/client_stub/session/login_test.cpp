// Login: the messages to the server, the messages to the user, and servers that are not trusted.
#include <doctest/doctest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>

#include "client_stub/session/backoff.hpp"
#include "client_stub/session/session.hpp"
#include "client_stub/session/wait_observer.hpp"
#include "protocol/tls/token_challenge.hpp"
#include "protocol/wire/frame.hpp"
#include "test/client_stub/session/login_server.hpp"
#include "test/client_stub/session/session_fixture.hpp"
#include "test/protocol/tls/certificates.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

namespace {

constexpr const char* kVariables[] = {"GPUWIRE_IDENTITY", "GPUWIRE_CA",     "GPUWIRE_TOKEN_FILE",
                                      "GPUWIRE_GPUS",     "GPUWIRE_MEMORY", "GPUWIRE_TRANSPORT",
                                      "XDG_CONFIG_HOME",  "GPUWIRE_QUEUE",  "GPUWIRE_GPU_TYPE"};

// The environment of one test; before and after it no variable is set, and the configuration folder is empty.
using Variables = std::vector<std::pair<const char*, std::string>>;

struct Environment {
  explicit Environment(Variables variables = {}) {
    clear();
    for (auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  }
  ~Environment() { clear(); }
  static void clear() {
    for (const char* name : kVariables) unsetenv(name);
    setenv("XDG_CONFIG_HOME", "/nonexistent", 1);
    setenv("GPUWIRE_CONNECT_PATIENCE", "0s", 1);
  }
};

struct Outcome {
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::string error, printed;
  bool works = false;  // a call has returned
};

Outcome try_connect(const std::string& address, client::SessionKind kind = client::SessionKind::program) {
  Outcome outcome;
  RecordingHandler handler;
  std::unique_ptr<client::Session> session;
  outcome.printed =
      stderr_of([&] { outcome.result = client::Session::connect(address, handler, session, outcome.error, kind); });
  if (session)
    outcome.works = client::call<schema::Result, schema::Result>(
                        *session, uint32_t(wire::SessionOrdinal::ping), 0, client::message_words<schema::Result>(),
                        [](auto) {}, [](auto) {}) == CUDA_SUCCESS;
  return outcome;
}

// A lab with a server for 127.0.0.1, the user alice with a bundle, and the authority's file.
struct Lab {
  Authority authority = make_authority();
  tls::Credentials server =
      issue(&authority, {.name = "gpu7", .hosts = {"DNS:localhost", "IP:127.0.0.1"}, .server = true});
  tls::Credentials alice = issue(&authority, {.name = "alice"});
  File bundle{pem(alice.key) + pem(alice.certificate) + pem(authority.certificate)};
  File authorities{pem(authority.certificate), 0644};
  File token{"gpuwire_0123456789abcdefghij\n"};

  LoginServer::Options tls() { return {.context = server_context(server, authority.certificate)}; }
};

void admit(LoginServer& server) { server.admit(); }

}  // namespace

TEST_CASE("a bundle in the environment is enough: TLS, the user's certificate, and a session with its own key") {
  Lab lab;
  Environment environment(
      Variables{{"GPUWIRE_IDENTITY", lab.bundle.path()}, {"GPUWIRE_GPUS", "2"}, {"GPUWIRE_MEMORY", "20GiB"}});
  LoginServer server(lab.tls(), admit);
  auto outcome = try_connect("127.0.0.1:" + server.port());
  CHECK(outcome.error == "");
  CHECK(outcome.result == CUDA_SUCCESS);
  CHECK(outcome.works);
  CHECK(outcome.printed == "");
  CHECK(server.seen().preface_flags == wire::kPrefaceTls);
  CHECK(server.seen().certificate_name == "alice");
  CHECK(server.seen().token == "");
  CHECK(server.seen().gpus == 2);
  CHECK(server.seen().memory_bytes == 20ull << 30);
  CHECK(server.seen().process_id == uint32_t(getpid()));
  CHECK(server.seen().program != "");
  CHECK(server.seen().release == GPUWIRE_VERSION);
}

TEST_CASE("a program hears that its certificate expires from two weeks before the end on, and goes on") {
  Lab lab;
  Environment environment(Variables{{"GPUWIRE_IDENTITY", lab.bundle.path()}});
  const int64_t now = std::time(nullptr), day = 24 * 3600;
  struct Row {
    int64_t ends;
    const char* words;  // empty: no output
  };
  for (const Row& row : {Row{0, ""}, Row{now + 15 * day, ""}, Row{now + 12 * day + day / 2, ", in 12 days: ask"},
                         Row{now + day + day / 2, ", in 1 day: ask"}, Row{now + day / 2, ", in less than a day: ask"},
                         Row{INT64_MIN, ""}, Row{INT64_MAX, ""}}) {
    CAPTURE(row.ends);
    LoginServer server(lab.tls(), [&](LoginServer& one) { one.admit(row.ends); });
    auto outcome = try_connect("127.0.0.1:" + server.port());
    CHECK(outcome.works);
    if (*row.words == 0) CHECK(outcome.printed == "");
    else CHECK(outcome.printed.find("gpuwire: your certificate for 127.0.0.1 expires on ") == 0);
    CHECK(outcome.printed.find(row.words) != std::string::npos);
  }
}

namespace {

std::atomic<uint64_t> g_waited_since_ns{0}, g_waited_ns{0};

}  // namespace

TEST_CASE("the time of a wait in the queue counts over the connections that were lost meanwhile, and is what is told") {
  Environment environment;
  for (bool queued_again : {true, false}) {
    CAPTURE(queued_again);
    g_waited_since_ns = g_waited_ns = 0;
    std::atomic<uint64_t> came_back_ns{0};  // written by the server's thread before it admits the program
    LoginServer server({.queue_drops = 1}, [&](LoginServer& one) {
      came_back_ns = uint64_t(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
      if (queued_again) one.queued(1, 1, "the GPU is in use");
      one.admit();
    });
    client::g_wait_observer.store([](client::WaitKind kind, uint64_t begun_ns, uint64_t ended_ns) noexcept {
      if (kind == client::WaitKind::queue) g_waited_since_ns = begun_ns, g_waited_ns = ended_ns - begun_ns;
    });
    auto outcome = try_connect("127.0.0.1:" + server.port());
    client::g_wait_observer.store(nullptr);
    CHECK(outcome.works);
    CHECK(outcome.printed.find("to return to the place in the queue") != std::string::npos);
    CHECK(g_waited_since_ns != 0);
    CHECK(g_waited_since_ns.load() < came_back_ns.load());
    const auto waited = std::chrono::nanoseconds(g_waited_ns.load());
    CHECK(outcome.printed.find("admitted at 127.0.0.1 after " +
                               client::waited_text(std::chrono::duration_cast<std::chrono::seconds>(waited)) + "\n") !=
          std::string::npos);
  }
}

TEST_CASE("a program whose session is ended before it begins does not come back for another, also after a wait") {
  Environment environment;
  for (bool queued : {true, false}) {
    CAPTURE(queued);
    LoginServer server({}, [&](LoginServer& one) {
      if (queued) one.queued(1, 1, "the GPU is in use");
      one.admit_and_end("the card is needed");
    });
    auto outcome = try_connect("127.0.0.1:" + server.port());
    CHECK_FALSE(outcome.works);
    CHECK(outcome.error == "127.0.0.1:" + server.port() + ": the server ended the session: the card is needed");
    CHECK(outcome.printed.find("to return to the place in the queue") == std::string::npos);
  }
}

TEST_CASE("a token and the authority's file are enough, too, and the token travels inside TLS") {
  Lab lab;
  Environment environment(Variables{{"GPUWIRE_TOKEN_FILE", lab.token.path()}, {"GPUWIRE_CA", lab.authorities.path()}});
  LoginServer server(lab.tls(), admit);
  auto outcome = try_connect("tls://localhost:" + server.port());
  CHECK(outcome.error == "");
  CHECK(outcome.works);
  CHECK(server.seen().token == "gpuwire_0123456789abcdefghij");
  CHECK(server.seen().certificate_name == "");
}

TEST_CASE("files in the configuration folder serve when nothing is named, but only for TLS") {
  Lab lab;
  std::string folder = lab.bundle.path() + ".d";
  std::filesystem::create_directories(folder + "/gpuwire");
  std::filesystem::create_symlink(lab.bundle.path(), folder + "/gpuwire/identity.pem");
  std::filesystem::create_symlink(lab.token.path(), folder + "/gpuwire/token");
  Environment environment(Variables{{"XDG_CONFIG_HOME", folder}});
  {
    LoginServer server(lab.tls(), admit);
    CHECK(try_connect("tls://127.0.0.1:" + server.port()).works);
    CHECK(server.seen().certificate_name == "alice");
    CHECK(server.seen().token == "");
  }
  LoginServer bare({}, admit);
  CHECK(try_connect("127.0.0.1:" + bare.port()).works);
  CHECK(bare.seen().preface_flags == 0);
  CHECK(bare.seen().token == "");
  std::filesystem::remove_all(folder);
}

TEST_CASE("a token does not go to whoever listens on the port of a server that is not running") {
  Lab lab;
  Environment environment(Variables{{"GPUWIRE_TOKEN_FILE", lab.token.path()}});
  struct {
    LoginServer::Options options;
    const char* error;
  } const impostors[] = {
      {{}, "does not prove that it knows the token"},  // an older server, or one that claims to be
      {{.flags = 0}, "does not prove that it knows the token"},
      {{.token = "gpuwire_another", .proves = true}, "has not proven that it knows the token"},
      {{.token = "gpuwire_0123456789abcdefghij", .proves = false}, "has not proven that it knows the token"},
  };
  for (const auto& impostor : impostors) {
    LoginServer server(
        LoginServer::Options{
            .token = impostor.options.token, .proves = impostor.options.proves, .flags = impostor.options.flags},
        admit);
    auto outcome = try_connect("127.0.0.1:" + server.port());
    CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
    CHECK_MESSAGE(outcome.error.find(impostor.error) != std::string::npos, outcome.error);
    CHECK(server.seen().token == "");
  }
  // A server that admits any client without a challenge.
  LoginServer hasty({.flags = 4 | wire::kPrefaceTokenChallenge}, admit);
  auto outcome = try_connect("127.0.0.1:" + hasty.port());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(outcome.error.find("has not proven that it knows the token") != std::string::npos);
  CHECK(hasty.seen().token == "");
}

TEST_CASE("on this machine a program goes without TLS when no identity is named, and shows a token only when one is") {
  Lab lab;
  Environment environment(Variables{{"GPUWIRE_TOKEN_FILE", lab.token.path()}});
  LoginServer server({.token = "gpuwire_0123456789abcdefghij"}, admit);
  auto outcome = try_connect("127.0.0.1:" + server.port());
  CHECK(outcome.error == "");
  CHECK(outcome.works);
  CHECK(server.seen().preface_flags == 0);
  CHECK(server.seen().token_name == tls::token_name(tls::token_hash("gpuwire_0123456789abcdefghij")));
  CHECK(server.seen().token == "gpuwire_0123456789abcdefghij");
}

TEST_CASE("a Unix socket is a server like any other, without TLS") {
  Lab lab;
  Environment environment;
  std::string path = lab.bundle.path() + ".socket";
  LoginServer server({.unix_path = path}, admit);
  auto outcome = try_connect("unix:" + path);
  CHECK(outcome.error == "");
  CHECK(outcome.works);
  CHECK(server.seen().preface_flags == 0);
}

namespace {

struct OverSocket {
  Lab lab;
  std::string path = lab.bundle.path() + ".socket";
  std::string address = "unix:" + path;
  LoginServer::Options offering(uint32_t ring_bytes = transport::shared_memory::kRingBytes) const {
    return {.unix_path = path, .flags = wire::kPrefaceLogin | wire::kPrefaceSharedMemory, .ring_bytes = ring_bytes};
  }
};

}  // namespace

TEST_CASE_FIXTURE(
    OverSocket,
    "with a server on this machine that offers it, a session goes by shared memory unless the user wants otherwise") {
  for (auto& [choice, road] :
       {std::pair<std::string, std::string>{"", "shm"}, {"auto", "shm"}, {"shm", "shm"}, {"tcp", "unix"}}) {
    Environment environment;
    if (!choice.empty()) setenv("GPUWIRE_TRANSPORT", choice.c_str(), 1);
    std::filesystem::remove(path);
    LoginServer server(offering(), admit);
    auto outcome = try_connect(address);
    CHECK(outcome.error == "");
    CHECK(outcome.works);
    CHECK(outcome.printed == "");
    CHECK(std::string(server.seen().road) == road);
  }
}

TEST_CASE_FIXTURE(OverSocket,
                  "a server without shared memory is told of in one line, and the session goes over its socket") {
  Environment environment;
  LoginServer older({.unix_path = path}, admit);
  auto outcome = try_connect(address);
  CHECK(outcome.works);
  CHECK(outcome.printed == "gpuwire: the server offers no shared memory; the session goes over its Unix socket\n");
  CHECK(std::string(older.seen().road) == "unix");
}

TEST_CASE_FIXTURE(OverSocket,
                  "a server that has no shared memory to give just now is told of in one line, and the session goes "
                  "over its socket") {
  Environment environment;
  LoginServer server(offering(transport::shared_memory::kRingBytesMax * 2), admit);
  auto outcome = try_connect(address);
  CHECK(outcome.works);
  CHECK(outcome.printed ==
        "gpuwire: no shared memory with the server (the server has none to give); the session goes over its Unix "
        "socket\n");
  CHECK(std::string(server.seen().road) == "unix");
}

TEST_CASE_FIXTURE(OverSocket, "management sessions go over the socket without a word") {
  Environment environment;
  LoginServer server(offering(), admit);
  auto outcome = try_connect(address, client::SessionKind::management);
  CHECK(outcome.works);
  CHECK(outcome.printed == "");
  CHECK(std::string(server.seen().road) == "unix");
}

TEST_CASE("shared memory with another machine, and a road that there is not, are refused with the reason") {
  Environment environment;
  setenv("GPUWIRE_TRANSPORT", "shm", 1);
  LoginServer server({}, admit);
  CHECK(try_connect("127.0.0.1:" + server.port())
            .error.find("shared memory is for a server on this machine: --server unix:/PATH") != std::string::npos);
  setenv("GPUWIRE_TRANSPORT", "pigeon", 1);
  // Errors of variables are reported before any connection is made.
  CHECK(try_connect("127.0.0.1:1").error.find("GPUWIRE_TRANSPORT must be auto, tcp, shm or rdma, got pigeon") !=
        std::string::npos);
}

TEST_CASE("management sessions log in the same way") {
  Lab lab;
  Environment environment(Variables{{"GPUWIRE_IDENTITY", lab.bundle.path()}});
  LoginServer server(lab.tls(), admit);
  CHECK(try_connect("127.0.0.1:" + server.port(), client::SessionKind::management).works);
  CHECK(server.seen().preface_flags == (wire::kPrefaceTls | wire::kPrefaceManagement));
  CHECK(server.seen().certificate_name == "alice");
}

TEST_CASE("a waiting client reports every change of its place once, on stderr") {
  Environment environment(Variables{{"GPUWIRE_GPUS", "2"}});
  LoginServer server({}, [](LoginServer& own) {
    own.queued(3, 5, "all GPUs are in use");
    own.queued(3, 5, "all GPUs are in use");
    own.queued(1, 3, "\x1b[2Jall GPUs\nare in use");
    own.admit();
  });
  auto outcome = try_connect("127.0.0.1:" + server.port());
  CHECK(outcome.works);
  CHECK(outcome.printed ==
        "gpuwire: waiting for 2 GPUs at 127.0.0.1: place 3 of 5 (all GPUs are in use)\n"
        "gpuwire: waiting for 2 GPUs at 127.0.0.1: place 1 of 3 ( [2Jall GPUs are in use)\n"
        "gpuwire: admitted at 127.0.0.1 after 0 s\n");
}

TEST_CASE("a client that is not to wait learns its place, and leaves") {
  Environment environment(Variables{{"GPUWIRE_QUEUE", "off"}});
  LoginServer server({}, [](LoginServer& own) {
    own.queued(3, 5, "all GPUs are in use");
    own.await_end();
  });
  auto outcome = try_connect("127.0.0.1:" + server.port());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(outcome.printed == "");
  CHECK(outcome.error ==
        "127.0.0.1:" + server.port() +
            ": the program would wait at place 3 of 5 (all GPUs are in use), and is not to (--no-wait, "
            "GPUWIRE_QUEUE=off)");
  setenv("GPUWIRE_QUEUE", "maybe", 1);
  CHECK(try_connect("127.0.0.1:1").error.find("GPUWIRE_QUEUE must be on or off, got maybe") != std::string::npos);
}

TEST_CASE("a program that asks for a type of GPU tells the server, and takes no other one from an older server") {
  Environment environment(Variables{{"GPUWIRE_GPU_TYPE", "h200"}});
  LoginServer server({}, admit);
  auto outcome = try_connect("127.0.0.1:" + server.port());
  CHECK(server.seen().gpu_type == "h200");
  CHECK_FALSE(outcome.works);
  CHECK(outcome.error.find("a GPU of the type h200 was asked for") != std::string::npos);
}

TEST_CASE("how long a program has waited is said in seconds, minutes, and hours with minutes") {
  using namespace std::chrono_literals;
  CHECK(client::waited_text(0s) == "0 s");
  CHECK(client::waited_text(59s) == "59 s");
  CHECK(client::waited_text(60s) == "1 min");
  CHECK(client::waited_text(3min + 59s) == "3 min");
  CHECK(client::waited_text(1h) == "1 h 0 min");
  CHECK(client::waited_text(26h + 5min) == "26 h 5 min");
}

TEST_CASE("a refused client gives the reason in one line") {
  Lab lab;
  for (bool encrypted : {true, false}) {
    Environment environment;
    if (encrypted) setenv("GPUWIRE_IDENTITY", lab.bundle.path().c_str(), 1);
    LoginServer server(encrypted ? lab.tls() : LoginServer::Options{},
                       [](LoginServer& own) { own.refuse("the certificate of alice\nwas revoked"); });
    std::string address = "127.0.0.1:" + server.port();
    auto outcome = try_connect(address);
    CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
    CHECK(outcome.error == address + ": the server refuses: the certificate of alice was revoked");
    CHECK(outcome.printed == "");
  }
}

TEST_CASE("an identity in the configuration folder is used where a server on this machine refuses who has none") {
  Lab lab;
  std::string folder = lab.bundle.path() + ".e";
  std::filesystem::create_directories(folder + "/gpuwire");
  std::filesystem::create_symlink(lab.bundle.path(), folder + "/gpuwire/identity.pem");
  Environment environment(Variables{{"XDG_CONFIG_HOME", folder}});
  const std::string refusal = "this server requires a certificate or a token";
  SUBCASE("by a server that offers TLS") {
    LoginServer::Options options = lab.tls();
    options.plain_refusal = refusal;
    LoginServer server(std::move(options), admit);
    auto outcome = try_connect("127.0.0.1:" + server.port());
    CHECK(outcome.error == "");
    CHECK(outcome.works);
    CHECK(server.seen().certificate_name == "alice");
  }
  SUBCASE("by one that says so before the login: there is none that it would have to refuse") {
    LoginServer::Options options = lab.tls();
    options.plain_refusal = refusal;
    options.told_before = true;
    LoginServer server(std::move(options), admit);
    auto outcome = try_connect("127.0.0.1:" + server.port());
    CHECK(outcome.error == "");
    CHECK(outcome.works);
    CHECK(server.seen().certificate_name == "alice");
  }
  SUBCASE("by one that has no TLS: both reasons are told") {
    LoginServer::Options options;
    options.plain_refusal = refusal;
    LoginServer server(std::move(options), admit);
    auto outcome = try_connect("127.0.0.1:" + server.port());
    CHECK(outcome.error.find(refusal + "; with the identity in the configuration folder: the server offers no TLS") !=
          std::string::npos);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("connections that a server drops before it has decided are made again, inside TLS and outside") {
  Lab lab;
  for (bool encrypted : {true, false}) {
    Environment environment;
    if (encrypted) setenv("GPUWIRE_IDENTITY", lab.bundle.path().c_str(), 1);
    auto options = encrypted ? lab.tls() : LoginServer::Options{};
    options.drops = 4;
    LoginServer server(std::move(options), admit);
    auto outcome = try_connect("127.0.0.1:" + server.port());
    CHECK(outcome.error == "");
    CHECK(outcome.works);
    CHECK(outcome.printed == "");
  }
}

TEST_CASE("a server that drops every connection is given up") {
  Environment environment;
  LoginServer::Options options;
  options.drops = client::kEnterAttemptsMax - 1;
  std::atomic<unsigned> answered{0};  // counted by the server's thread, read by this one
  // The server drops the last connection, too.
  LoginServer server(std::move(options), [&](LoginServer&) { ++answered; });
  auto outcome = try_connect("127.0.0.1:" + server.port());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(outcome.error.find("the login failed: ") != std::string::npos);
  CHECK(answered == 1);
}

TEST_CASE("a server that goes while the client waits in its queue is asked again") {
  Environment environment;
  LoginServer server({}, [](LoginServer& own) {
    own.queued(1, 1, "");
    own.close_listener();
  });
  auto outcome = try_connect("127.0.0.1:" + server.port());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(outcome.printed == "gpuwire: waiting for a place at 127.0.0.1: place 1 of 1\n");
}

TEST_CASE("a server that is not the one is not told who the user is") {
  Lab lab, other;
  struct Case {
    const char* name;
    std::string host, variable, file, expected;
    LoginServer::Options options;
  };
  std::vector<Case> cases;
  cases.push_back({"another authority", "127.0.0.1", "GPUWIRE_IDENTITY", lab.bundle.path(),
                   "is not signed by the CA in " + lab.bundle.path(), other.tls()});
  lab.server = issue(&lab.authority, {.hosts = {"DNS:gpu7"}, .server = true});
  cases.push_back({"another name", "127.0.0.1", "GPUWIRE_IDENTITY", lab.bundle.path(),
                   "the server's certificate is for gpu7, not 127.0.0.1", lab.tls()});
  lab.server = issue(&lab.authority, {.hosts = {"IP:127.0.0.1"}, .server = true, .from_s = -7200, .until_s = -60});
  cases.push_back({"an old certificate", "127.0.0.1", "GPUWIRE_IDENTITY", lab.bundle.path(),
                   "the server's certificate has expired", lab.tls()});
  cases.push_back({"no TLS", "tls://127.0.0.1", "GPUWIRE_IDENTITY", lab.bundle.path(), "the server offers no TLS", {}});
  for (auto& one : cases) {
    CAPTURE(one.name);
    Environment environment(Variables{{one.variable.c_str(), one.file}});
    bool reached = false;
    LoginServer server(std::move(one.options), [&](LoginServer&) { reached = true; });
    auto outcome = try_connect(one.host + ":" + server.port());
    CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
    INFO(outcome.error);
    CHECK(outcome.error.find(one.expected) != std::string::npos);
    CHECK_FALSE(reached);
  }
}

TEST_CASE("a certificate that the server does not take is told apart, although TLS seemed to begin") {
  Lab lab, other;
  Environment environment(Variables{{"GPUWIRE_IDENTITY", other.bundle.path()}, {"GPUWIRE_CA", lab.authorities.path()}});
  LoginServer server(lab.tls(), admit);
  auto outcome = try_connect("127.0.0.1:" + server.port());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  INFO(outcome.error);
  CHECK(outcome.error.find("the server refuses your certificate: it is not signed by its CA") != std::string::npos);
}

TEST_CASE("a worker without the key of the login is not believed") {
  Lab lab;
  Environment environment(Variables{{"GPUWIRE_IDENTITY", lab.bundle.path()}});
  auto options = lab.tls();
  options.another_key = true;
  LoginServer server(std::move(options), admit);
  auto outcome = try_connect("127.0.0.1:" + server.port());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  INFO(outcome.error);
  CHECK(outcome.error.find("the session's own TLS: ") != std::string::npos);
}

TEST_CASE("settings that cannot be meant are named") {
  Lab lab;
  File open_bundle(pem(lab.alice.key), 0644);
  struct Case {
    const char *variable, *value, *expected;
  };
  for (auto [variable, value, expected] :
       {Case{"GPUWIRE_GPUS", "two", "GPUWIRE_GPUS must be a number from 1 to 1024, got two"},
        Case{"GPUWIRE_GPUS", "0", "GPUWIRE_GPUS must be a number from 1 to 1024, got 0"},
        Case{"GPUWIRE_MEMORY", "much",
             "GPUWIRE_MEMORY: \"much\" is not a size: it does not begin with a number; write for example \"20GiB\""},
        Case{"GPUWIRE_IDENTITY", "/nonexistent/a.pem", "/nonexistent/a.pem: No such file or directory"},
        Case{"GPUWIRE_IDENTITY", open_bundle.path().c_str(), "chmod 600"}}) {
    Environment environment(Variables{{variable, value}});
    auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
    auto outcome = try_connect("127.0.0.1:" + std::to_string((*listener)->endpoint().port));
    CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
    INFO(outcome.error);
    CHECK(outcome.error.find(expected) != std::string::npos);
  }
}

TEST_CASE("addresses that are none are named") {
  Environment environment;
  CHECK(try_connect("ssh://gpu7").error ==
        "ssh://gpu7: ssh:// is unknown (tls://HOST:PORT, tcp://HOST:PORT or unix:/PATH)");
  CHECK(try_connect("unix:relative").error == "unix:relative: expected unix:/PATH");
  CHECK(try_connect("tls://gpu7:port").error == "tls://gpu7:port: not HOST:PORT: \"port\" is not a port");
  CHECK(try_connect("unix:/nonexistent/socket").error == "unix:/nonexistent/socket: No such file or directory");
}

TEST_CASE("TLS without an authority to ask does not begin") {
  Lab lab;
  Environment environment;
  LoginServer server(lab.tls(), admit);
  auto outcome = try_connect("tls://127.0.0.1:" + server.port());
  CHECK(outcome.error.find("no CA certificate to check the server with") != std::string::npos);
}
