// The broker in this process, with fake workers as processes.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "protocol/wire/preface.hpp"
#include "server/broker/broker.hpp"
#include "server/broker/limits.hpp"
#include "server/ipc/end_cause.hpp"
#include "test/server/broker/caller.hpp"
#include "test/server/broker/free_memory.hpp"
#include "test/server/broker/gated_workers.hpp"
#include "test/server/broker/running_broker.hpp"
#include "test/server/worker/server_process.hpp"
#include "test/server/worker/wire_client.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::test;
using server::Broker;

namespace {

wire::RefusalCode refusal(WireClient& client, std::string& text) {
  auto preface = client.read_preface(text);
  return preface ? wire::RefusalCode(preface->status) : wire::RefusalCode::accepted;
}

}  // namespace

TEST_CASE("each client gets a process of its own") {
  RunningBroker broker("serves");
  WireClient first, second;
  pid_t one = enter(first, broker.port()), two = enter(second, broker.port());
  CHECK(broker.devices() == "1 x fake device, fake driver");
  CHECK(one != 0);
  CHECK(two != 0);
  CHECK(one != two);
  first.close();
  CHECK(eventually([&] { return !process_exists(one); }));
  CHECK(process_exists(two));
}

TEST_CASE("clients are served without prewarmed workers too") {
  RunningBroker broker("serves", 0);
  for (int i = 0; i < 3; ++i) {
    WireClient client;
    CHECK(enter(client, broker.port()) != 0);
  }
}

TEST_CASE("a worker that cannot start is tried a few times, then the broker gives up with its reason") {
  RunningBroker broker("fails");
  CHECK(broker.ended());
  CHECK(broker.port() == 0);
  CHECK(broker.failure() == "the fake device is on holiday");
}

TEST_CASE("a worker that dies without a word is reported with its exit code") {
  RunningBroker broker("dies");
  CHECK(broker.ended());
  CHECK(broker.failure().find("exit code 7") != std::string::npos);
}

TEST_CASE("a crash of one worker closes its client's connection and the next client is served") {
  RunningBroker broker("crashes");
  for (int i = 0; i < 2; ++i) {
    WireClient client;
    std::string text;
    REQUIRE(client.connect(broker.port()));
    REQUIRE(client.log_in(text));
    CHECK(client.closed_by_server());
  }
}

TEST_CASE("a worker that has said it is over and does not end is killed") {
  RunningBroker broker("lingers");
  WireClient client;
  pid_t pid = enter(client, broker.port());
  REQUIRE(pid != 0);
  uint64_t closed_at = now_ms();
  client.close();
  CHECK(eventually([&] { return !process_exists(pid); }));
  CHECK(now_ms() - closed_at >= server::kWorkerExitMs / 2);
}

TEST_CASE("a preface may come in pieces") {
  RunningBroker broker("serves");
  WireClient client;
  REQUIRE(client.connect(broker.port()));
  wire::PrefaceBytes preface = wire::encode(wire::own_preface());
  for (std::byte byte : preface) REQUIRE(client.send(std::span(&byte, 1)));
  std::string text;
  auto answer = client.read_preface(text);
  REQUIRE(answer);
  CHECK(answer->status == 0);
}

TEST_CASE(
    "a stranger is told after its first bytes, and reads the reason although the broker has not read all it sent") {
  RunningBroker broker("serves");
  WireClient client;
  REQUIRE(client.connect(broker.port()));
  REQUIRE(client.send(std::vector<std::byte>(10'000, std::byte('x'))));
  std::string text;
  CHECK(refusal(client, text) == wire::RefusalCode::not_gpuwire);
  CHECK(text.find("xxxx") != std::string::npos);
}

TEST_CASE("a session to resume is refused: none is kept") {
  RunningBroker broker("serves");
  WireClient client;
  REQUIRE(client.connect(broker.port()));
  wire::Preface preface = wire::own_preface();
  preface.session_id[3] = 9;
  REQUIRE(client.send(wire::encode(preface)));
  std::string text;
  CHECK(refusal(client, text) == wire::RefusalCode::internal);
}

TEST_CASE("a client more than run at once waits, and is served once another has left") {
  RunningBroker broker("serves", 1, 1);
  WireClient first, second;
  REQUIRE(enter(first, broker.port()) != 0);
  REQUIRE(second.connect(broker.port()));
  std::string text;
  REQUIRE(second.ask(text));
  CHECK(second.answer(text) == "queued");
  first.close();
  std::string said = second.answer(text);
  while (said == "queued") said = second.answer(text);
  CHECK(said == "admitted");
}

TEST_CASE("silent connections do not keep others out") {
  RunningBroker broker("serves");
  std::vector<WireClient> silent(server::kHalfOpenMax + 10);
  for (WireClient& client : silent) REQUIRE(client.connect(broker.port()));
  WireClient client;
  CHECK(enter(client, broker.port()) != 0);
  CHECK(silent.front().closed_by_server());  // long before its time limit
}

TEST_CASE("shutting down waits for the sessions, and a second time does not") {
  auto broker = std::make_unique<RunningBroker>("serves");
  WireClient client, late;
  uint16_t port = broker->port();
  pid_t pid = enter(client, port);
  REQUIRE(pid != 0);
  broker->shut_down();
  CHECK(eventually([&] {
    WireClient probe;
    return !probe.connect(port);
  }));
  CHECK(process_exists(pid));
  broker->shut_down();  // the fake worker ignores it, so it is killed
  CHECK(broker->ended());
  CHECK(!process_exists(pid));
}

TEST_CASE("sessions that outlast the drain limit are ended") {
  RunningBroker broker("serves", 1, 8, 0);
  WireClient client;
  pid_t pid = enter(client, broker.port());
  REQUIRE(pid != 0);
  broker.shut_down();
  CHECK(broker.ended());
  CHECK(!process_exists(pid));
}

TEST_CASE("each session's worker sees the GPUs that the session was given, and no others") {
  server::Configuration configuration;
  configuration.tenants = {{.name = "anna"}, {.name = "ben", .gpus_wanted = 0}};
  RunningBroker broker(3, std::move(configuration));
  REQUIRE(broker.port() != 0);
  Caller first(broker, {.tenant = "anna"}), second(broker, {.tenant = "anna"}),
      pair(broker, {.tenant = "anna", .gpus = 2}), whole(broker, {.tenant = "ben"});
  CHECK(first.served_with() == "0");
  CHECK(second.served_with() == "1");
  CHECK(pair.served_with() == "0,2");
  CHECK(whole.served_with() == "all");
}

TEST_CASE(
    "a tenant's sessions are given lanes until it has all that it may have, and again when one of them has ended") {
  server::Configuration configuration;
  configuration.lanes_max = 16;
  configuration.tenants = {{.name = "anna"}, {.name = "ben"}};
  RunningBroker broker("lanes", std::move(configuration));
  REQUIRE(broker.port() != 0);
  std::list<Caller> of_anna;
  for (unsigned given = 0; given < server::kLanesPerTenantMax; given += 16)
    CHECK(of_anna.emplace_back(broker, server::LoginRequest{.tenant = "anna"}).served_with() == "16");
  CHECK(Caller(broker, {.tenant = "anna"}).served_with() == "0");
  CHECK(Caller(broker, {.tenant = "ben"}).served_with() == "16");
  of_anna.pop_front();
  // A session is over when its worker's process has exited.
  CHECK(eventually([&] { return Caller(broker, {.tenant = "anna"}).served_with() == "16"; }));
}

TEST_CASE("a session inside TLS is given more lanes than one in plain bytes, unless the configuration says how many") {
  for (std::optional<unsigned> said : {std::optional<unsigned>(), std::optional<unsigned>(3)}) {
    server::Configuration configuration;
    configuration.lanes_max = said;
    configuration.tenants = {{.name = "anna"}};
    RunningBroker broker("lanes", std::move(configuration));
    REQUIRE(broker.port() != 0);
    Caller plain(broker, {.tenant = "anna", .security = "plain"}),
        encrypted(broker, {.tenant = "anna", .security = "tls certificate"});
    CHECK(plain.served_with() == std::to_string(said.value_or(server::kLanesUsual)));
    CHECK(encrypted.served_with() == std::to_string(said.value_or(server::kLanesUsualTls)));
  }
}

TEST_CASE(
    "a tenant that asks for many sessions at once makes nobody wait for more than its next one, and no more "
    "workers start at once than may") {
  constexpr size_t kFlood = 3 * server::kParallelStartsMax;
  server::Configuration configuration;
  configuration.tenants = {{.name = "anna"}, {.name = "ben"}, {.name = "carl"}};
  GatedWorkers workers;
  RunningBroker broker(workers.arguments(), std::move(configuration), 0);
  workers.let_begin(1);  // it reports the devices, and ends if no session needs it
  REQUIRE(broker.port() != 0);
  REQUIRE(eventually([&] { return fake_workers() == 0; }));
  std::list<Caller> of_anna, others;
  for (size_t i = 0; i < kFlood; ++i) of_anna.emplace_back(broker, server::LoginRequest{.tenant = "anna"});
  for (const char* tenant : {"ben", "carl"}) others.emplace_back(broker, server::LoginRequest{.tenant = tenant});
  broker.act([](Broker&) {});  // all due starts have begun
  auto granted = [](std::list<Caller>& callers) {
    return size_t(std::count_if(callers.begin(), callers.end(), [](Caller& one) { return one.told() == "granted"; }));
  };
  CHECK(eventually([] { return fake_workers() == server::kParallelStartsMax; }));
  for (size_t begun = 1; begun <= 3; ++begun) {
    workers.let_begin(1);
    REQUIRE(eventually([&] { return granted(of_anna) + granted(others) == begun; }));
    CHECK(fake_workers() <= server::kParallelStartsMax + begun);
  }
  CHECK(granted(others) == 2);  // in three
  workers.let_begin(kFlood);
  CHECK(eventually([&] { return granted(of_anna) == kFlood; }));
  CHECK(eventually([] { return fake_workers() == kFlood + 2; }));
}

TEST_CASE("a session that waits for a GPU begins when another's process has ended") {
  server::Configuration configuration;
  configuration.sessions_per_gpu_max = 1;
  configuration.tenants = {{.name = "anna"}};
  RunningBroker broker(2, std::move(configuration));
  REQUIRE(broker.port() != 0);
  Caller first(broker, {.tenant = "anna"}), second(broker, {.tenant = "anna"}), third(broker, {.tenant = "anna"}),
      fourth(broker, {.tenant = "anna"});
  CHECK(first.served_with() == "0");
  CHECK(second.served_with() == "1");
  CHECK(third.told() == "place 1");
  CHECK(fourth.told() == "place 2");
  broker.act([&](Broker& of) { of.sessions().cancel(third.session(), "the client left while it waited"); });
  CHECK(fourth.told() == "place 1");
  second.leave();
  CHECK(fourth.served_with() == "1");
}

namespace {

// A connection that resumes the session.
struct Connection {
  server::OwnedDescriptor own;
  Connection(RunningBroker& broker, scheduler::SessionId session) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    own.reset(ends[0]);
    broker.act([&](Broker& of) { of.sessions().carry_on(session, server::OwnedDescriptor(ends[1]), {}); });
  }
  bool closed() const {
    pollfd watched{own.get(), POLLIN, 0};
    return ::poll(&watched, 1, 0) == 1;
  }
  bool answered() const {
    char byte = 0;
    ssize_t got;
    do got = ::recv(own.get(), &byte, 1, 0);
    while (got < 0 && errno == EINTR);
    return got == 1 && byte == 'a';
  }
};

}  // namespace

TEST_CASE("connections for a worker that reads none are bounded and closed beyond, and one that reads gets them all") {
  server::Configuration configuration;
  configuration.tenants = {{.name = "anna"}, {.name = "ben"}};
  RunningBroker broker("listens", std::move(configuration));
  REQUIRE(broker.port() != 0);
  std::vector<std::string> refused;
  broker.act([&](Broker& of) {
    of.registry().observe([&](const server::SessionEvent& event) {
      if (event.kind == server::SessionEvent::Kind::resume_refused) refused.push_back(event.text);
    });
  });
  Caller deaf(broker, {.tenant = "anna"}), listens(broker, {.tenant = "ben"});
  CHECK(deaf.served_with() == "all");
  REQUIRE(eventually([&] { return listens.told() == "granted"; }));
  std::list<Connection> unread;
  for (size_t i = 0; i < server::kUnreadPerWorkerMax; ++i) unread.emplace_back(broker, deaf.session());
  broker.act([&](Broker& of) { CHECK_FALSE(of.sessions().takes_connections(deaf.session())); });
  for (int i = 0; i < 3; ++i) CHECK(Connection(broker, deaf.session()).closed());
  CHECK(std::none_of(unread.begin(), unread.end(), [](const Connection& one) { return one.closed(); }));
  for (size_t i = 0; i < 3 * server::kUnreadPerWorkerMax; ++i)
    REQUIRE(Connection(broker, listens.session()).answered());
  broker.act([&](Broker&) {
    CHECK(refused == std::vector<std::string>(
                         3, "its worker accepts no connections: too many are waiting for it, and it reads none"));
  });
}

TEST_CASE("a session that waits for memory begins when a running one has freed it") {
  FreeMemory memory(0);  // outlives the broker
  server::Configuration configuration;
  configuration.tenants = {{.name = "anna"}};
  RunningBroker broker(1, std::move(configuration));
  REQUIRE(broker.port() != 0);
  broker.act([&](Broker& of) { of.admission().set_memory(memory); });
  Caller waits(broker, {.tenant = "anna", .memory_bytes = 1 << 20});
  CHECK(waits.told() == "place 1");
  memory.free = 1 << 20;
  CHECK(waits.served_with() == "all");
  waits.leave();
}

TEST_CASE("a session can be stopped whether it runs or waits, and the next one begins") {
  server::Configuration configuration;
  configuration.sessions_per_gpu_max = 1;
  configuration.tenants = {{.name = "anna"}};
  RunningBroker broker(1, std::move(configuration));
  REQUIRE(broker.port() != 0);
  Caller first(broker, {.tenant = "anna"}), second(broker, {.tenant = "anna"}), third(broker, {.tenant = "anna"});
  CHECK(first.served_with() == "all");
  broker.act([&](Broker& of) { CHECK(of.sessions().stop(second.session(), "the administrator says so")); });
  CHECK(second.told() == "the administrator says so");
  broker.act([&](Broker& of) { CHECK(of.sessions().stop(first.session(), "the administrator says so")); });
  CHECK(third.served_with() == "all");
}

TEST_CASE(
    "a session that is stopped between its grant and its client's arrival tells the client why, through its worker") {
  RunningBroker broker("serves");
  REQUIRE(broker.port() != 0);
  bool granted = false;
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  server::OwnedDescriptor own(ends[0]), theirs(ends[1]);
  scheduler::SessionId session{};
  broker.act([&](Broker& of) {
    session =
        of.sessions().request({.tenant = "open"}, [&](scheduler::SessionId, const server::AdmissionAnswer& answer) {
          granted = std::holds_alternative<server::AdmissionGranted>(answer);
        });
  });
  auto is_granted = [&] {
    bool yes = false;
    broker.act([&](Broker&) { yes = granted; });
    return yes;
  };
  REQUIRE(eventually(is_granted));
  broker.act([&](Broker& of) {
    CHECK(of.registry().find(session)->state == server::SessionState::granted);
    CHECK(of.sessions().stop(session, "the administrator says so"));
    CHECK(of.registry().find(session)->state == server::SessionState::ending);
    of.sessions().serve(session, std::move(theirs), {});
  });
  // The fake worker has the client, and was told to stop; a real worker would tell the client the reason.
  pid_t worker = 0;
  CHECK(::recv(own.get(), &worker, sizeof worker, MSG_WAITALL) == ssize_t(sizeof worker));
  auto is_over = [&] {
    bool yes = false;
    broker.act([&](Broker& of) { yes = of.registry().find(session) == nullptr; });
    return yes;
  };
  CHECK(eventually(is_over));
}

TEST_CASE("a granted session whose worker dies before it has the client gets another worker") {
  RunningBroker broker("serves");
  REQUIRE(broker.port() != 0);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  server::OwnedDescriptor own(ends[0]), theirs(ends[1]);
  scheduler::SessionId session{};
  broker.act([&](Broker& of) {
    session = of.sessions().request({.tenant = "open"}, [](scheduler::SessionId, const server::AdmissionAnswer&) {});
  });
  pid_t first = 0;
  auto worker = [&] {
    pid_t pid = 0;
    broker.act([&](Broker& of) {
      if (auto* record = of.registry().find(session); record && record->state == server::SessionState::granted)
        pid = record->worker_pid;
    });
    return pid;
  };
  REQUIRE(eventually([&] { return (first = worker()) != 0; }));
  REQUIRE(::kill(first, SIGKILL) == 0);
  REQUIRE(eventually([&] { return worker() != first; }));
  broker.act([&](Broker& of) { of.sessions().serve(session, std::move(theirs), {}); });
  pid_t second = 0;
  CHECK(::recv(own.get(), &second, sizeof second, MSG_WAITALL) == ssize_t(sizeof second));
  CHECK(second != first);
}

TEST_CASE("a client that does not begin its session within the time limit gives up its place") {
  server::Configuration configuration;
  // A longer limit changes nothing.
  configuration.tenants = {{.name = "anna", .idle_time_max_ms = 3'600'000}};
  configuration.sessions_per_gpu_max = 1;
  RunningBroker broker(1, std::move(configuration), {}, 2000);
  REQUIRE(broker.port() != 0);
  broker.act([&](Broker& of) {
    of.sessions().request({.tenant = "anna"}, [](scheduler::SessionId, const server::AdmissionAnswer&) {});
  });
  Caller next(broker, {.tenant = "anna"});
  CHECK(next.served_with() == "all");
}

TEST_CASE("a session whose client never begins it is idle, and ends at its tenant's limit") {
  constexpr std::chrono::hours kBrokersLimit(1);
  std::vector<std::string> ends;
  server::Configuration configuration;
  configuration.tenants = {{.name = "anna", .idle_time_max_ms = 1}, {.name = "ben"}};
  configuration.sessions_per_gpu_max = 1;
  RunningBroker broker({"waits", "1"}, std::move(configuration), kBrokersLimit);
  REQUIRE(broker.port() != 0);
  broker.act([&](Broker& of) {
    of.registry().observe([&](const server::SessionEvent& event) {
      using Kind = server::SessionEvent::Kind;
      if (event.kind == Kind::ended || event.kind == Kind::refused) ends.push_back(event.text);
    });
  });
  auto why = [&](size_t number) {
    std::string text;
    broker.act([&](Broker&) { text = number < ends.size() ? ends[number] : ""; });
    return text;
  };
  const std::string idle = "the session has been idle: its client has not begun it within 1 ms";
  // The client's connection does not arrive, ...
  broker.act([&](Broker& of) {
    of.sessions().request({.tenant = "anna"}, [](scheduler::SessionId, const server::AdmissionAnswer&) {});
  });
  CHECK(eventually([&] { return why(0) == idle; }));
  // ... or arrives and sends nothing.
  Caller silent(broker, {.tenant = "anna"});
  CHECK(eventually([&] { return why(1).starts_with(idle); }));
  // A tenant without a limit has the broker's: its session is granted the place, and stays.
  Caller neighbour(broker, {.tenant = "ben"});
  CHECK(eventually([&] { return neighbour.told() == "granted"; }));
  Caller behind(broker, {.tenant = "anna"});
  CHECK(eventually([&] { return behind.told().starts_with("place"); }));
  broker.act([&](Broker&) { CHECK(ends.size() == 2); });
}

TEST_CASE("a session whose worker does not hear that it is to end was stopped, for the reason that was given") {
  std::string ended;
  uint32_t cause = server::SessionEvent::kDied;
  RunningBroker broker("serves");
  REQUIRE(broker.port() != 0);
  broker.act([&](Broker& of) {
    of.registry().observe([&](const server::SessionEvent& event) {
      if (event.kind == server::SessionEvent::Kind::ended) ended = event.text, cause = event.end_cause;
    });
  });
  Caller caller(broker, {.tenant = "open"});
  CHECK(caller.served_with() == "all");
  broker.act([&](Broker& of) { CHECK(of.sessions().stop(caller.session(), "a kernel has been running for 2 h")); });
  auto reason = [&] {
    std::string text;
    broker.act([&](Broker&) { text = ended; });
    return text;
  };
  CHECK(eventually(
      [&] { return reason() == "a kernel has been running for 2 h (its process ended with signal 9 (Killed))"; }));
  CHECK(cause == uint32_t(server::EndCause::stopped));
}

namespace {

// All workers misbehave in this way; the broker serves each all the same, and ends each.
void check_ended(const char* way) {
  RunningBroker broker(way, 1, 8);
  REQUIRE(broker.port() != 0);
  std::vector<uint32_t> causes;
  broker.act([&](Broker& of) {
    of.registry().observe([&](const server::SessionEvent& event) {
      if (event.kind == server::SessionEvent::Kind::ended) causes.push_back(event.end_cause);
    });
  });
  std::vector<WireClient> clients(4);
  for (WireClient& client : clients) CHECK(enter(client, broker.port()) != 0);
  for (WireClient& client : clients) CHECK(client.closed_by_server());
  auto ends = [&] {
    size_t count = 0;
    broker.act([&](Broker&) { count = causes.size(); });
    return count;
  };
  CHECK(eventually([&] { return ends() == clients.size(); }));
  broker.act(
      [&](Broker&) { CHECK(std::count(causes.begin(), causes.end(), uint32_t(server::EndCause::internal)) == 4); });
}

}  // namespace

TEST_CASE("a worker that floods the broker is ended, and others come in meanwhile and afterwards") {
  check_ended("floods");
}

TEST_CASE("a worker that hands over its client's socket, whose data nobody reads, keeps the broker from nobody") {
  check_ended("hands");
}

namespace {

class LinesSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  size_t with(std::string_view text) {
    std::lock_guard lock(mutex_);
    return size_t(std::ranges::count_if(lines_, [&](const auto& line) { return line.find(text) != line.npos; }));
  }

 private:
  void sink_it_(const spdlog::details::log_msg& line) override {
    lines_.emplace_back(line.payload.data(), line.payload.size());
  }
  void flush_() override {}

  std::vector<std::string> lines_;  // under mutex_
};

// Records the lines of this process's log. It outlives the broker.
class LogLines {
 public:
  LogLines() { spdlog::set_default_logger(std::make_shared<spdlog::logger>("lines", sink_)); }
  ~LogLines() { spdlog::set_default_logger(before_); }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;
  size_t with(std::string_view text) { return sink_->with(text); }

 private:
  const std::shared_ptr<LinesSink> sink_ = std::make_shared<LinesSink>();
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

}  // namespace

TEST_CASE("a worker's endless notes are logged up to a bound, with a count of the others, at every level") {
  constexpr unsigned kNotes = 2000;
  static_assert(kNotes > server::kWorkerNotesMax);
  LogLines lines;
  RunningBroker broker({"notes", std::to_string(kNotes)}, server::open_configuration(), 1);
  REQUIRE(broker.port() != 0);
  broker.act([](Broker&) { spdlog::set_level(spdlog::level::debug); });
  Caller caller(broker, {.tenant = "open"});
  CHECK(caller.served_with() == "all");
  caller.leave();
  CHECK(eventually([&] { return lines.with("notes of its worker are left out") == 1; }));
  CHECK(lines.with(fmt::format(" {} more notes", kNotes - server::kWorkerNotesMax)) == 1);
  CHECK(lines.with("xxxx") == server::kWorkerNotesMax);
  CHECK(lines.with("fake client") == 1);
  broker.act([](Broker&) { spdlog::set_level(spdlog::level::off); });
}

TEST_CASE(
    "what a worker writes comes to the log as its own words, so much of it, and the log itself is none of its files") {
  LogLines lines;
  RunningBroker broker({"writes"}, server::open_configuration(), 1);
  REQUIRE(broker.port() != 0);
  broker.act([](Broker&) { spdlog::set_level(spdlog::level::info); });
  Caller caller(broker, {.tenant = "open"});
  std::array<char, 256> own{};
  REQUIRE(::readlink("/proc/self/fd/2", own.data(), own.size() - 1) > 0);
  const std::string given = caller.served_with();
  CHECK(given.starts_with("pipe:"));
  CHECK(given != own.data());
  caller.leave();
  CHECK(eventually([&] { return lines.with("which is left out from here on") == 1; }));
  // Every line names its worker, and has a bounded length.
  CHECK(lines.with("a line of its own") == server::kChildLinesMax);
  CHECK(lines.with("its process wrote: a line of its own") == server::kChildLinesMax);
  broker.act([](Broker&) { spdlog::set_level(spdlog::level::off); });
}

TEST_CASE("a worker that loses its connection and refuses others all the time is told of a few times, and counted") {
  constexpr uint64_t kTimes = 1000;
  server::Configuration configuration = server::open_configuration();
  RunningBroker broker({"refuses", std::to_string(kTimes)}, std::move(configuration), 1);
  REQUIRE(broker.port() != 0);
  uint64_t told_lost = 0, told_back = 0, told_refused = 0, untold_lost = 0, untold_refused = 0;
  bool over = false;
  broker.act([&](Broker& of) {
    of.registry().observe([&](const server::SessionEvent& event) {
      using Kind = server::SessionEvent::Kind;
      told_lost += event.kind == Kind::detached;
      told_back += event.kind == Kind::attached;
      told_refused += event.kind == Kind::resume_refused;
      if (event.kind != Kind::ended) return;
      untold_lost = event.session.losses.untold();
      untold_refused = event.session.refused_resumptions.untold();
      over = true;
    });
  });
  Caller caller(broker, {.tenant = "open"});
  CHECK(caller.served_with() == "all");
  caller.leave();
  auto ended = [&] {
    bool yes = false;
    broker.act([&](Broker&) { yes = over; });
    return yes;
  };
  REQUIRE(eventually(ended));
  CHECK(told_lost + untold_lost == kTimes);
  CHECK(told_refused + untold_refused == kTimes);
  CHECK(told_back == told_lost);
  // The burst, and a few that were refilled meanwhile.
  CHECK(told_lost >= server::kSessionEventsAtOnce);
  CHECK(told_lost < kTimes / 4);
  CHECK(told_refused < kTimes / 4);
}

TEST_CASE("a worker that says what cannot be is ended, and others come in meanwhile and afterwards") {
  check_ended("babbles");
}

TEST_CASE(
    "a configuration that does not fit the devices stops a start, and is refused by a reload that changes nothing") {
  server::Configuration fits, too_much;
  fits.tenants = {{.name = "anna", .gpus_wanted = 1}};
  too_much.tenants = {{.name = "ben", .memory = {.guaranteed_bytes = uint64_t(1) << 40}}};
  RunningBroker unlucky(1, too_much);
  CHECK(unlucky.ended());
  CHECK(unlucky.failure().find("guaranteed 1024.0 GiB together on GPU 0") != std::string::npos);
  RunningBroker broker(1, fits);
  REQUIRE(broker.port() != 0);
  broker.act([&](Broker& of) {
    auto done = of.reload(too_much);
    REQUIRE_FALSE(done);
    CHECK(done.error().size() == 1);
    CHECK(of.tenants().find("anna"));
    CHECK_FALSE(of.tenants().find("ben"));
    fits.tenants.push_back({.name = "carl"});
    CHECK(of.reload(fits));
    CHECK(of.tenants().find("carl"));
  });
}

TEST_CASE("names of devices are those that the server itself was shown") {
  CHECK(server::visible_devices({0, 2}, nullptr) == "0,2");
  CHECK(server::visible_devices({0, 2}, "5,6,7") == "5,7");
  CHECK(server::visible_devices({1}, "GPU-aa,GPU-bb") == "GPU-bb");
}
