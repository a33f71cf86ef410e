// A broker's adoption of the sessions of an earlier one: the test plays the earlier broker and the workers.
#include <algorithm>
#include <array>
#include <csignal>
#include <map>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/broker/session/adoption.hpp"
#include "test/server/broker/running_broker.hpp"
#include "test/support/temporary_directory.hpp"
#include "protocol/transport/connecting.hpp"

using namespace gpuwire;
using namespace gpuwire::server;
using namespace gpuwire::test;

namespace {

// A session of an earlier broker whose worker is a process that only waits to be killed, and whose end of the pair the
// test holds.
struct Left {
  pid_t worker = ::fork();
  OwnedDescriptor brokers_end;
  std::optional<ipc::Channel> own_end;
  KeptSession kept;

  explicit Left(uint64_t number) {
    if (worker == 0) {
      ::close_range(3, ~0u, 0);  // the test's own ends
      for (;;) ::pause();
    }
    OwnedDescriptor own;
    REQUIRE(ipc::open_pair(brokers_end, own));
    own_end.emplace(std::move(own), ipc::Speaker::broker, 8);
    kept.build = kept_build();
    kept.record = {.number = scheduler::SessionId(number),
                   .tenant = kOpenTenant,
                   .devices = {0},
                   .worker_pid = worker,
                   .begun = std::chrono::system_clock::now()};
    kept.device_uuids = {"GPU-0"};
  }
  ~Left() {
    ::kill(worker, SIGKILL);
    ::waitpid(worker, nullptr, 0);
  }
  KeptEntry entry() const {
    KeptEntry entry{.session = true, .name = kept_name(kept.record.number), .text = encode(kept), .descriptors = {}};
    entry.descriptors.emplace_back(::fcntl(brokers_end.get(), F_DUPFD_CLOEXEC, 0));
    entry.descriptors.emplace_back(int(::syscall(SYS_pidfd_open, worker, 0)));
    entry.descriptors.resize(kKeptDescriptors);
    return entry;
  }
  // Returns the message to the worker after the keeper's message that there was no broker; nothing: the other end is
  // closed.
  std::optional<ipc::Message> told() {
    auto message = own_end->await();
    while (message && std::holds_alternative<ipc::Unattended>(*message)) message = own_end->await();
    return message;
  }
  // Returns the reason of the stop order; empty: there is none.
  std::string told_to_stop() {
    auto word = told();
    while (word && !std::holds_alternative<ipc::Stop>(*word)) word = told();
    return word ? std::get<ipc::Stop>(*word).why : std::string();
  }
  bool killed() const {
    siginfo_t facts{};
    return ::waitid(P_PID, id_t(worker), &facts, WEXITED | WNOHANG | WNOWAIT) == 0 && facts.si_pid == worker;
  }
};

// Leaves these entries with a keeper, like a broker that has ended.
class Folder {
 public:
  void leave(std::vector<KeptEntry> entries) {
    boost::asio::io_context io;
    auto keeping =
        Keeping::open(io, {.directory = path(), .program = GPUWIRE_TEST_KEEPER, .grace = std::chrono::minutes(5)});
    REQUIRE(keeping);
    for (KeptEntry& entry : entries) (*keeping)->put(std::move(entry));
  }
  std::filesystem::path path() const { return folder_.path() / "runtime"; }

 private:
  TemporaryDirectory folder_;
};

OwnedDescriptor anything() { return OwnedDescriptor(::memfd_create("anything", MFD_CLOEXEC)); }

std::vector<KeptEntry> entries_of(KeptEntry entry) {
  std::vector<KeptEntry> entries;
  entries.push_back(std::move(entry));
  return entries;
}

bool in_book(RunningBroker& broker, uint64_t number) {
  bool found = false;
  broker.act([&](Broker& one) { found = one.registry().find(scheduler::SessionId(number)) != nullptr; });
  return found;
}

}  // namespace

TEST_CASE("a session that an earlier broker has left goes on, with its number, and ends as any other") {
  Left left(41);
  Folder folder;
  folder.leave(entries_of(left.entry()));
  RunningBroker broker(1, folder.path());
  REQUIRE(broker.port());
  auto word = left.told();
  REQUIRE(word);
  CHECK(std::holds_alternative<ipc::Adopted>(*word));
  CHECK(in_book(broker, 41));
  WireClient client;
  CHECK(enter(client, broker.port()));
  CHECK(in_book(broker, 42));  // a number is never used twice
  REQUIRE(left.own_end->send(ipc::Ended{EndCause::finished, {}}));
  ::kill(left.worker, SIGKILL);
  CHECK(eventually([&] { return !in_book(broker, 41); }));
}

TEST_CASE("a session of another build is told why it ends, and is killed when it does not") {
  Left left(41);
  left.kept.build = "IPC of other times";
  Folder folder;
  folder.leave(entries_of(left.entry()));
  RunningBroker broker(1, folder.path());
  REQUIRE(broker.port());
  CHECK(left.told_to_stop().find("the server was upgraded") == 0);
  CHECK(eventually([&] { return left.killed(); }));
  CHECK(eventually([&] { return !in_book(broker, 41); }));
}

TEST_CASE("a session whose GPU is another one now is told so") {
  Left left(41);
  left.kept.device_uuids = {"GPU-another"};
  Folder folder;
  folder.leave(entries_of(left.entry()));
  RunningBroker broker(1, folder.path());
  CHECK(left.told_to_stop().find("GPU 0 is not the one") != std::string::npos);
}

TEST_CASE("a session waits for its GPU under the next server, and goes on when it is there again") {
  Left left(41);
  left.kept.record.devices = {1};
  left.kept.device_uuids = {"GPU-1"};
  Folder folder;
  folder.leave(entries_of(left.entry()));
  TemporaryDirectory temporary;
  const std::string path = (temporary.path() / "devices").string();
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  OwnedDescriptor shown(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  REQUIRE(::write(shown.get(), "12222222", 8) == 8);  // the first worker sees one GPU, all later ones see two
  RunningBroker broker({"shows", path}, folder.path());
  REQUIRE(broker.port());
  CHECK(broker.devices().find("2 x") == 0);
  auto word = left.told();
  REQUIRE(word);
  CHECK(std::holds_alternative<ipc::Adopted>(*word));
  CHECK(in_book(broker, 41));
}

TEST_CASE("a server that cannot open its devices ends, and leaves the sessions to one that can") {
  Left left(41);
  Folder folder;
  folder.leave(entries_of(left.entry()));
  {
    RunningBroker broken({"fails"}, folder.path());
    CHECK(broken.ended());
    CHECK(broken.failure().find("the fake device is on holiday") != std::string::npos);
  }
  RunningBroker broker(1, folder.path());
  REQUIRE(broker.port());
  auto word = left.told();
  REQUIRE(word);
  CHECK(std::holds_alternative<ipc::Adopted>(*word));
}

TEST_CASE("a worker whose session's note cannot be read finds nobody at the other end") {
  Left left(41);
  KeptEntry entry = left.entry();
  entry.text = "scratched";
  Folder folder;
  folder.leave(entries_of(std::move(entry)));
  left.brokers_end.reset();
  RunningBroker broker(1, folder.path());
  REQUIRE(broker.port());
  CHECK_FALSE(left.told());
  CHECK_FALSE(in_book(broker, 41));
}

TEST_CASE("a worker that cannot be its session's because the note is another's is not believed, whatever it says") {
  Left left(41);
  KeptEntry entry = left.entry();
  entry.name = kept_name(scheduler::SessionId(40));
  Folder folder;
  folder.leave(entries_of(std::move(entry)));
  left.brokers_end.reset();
  RunningBroker broker(1, folder.path());
  REQUIRE(broker.port());
  CHECK_FALSE(left.told());
  CHECK_FALSE(in_book(broker, 41));
  CHECK_FALSE(in_book(broker, 40));
}

TEST_CASE("a worker that has died while there was no broker is accounted for") {
  Left left(41);
  Folder folder;
  Left other(43);
  std::vector<KeptEntry> entries = entries_of(left.entry());
  entries.push_back(other.entry());
  folder.leave(std::move(entries));
  ::kill(left.worker, SIGKILL);
  RunningBroker broker(1, folder.path());
  REQUIRE(broker.port());
  CHECK(eventually([&] { return !in_book(broker, 41); }));
  CHECK(in_book(broker, 43));
}

TEST_CASE(
    "what a session shares with others of its tenant is found under the next broker, and can be shared again by who "
    "has not heard the answer") {
  Left left(41);
  const ipc::ShareToken token{1, 2, 3};
  std::vector<KeptEntry> entries = entries_of(left.entry());
  KeptEntry share{.session = false,
                  .name = kept_name(token),
                  .text = encode(KeptShare{scheduler::SessionId(41), 1, "user"}),
                  .descriptors = {}};
  share.descriptors.push_back(anything());
  entries.push_back(std::move(share));
  Folder folder;
  folder.leave(std::move(entries));
  RunningBroker broker(1, folder.path());
  auto word = left.told();
  REQUIRE(word);
  REQUIRE(std::holds_alternative<ipc::Adopted>(*word));
  auto ask = [&](ipc::Message question) {
    REQUIRE(left.own_end->send(std::move(question)));
    auto said = left.told();
    REQUIRE(said);
    REQUIRE(std::holds_alternative<ipc::Answer>(*said));
    return std::get<ipc::Answer>(std::move(*said));
  };
  ipc::Answer found = ask(ipc::Claim{1, token, 1, "user"});
  CHECK(found.request == 1);
  CHECK(found.yes);
  CHECK(found.descriptor);
  CHECK_FALSE(ask(ipc::Claim{2, token, 1, "another user"}).yes);
  CHECK(ask(ipc::Share{3, token, 1, "user", anything()}).yes);
}

TEST_CASE("entries with a keeper that dies are there with the next one") {
  TemporaryDirectory folder;
  const KeepingSettings settings{
      .directory = folder.path() / "runtime", .program = GPUWIRE_TEST_KEEPER, .grace = std::chrono::minutes(5)};
  boost::asio::io_context io;
  auto keeping = Keeping::open(io, settings);
  REQUIRE(keeping);
  auto lay_down = [&](const std::string& name) {
    KeptEntry entry{.session = false, .awaited = true, .name = name, .text = "as it was", .descriptors = {}};
    entry.descriptors.push_back(anything());
    (*keeping)->put(std::move(entry));
  };
  // Returns the process that listens at the keeper's socket; 0: none.
  auto keeper = [&]() -> pid_t {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    const std::string path = (settings.directory / "keeper").string();
    std::copy(path.begin(), path.end(), address.sun_path);
    OwnedDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    ucred who{};
    socklen_t bytes = sizeof who;
    const bool there = transport::connect_through_signals(socket.get(), reinterpret_cast<const sockaddr*>(&address),
                                                          sizeof address) == 0 &&
                       ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &bytes) == 0;
    return there ? who.pid : 0;
  };
  lay_down("stays");
  lay_down("changes");
  lay_down("goes");
  const pid_t first = keeper();
  REQUIRE(first > 0);
  ::kill(first, SIGKILL);
  // Also while there is no keeper.
  (*keeping)->note("changes", "as it is");
  (*keeping)->remove("goes");
  lay_down("comes");
  CHECK(eventually([&] {
    io.restart();
    io.run_for(std::chrono::milliseconds(10));
    const pid_t now = keeper();
    return now != 0 && now != first;
  }));
  keeping->reset();
  boost::asio::io_context next_io;
  auto next = Keeping::open(next_io, settings);
  REQUIRE(next);
  std::map<std::string, std::string> texts;
  for (const KeptEntry& entry : (*next)->take()) {
    texts[entry.name] = entry.text;
    CHECK(entry.awaited);
    REQUIRE(entry.descriptors.size() == 1);
    CHECK(entry.descriptors[0]);
  }
  CHECK(texts ==
        std::map<std::string, std::string>{{"stays", "as it was"}, {"changes", "as it is"}, {"comes", "as it was"}});
  for (const auto& [name, text] : texts) (*next)->remove(name);
}

namespace {

// Plays a keeper that closes the connections of so many brokers before it sends its entries.
class UnreliableKeeper {
 public:
  UnreliableKeeper(const std::filesystem::path& folder, unsigned hangs_up) {
    std::filesystem::create_directory(folder);
    ::chmod(folder.c_str(), 0700);
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    const std::string path = (folder / "keeper").string();
    std::copy(path.begin(), path.end(), address.sun_path);
    REQUIRE(::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listening_.get(), 8) == 0);
    thread_ = std::thread([this, hangs_up] { serve(hangs_up); });
  }
  ~UnreliableKeeper() {
    ::shutdown(listening_.get(), SHUT_RDWR);
    thread_.join();
  }

 private:
  void serve(unsigned hangs_up) {
    for (;; --hangs_up) {
      OwnedDescriptor connection(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!connection) return;
      if (hangs_up > 0) continue;
      ipc::Channel broker(std::move(connection), ipc::Speaker::broker, 8);
      while (auto message = broker.await()) {
        if (!std::holds_alternative<ipc::Give>(*message)) continue;
        broker.send(ipc::Entry{{.awaited = true, .name = "stays", .text = "as it was", .descriptors = {}}});
        broker.send(ipc::Given{});
      }
      return;
    }
  }

  OwnedDescriptor listening_{::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)};
  std::thread thread_;
};

}  // namespace

TEST_CASE("a keeper that hangs up in the middle is asked again before what it has is given up") {
  for (const auto& [hangs_up, found] : {std::pair{kKeeperTriesMax - 1, true}, std::pair{kKeeperTriesMax, false}}) {
    CAPTURE(hangs_up);
    TemporaryDirectory folder;
    const std::filesystem::path runtime = folder.path() / "runtime";
    boost::asio::io_context io;
    {
      UnreliableKeeper keeper(runtime, hangs_up);
      auto keeping =
          Keeping::open(io, {.directory = runtime, .program = GPUWIRE_TEST_KEEPER, .grace = std::chrono::minutes(5)});
      REQUIRE(keeping);
      auto entries = (*keeping)->take();
      REQUIRE(entries.size() == (found ? 1 : 0));
      if (found) CHECK(entries[0].name == "stays");
      if (found) (*keeping)->remove("stays");
    }
  }
}

TEST_CASE("a folder that others can look into, and one that is in use, are refused") {
  boost::asio::io_context io;
  TemporaryDirectory folder;
  KeepingSettings settings{
      .directory = folder.path() / "runtime", .program = GPUWIRE_TEST_KEEPER, .grace = std::chrono::minutes(5)};
  {
    auto first = Keeping::open(io, settings);
    REQUIRE(first);
    auto second = Keeping::open(io, settings);
    REQUIRE_FALSE(second);
    CHECK(second.error().find("is in use by another server (process " + std::to_string(::getpid()) + ")") !=
          std::string::npos);
  }
  CHECK(std::filesystem::is_empty(settings.directory));
  ::chmod(settings.directory.c_str(), 0755);
  auto open = Keeping::open(io, settings);
  REQUIRE_FALSE(open);
  CHECK(open.error().find("chmod 0700") != std::string::npos);
}

namespace {

// The answers to a client that has logged in at a broker of this process.
struct Told {
  std::vector<std::string> answers;  // used by the broker's thread
  scheduler::SessionId session{};
  SessionAnswer answer() {
    return [this](scheduler::SessionId number, const AdmissionAnswer& what) {
      session = number;
      if (auto* queued = std::get_if<AdmissionQueued>(&what))
        answers.push_back("place " + std::to_string(queued->place));
      else
        answers.push_back(std::holds_alternative<AdmissionGranted>(what) ? "granted"
                                                                         : std::get<AdmissionRefused>(what).reason);
    };
  }
};

std::string last(RunningBroker& broker, const Told& told) {
  std::string text;
  broker.act([&](Broker&) { text = told.answers.empty() ? "" : told.answers.back(); });
  return text;
}

Configuration one_at_a_time() {
  Configuration configuration = open_configuration();
  configuration.sessions_per_gpu_max = 1;
  return configuration;
}

}  // namespace

TEST_CASE(
    "those who wait when their broker is killed are admitted by the next one in the order that they had, whoever comes "
    "back first") {
  Folder folder;
  std::vector<std::string> tickets;
  Left left(41);
  {
    // The earlier broker, with one session that runs and three that wait. leave() stores no more than exists after a
    // kill.
    folder.leave(entries_of(left.entry()));
    RunningBroker broker(1, folder.path(), one_at_a_time());
    REQUIRE(broker.port());
    std::array<Told, 3> waiting;
    for (Told& one : waiting)
      broker.act([&](Broker& of) { of.sessions().request({.tenant = kOpenTenant}, one.answer()); });
    broker.act([&](Broker& of) {
      for (Told& one : waiting) {
        REQUIRE(of.registry().find(one.session)->state == SessionState::queued);
        const auto& id = of.registry().find(one.session)->wire_id;
        tickets.emplace_back(id.begin(), id.end());
      }
      of.leave();
    });
    REQUIRE(broker.ended());
  }
  RunningBroker broker(1, folder.path(), one_at_a_time());
  REQUIRE(broker.port());
  CHECK(in_book(broker, 41));
  std::array<Told, 4> back;
  auto come_back = [&](size_t which) {
    broker.act([&](Broker& of) {
      CHECK(of.sessions().return_to_queue(tickets[which], {.tenant = kOpenTenant, .peer = "another place"},
                                          back[which].answer()));
    });
  };
  // The last one returns first, and a new client arrives before the others.
  come_back(2);
  CHECK(last(broker, back[2]) == "place 3");
  broker.act([&](Broker& of) { of.sessions().request({.tenant = kOpenTenant}, back[3].answer()); });
  CHECK(last(broker, back[3]) == "place 4");
  come_back(1);
  CHECK(last(broker, back[1]) == "place 2");
  // A place belongs to its own client: not to another tenant's, and not twice.
  broker.act([&](Broker& of) {
    Told nobody;
    CHECK_FALSE(of.sessions().return_to_queue(tickets[0], {.tenant = "other"}, nobody.answer()));
    CHECK_FALSE(of.sessions().return_to_queue(tickets[1], {.tenant = kOpenTenant}, nobody.answer()));
    CHECK_FALSE(of.sessions().return_to_queue(std::string(16, 'x'), {.tenant = kOpenTenant}, nobody.answer()));
  });
  // The GPU is free, and stays reserved for the first session until its client is back.
  broker.act([&](Broker& of) { of.sessions().stop(scheduler::SessionId(41), "enough"); });
  CHECK(eventually([&] { return !in_book(broker, 41); }));
  CHECK(last(broker, back[1]) == "place 2");
  come_back(0);
  for (size_t turn = 0; turn < 4; ++turn) {
    INFO("turn ", turn);
    CHECK(eventually([&] { return last(broker, back[turn]) == "granted"; }));
    for (size_t later = turn + 1; later < 4; ++later)
      CHECK(last(broker, back[later]) == "place " + std::to_string(later - turn));
    broker.act([&](Broker& of) { of.sessions().cancel(back[turn].session, "it leaves"); });
  }
}
