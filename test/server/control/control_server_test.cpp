#include "server/control/control_server.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/control/client/control_client.hpp"
#include "server/control/client/limits.hpp"
#include "test/server/control/sample.hpp"

using namespace gpuwire::server;
namespace fs = std::filesystem;

namespace {

// A control server on a thread of its own, in a folder of its own.
struct Fixture {
  Fixture() {
    char name[] = "/tmp/gpuwire-control-XXXXXX";
    folder = ::mkdtemp(name);
    path = folder / "c.sock";
    ControlSources sources{.snapshot = [] { return sample_snapshot(); }};
    sources.tenants_of_user = [](uid_t) { return std::vector<std::string>{"anna"}; };
    // The clock stands still: a user's spent queries are not refilled.
    QueryBudget questions([] { return std::chrono::steady_clock::time_point{}; });
    server = std::make_unique<ControlServer>(
        io, std::move(sources),
        [this](int socket) {
          auto who = ControlServer::user_of(socket);
          if (who && user != kReally) who->uid = user;
          return who;
        },
        std::move(questions));
    auto listening = server->listen(path);
    REQUIRE_MESSAGE(listening, (listening ? "" : listening.error()));
    thread = std::thread([this] { io.run(); });
  }
  ~Fixture() {
    io.stop();
    thread.join();
    server.reset();
    fs::remove_all(folder);
  }
  ControlClient connect() {
    auto client = ControlClient::connect(path);
    REQUIRE(client);
    return std::move(*client);
  }
  // Connects as that user. Waits for one answer, so that the server has accepted the connection when this returns.
  ControlClient connect_as(uid_t uid) {
    user = uid;
    ControlClient client = connect();
    answered = bool(client.snapshot());
    user = kReally;
    return client;
  }

  static constexpr uid_t kReally = uid_t(-1);
  std::atomic<uid_t> user = kReally;  // the user that the server sees
  bool answered = false;              // the last connection of connect_as()
  fs::path folder, path;
  boost::asio::io_context io{1};
  std::unique_ptr<ControlServer> server;
  std::thread thread;
};

void send_raw(const ControlClient& client, const std::string& bytes) {
  for (size_t sent = 0; sent < bytes.size();) {
    ssize_t n = ::send(client.descriptor(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) return;  // the server has closed
    sent += size_t(n);
  }
}

constexpr int kTimeoutMs = 10'000;

bool still_answers(Fixture& fixture) { return bool(fixture.connect().snapshot()); }

}  // namespace

TEST_CASE_FIXTURE(Fixture, "A client gets a snapshot, and another on the same connection") {
  ControlClient client = connect();
  for (int i = 0; i < 3; ++i) {
    auto snapshot = client.snapshot();
    REQUIRE_MESSAGE(snapshot, (snapshot ? "" : snapshot.error()));
    CHECK(*snapshot == sample_snapshot());
  }
}

TEST_CASE_FIXTURE(Fixture, "A watch sends snapshots until its client says something") {
  ControlClient client = connect();
  auto first = client.ask({{"command", "watch"}, {"interval_ms", 100}});
  REQUIRE(first);
  CHECK(first->contains("snapshot"));
  CHECK(client.next_answer(kTimeoutMs));
  CHECK(client.next_answer(kTimeoutMs));
  send_raw(client, "x");
  while (client.next_answer(kTimeoutMs)) {}
  CHECK(still_answers(*this));
}

TEST_CASE_FIXTURE(Fixture, "A watch whose client has gone ends") {
  {
    ControlClient client = connect();
    REQUIRE(client.ask({{"command", "watch"}, {"interval_ms", 100}}));
  }
  CHECK(still_answers(*this));
}

TEST_CASE_FIXTURE(Fixture, "A watch's client that reads nothing stops nobody else") {
  ControlClient lazy = connect();
  send_raw(lazy, "{\"command\":\"watch\",\"interval_ms\":100}\n");
  for (int i = 0; i < 20; ++i) CHECK(still_answers(*this));
}

TEST_CASE_FIXTURE(Fixture, "A request that does not end is refused at its bound") {
  ControlClient client = connect();
  send_raw(client, std::string(kControlRequestBytesMax * 4, 'a'));
  auto answer = client.next_answer(kTimeoutMs);
  REQUIRE_FALSE(answer);
  CHECK(still_answers(*this));
}

TEST_CASE_FIXTURE(Fixture, "Garbage is answered with errors, and the connection goes on") {
  ControlClient client = connect();
  for (const std::string& line :
       {std::string("\x00\xff\xfe", 3), std::string("{"), std::string("GET / HTTP/1.1\r"), std::string(3000, '{')}) {
    send_raw(client, line + "\n");
    auto answer = client.next_answer(kTimeoutMs);
    REQUIRE_FALSE(answer);
    CHECK(answer.error().find("JSON") != std::string::npos);
  }
  CHECK(client.snapshot());
}

TEST_CASE_FIXTURE(Fixture, "Several requests in one piece are answered in turn") {
  ControlClient client = connect();
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += "{\"command\":\"snapshot\"}\n";
  send_raw(client, requests);
  for (int i = 0; i < 50; ++i) CHECK(client.next_answer(kTimeoutMs));
}

TEST_CASE_FIXTURE(Fixture, "Silent connections do not keep an administrator out") {
  std::vector<ControlClient> silent;
  for (size_t i = 0; i < kControlConnectionsMax * 2; ++i) silent.push_back(connect());
  CHECK(still_answers(*this));
}

TEST_CASE_FIXTURE(Fixture, "A user who keeps connections open leaves places to other users") {
  constexpr uid_t kGreedy = 4001, kOther = 4002;
  std::vector<ControlClient> kept;
  size_t served = 0;
  for (size_t i = 0; i < kControlConnectionsOthersMax; ++i) {
    kept.push_back(connect_as(kGreedy));
    served += answered;
  }
  CHECK(served == kControlConnectionsPerUserMax);
  ControlClient other = connect_as(kOther);
  CHECK(answered);
  CHECK(still_answers(*this));
}

TEST_CASE_FIXTURE(Fixture, "A user who asks all the time is refused in words, and nobody else") {
  constexpr uid_t kGreedy = 4001, kOther = 4002;
  ControlClient greedy = connect_as(kGreedy);
  REQUIRE(answered);
  std::string refusal;
  size_t answers = 1;
  while (refusal.empty() && answers < 10 * kQueriesAtOnce) {
    auto snapshot = greedy.snapshot();
    if (snapshot) ++answers;
    else refusal = snapshot.error();
  }
  CHECK(answers == kQueriesAtOnce);
  CHECK(refusal.find("too often") != std::string::npos);
  ControlClient other = connect_as(kOther);
  CHECK(answered);
  // A peer that may do everything has no bound of queries.
  ControlClient administrator = connect();
  for (size_t i = 0; i < 2 * kQueriesAtOnce; ++i) CHECK(administrator.snapshot());
}

TEST_CASE("A socket that a dead server has left is replaced, a living server's and a file are not") {
  char name[] = "/tmp/gpuwire-control-XXXXXX";
  fs::path folder = ::mkdtemp(name);
  fs::path path = folder / "c.sock";
  int left = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  REQUIRE(::bind(left, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  ::close(left);
  boost::asio::io_context io(1);
  {
    ControlServer server(io, {});
    CHECK(server.listen(path));
    ControlServer second(io, {});
    auto refused = second.listen(path);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().find("another server") != std::string::npos);
  }
  CHECK_FALSE(fs::exists(path));
  std::ofstream(path) << "precious";
  {
    ControlServer server(io, {});
    CHECK_FALSE(server.listen(path));
  }
  CHECK(fs::exists(path));
  fs::remove_all(folder);
}

TEST_CASE("A path that is too long or in no folder is refused with its name") {
  boost::asio::io_context io(1);
  ControlServer server(io, {});
  std::string longest = "/tmp/" + std::string(200, 'x');
  CHECK(server.listen(longest).error().find(longest) != std::string::npos);
  CHECK_FALSE(server.listen("/tmp/no-such-folder-of-gpuwire/c.sock"));
}
