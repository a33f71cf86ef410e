#include "server/keeper/keeper.hpp"

#include <chrono>
#include <csignal>
#include <map>
#include <string>
#include <thread>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server/gate/page/session_page.hpp"
#include "test/support/temporary_directory.hpp"

using namespace gpuwire;
using namespace gpuwire::server;

namespace {

const std::string kKey(ipc::kKeeperKeyBytes, 'k');
constexpr uint32_t kLongMs = 600'000;

// A process that does nothing until it is killed.
class Idle {
 public:
  Idle() : pid_(::fork()) {
    if (pid_ != 0) return;
    ::close_range(3, ~0u, 0);  // the test's own ends
    for (;;) ::pause();
  }
  ~Idle() { end(); }
  void end() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  OwnedDescriptor descriptor() const { return OwnedDescriptor(int(::syscall(SYS_pidfd_open, pid_, 0))); }

 private:
  pid_t pid_;
};

OwnedDescriptor copy(int descriptor) { return OwnedDescriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)); }

template <class Kind>
bool says(ipc::Channel& end) {
  auto message = end.await();
  return message && std::holds_alternative<Kind>(*message);
}

struct RunningKeeper {
  test::TemporaryDirectory folder;
  std::optional<ipc::Channel> broker;
  std::thread thread;

  RunningKeeper() {
    OwnedDescriptor own, theirs;
    REQUIRE(ipc::open_pair(own, theirs));
    broker.emplace(std::move(own), ipc::Speaker::keeper, 64);
    say(ipc::Hello{ipc::kKeeperVersion, kKey});
    say(ipc::Grace{kLongMs});
    thread = std::thread([path = path(), end = std::move(theirs)]() mutable { Keeper(path, std::move(end)).run(); });
  }
  ~RunningKeeper() {
    if (!thread.joinable()) return;
    say(ipc::Grace{0});
    broker.reset();
    thread.join();
  }
  std::filesystem::path path() const { return folder.path() / "keeper"; }
  void say(ipc::Message message) { REQUIRE(broker->send(std::move(message))); }
  void put(KeptEntry entry) { say(ipc::Put{std::move(entry)}); }
  std::map<std::string, KeptEntry> all() {
    std::map<std::string, KeptEntry> entries;
    say(ipc::Give{});
    for (;;) {
      auto message = broker->await();
      REQUIRE(message);
      if (auto* given = std::get_if<ipc::Given>(&*message)) {
        CHECK(given->count == entries.size());
        return entries;
      }
      KeptEntry entry = std::move(std::get<ipc::Entry>(*message).entry);
      const std::string name = entry.name;
      entries[name] = std::move(entry);
    }
  }
  OwnedDescriptor connect() const {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path().native().copy(address.sun_path, sizeof address.sun_path - 1);
    OwnedDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    // Its thread may not listen yet.
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      REQUIRE(std::chrono::steady_clock::now() < limit);
      std::this_thread::yield();
    }
    return socket;
  }
  // Replaces a killed broker by another one.
  void change_broker() {
    broker.reset();
    broker.emplace(connect(), ipc::Speaker::keeper, 64);
    say(ipc::Hello{ipc::kKeeperVersion, kKey});
    say(ipc::Grace{kLongMs});
  }
};

// A session whose worker's end of the pair the test holds.
struct Worker {
  Idle process;
  OwnedDescriptor brokers_end;
  std::optional<ipc::Channel> own_end;
  SharedPage<SessionPage> page;

  Worker() {
    OwnedDescriptor own;
    REQUIRE(ipc::open_pair(brokers_end, own));
    own_end.emplace(std::move(own), ipc::Speaker::broker, 8);
    auto made = SharedPage<SessionPage>::create();
    REQUIRE(made);
    page = std::move(*made);
  }
  KeptEntry entry(const std::string& name) const {
    KeptEntry entry{.session = true, .name = name, .text = "text of " + name, .descriptors = {}};
    entry.descriptors.push_back(copy(brokers_end.get()));
    entry.descriptors.push_back(process.descriptor());
    entry.descriptors.push_back(copy(page.descriptor()));
    entry.descriptors.emplace_back();  // no doorbell
    return entry;
  }
};

}  // namespace

TEST_CASE("the next broker gets the entries that one broker has put, noted and removed") {
  RunningKeeper keeper;
  Worker worker;
  keeper.put(worker.entry("session/1"));
  keeper.put({.session = false, .name = "gone", .text = "x", .descriptors = {}});
  keeper.put({.session = false, .name = "text alone", .text = "before", .descriptors = {}});
  keeper.say(ipc::Remove{"gone"});
  keeper.say(ipc::Rewrite{"text alone", "after"});
  keeper.say(ipc::Rewrite{"never put", "x"});
  keeper.change_broker();
  auto all = keeper.all();
  REQUIRE(all.size() == 2);
  CHECK(all["text alone"].text == "after");
  CHECK_FALSE(all["text alone"].session);
  const KeptEntry& session = all["session/1"];
  CHECK(session.session);
  CHECK(session.text == "text of session/1");
  REQUIRE(session.descriptors.size() == kKeptDescriptors);
  // The entry has the worker's pair, whose other end the worker still has.
  CHECK_FALSE(session.descriptors[size_t(KeptDescriptor::doorbell)]);
  REQUIRE(says<ipc::Unattended>(*worker.own_end));
  ipc::Channel to_worker(copy(session.descriptors[size_t(KeptDescriptor::worker)].get()), ipc::Speaker::worker, 1);
  REQUIRE(to_worker.send(ipc::Adopted{}));
  CHECK(says<ipc::Adopted>(*worker.own_end));
}

TEST_CASE("a peer without the key, or of another version, gets nothing and disturbs nobody") {
  RunningKeeper keeper;
  keeper.put({.session = false, .name = "secret", .text = "x", .descriptors = {}});
  REQUIRE(keeper.all().size() == 1);
  const std::pair<uint32_t, std::string> wrong[] = {{ipc::kKeeperVersion, std::string(ipc::kKeeperKeyBytes, 'x')},
                                                    {ipc::kKeeperVersion, ""},
                                                    {ipc::kKeeperVersion, kKey + "k"},
                                                    {ipc::kKeeperVersion + 1, kKey}};
  for (const auto& [version, key] : wrong) {
    ipc::Channel stranger(keeper.connect(), ipc::Speaker::keeper, 8);
    stranger.send(ipc::Hello{version, key});
    stranger.send(ipc::Give{});
    CHECK_FALSE(stranger.await());
  }
  CHECK(keeper.all().size() == 1);
}

TEST_CASE("a session without a broker is told so, and its gate opens") {
  RunningKeeper keeper;
  Worker worker;
  worker.page->gate = GateWord::of(false, true, {});
  keeper.put(worker.entry("session/1"));
  keeper.all();  // the message has arrived
  keeper.broker.reset();
  CHECK(says<ipc::Unattended>(*worker.own_end));
  while (worker.page->gate.load() != 0) ::poll(nullptr, 0, 1);
  CHECK(worker.page->attention.load() != 0);
  keeper.change_broker();
  CHECK(keeper.all().size() == 1);
}

TEST_CASE("a session whose worker has ended meanwhile is given all the same, so that its end is accounted for") {
  RunningKeeper keeper;
  Worker ends, stays;
  keeper.put(ends.entry("session/1"));
  keeper.put(stays.entry("session/2"));
  keeper.all();
  keeper.broker.reset();
  REQUIRE(stays.own_end->await());
  ends.process.end();
  keeper.change_broker();
  CHECK(keeper.all().size() == 2);
}

TEST_CASE("a keeper ends with its broker when no session lives, and leaves no socket") {
  RunningKeeper keeper;
  Worker worker;
  keeper.put(worker.entry("session/1"));
  keeper.put({.session = false, .name = "inventory", .text = "x", .descriptors = {}});
  keeper.all();
  worker.process.end();
  keeper.broker.reset();
  keeper.thread.join();
  CHECK_FALSE(std::filesystem::exists(keeper.path()));
}

TEST_CASE("a session to which no broker comes in time finds nobody at the other end") {
  RunningKeeper keeper;
  Worker worker;
  keeper.put(worker.entry("session/1"));
  keeper.say(ipc::Grace{1});
  worker.brokers_end.reset();
  keeper.broker.reset();
  keeper.thread.join();
  CHECK(says<ipc::Unattended>(*worker.own_end));
  CHECK_FALSE(worker.own_end->await());
}

TEST_CASE("a keeper that has something for the next broker waits for it, though no session lives") {
  RunningKeeper keeper;
  keeper.put({.session = false, .awaited = true, .name = "place/1", .text = "x", .descriptors = {}});
  keeper.all();
  keeper.change_broker();
  auto all = keeper.all();
  REQUIRE(all.size() == 1);
  CHECK(all["place/1"].awaited);
  CHECK_FALSE(all["place/1"].session);
}
