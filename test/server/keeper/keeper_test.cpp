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

const std::string kKey(kKeeperKeyBytes, 'k');
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

// Waits for the next message; nothing: the other end is closed.
std::optional<IpcMessage> next(const OwnedDescriptor& end) {
  IpcMessage message;
  if (receive_ipc_message(end.get(), true, message) != IpcMessageReceived::message) return std::nullopt;
  return message;
}

struct RunningKeeper {
  test::TemporaryDirectory folder;
  OwnedDescriptor broker;
  std::thread thread;

  RunningKeeper() {
    OwnedDescriptor theirs;
    REQUIRE(open_ipc_message(broker, theirs));
    say(KeeperKind::hello, kKeeperVersion, kKey);
    say(KeeperKind::settings, kLongMs);
    thread = std::thread([path = path(), end = std::move(theirs)]() mutable { Keeper(path, std::move(end)).run(); });
  }
  ~RunningKeeper() {
    if (!thread.joinable()) return;
    say(KeeperKind::settings, 0);
    broker.reset();
    thread.join();
  }
  std::filesystem::path path() const { return folder.path() / "keeper"; }
  void say(KeeperKind kind, uint32_t number = 0, std::string text = {}) {
    REQUIRE(send_ipc_message(broker.get(), keeper_message(kind, number, std::move(text))));
  }
  void put(KeptEntry entry) {
    REQUIRE(send_ipc_message(broker.get(), entry_message(KeeperKind::put, std::move(entry))));
  }
  std::map<std::string, KeptEntry> all() {
    std::map<std::string, KeptEntry> entries;
    say(KeeperKind::give);
    for (;;) {
      auto message = next(broker);
      REQUIRE(message);
      if (keeper_kind(*message) == KeeperKind::given) {
        CHECK(message->number == entries.size());
        return entries;
      }
      auto entry = entry_of(std::move(*message));
      REQUIRE(entry);
      entries[entry->name] = std::move(*entry);
    }
  }
  OwnedDescriptor connect() const {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path().native().copy(address.sun_path, sizeof address.sun_path - 1);
    OwnedDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    // Its thread may not have come so far as to listen.
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      REQUIRE(std::chrono::steady_clock::now() < limit);
      std::this_thread::yield();
    }
    return socket;
  }
  // As a broker that was killed, and another one.
  void change_broker() {
    broker.reset();
    broker = connect();
    say(KeeperKind::hello, kKeeperVersion, kKey);
    say(KeeperKind::settings, kLongMs);
  }
};

// A session whose worker's end of the pair is the test's.
struct Worker {
  Idle process;
  OwnedDescriptor brokers_end, own_end;
  MappedPage page;

  Worker() {
    REQUIRE(open_ipc_message(brokers_end, own_end));
    auto made = MappedPage::create();
    REQUIRE(made);
    page = std::move(*made);
  }
  KeptEntry entry(const std::string& name) const {
    KeptEntry entry{.session = true, .name = name, .text = "text of " + name, .descriptors = {}};
    entry.descriptors.push_back(copy(brokers_end.get()));
    entry.descriptors.push_back(process.descriptor());
    entry.descriptors.push_back(copy(page.descriptor()));
    entry.descriptors.push_back(nothing());
    return entry;
  }
};

}  // namespace

TEST_CASE("what one broker has put, noted and removed, the next one is given") {
  RunningKeeper keeper;
  Worker worker;
  keeper.put(worker.entry("session/1"));
  keeper.put({.session = false, .name = "gone", .text = "x", .descriptors = {}});
  keeper.put({.session = false, .name = "text alone", .text = "before", .descriptors = {}});
  keeper.say(KeeperKind::remove, 0, "gone");
  REQUIRE(send_ipc_message(
      keeper.broker.get(),
      entry_message(KeeperKind::note, {.session = false, .name = "text alone", .text = "after", .descriptors = {}})));
  REQUIRE(send_ipc_message(
      keeper.broker.get(),
      entry_message(KeeperKind::note, {.session = false, .name = "never put", .text = "x", .descriptors = {}})));
  keeper.change_broker();
  auto all = keeper.all();
  REQUIRE(all.size() == 2);
  CHECK(all["text alone"].text == "after");
  CHECK_FALSE(all["text alone"].session);
  const KeptEntry& session = all["session/1"];
  CHECK(session.session);
  CHECK(session.text == "text of session/1");
  REQUIRE(session.descriptors.size() == kKeptDescriptors);
  // It is the worker's pair, whose other end is still the worker's own.
  IpcMessage word;
  word.kind = IpcMessageKind::adopted;
  REQUIRE(next(worker.own_end)->kind == IpcMessageKind::unattended);
  REQUIRE(send_ipc_message(session.descriptors[size_t(KeptDescriptor::worker)].get(), word));
  CHECK(next(worker.own_end)->kind == IpcMessageKind::adopted);
}

TEST_CASE("who does not know the key, or speaks another version, is given nothing and disturbs nobody") {
  RunningKeeper keeper;
  keeper.put({.session = false, .name = "secret", .text = "x", .descriptors = {}});
  REQUIRE(keeper.all().size() == 1);
  const std::pair<uint32_t, std::string> wrong[] = {{kKeeperVersion, std::string(kKeeperKeyBytes, 'x')},
                                                    {kKeeperVersion, ""},
                                                    {kKeeperVersion, kKey + "k"},
                                                    {kKeeperVersion + 1, kKey}};
  for (const auto& [version, key] : wrong) {
    OwnedDescriptor stranger = keeper.connect();
    send_ipc_message(stranger.get(), keeper_message(KeeperKind::hello, version, key));
    send_ipc_message(stranger.get(), keeper_message(KeeperKind::give));
    CHECK_FALSE(next(stranger));
  }
  CHECK(keeper.all().size() == 1);
}

TEST_CASE("a session without a broker is told so, and its gate opens") {
  RunningKeeper keeper;
  Worker worker;
  worker.page->gate = GateWord::of(false, true, {});
  keeper.put(worker.entry("session/1"));
  keeper.all();  // it has come
  keeper.broker.reset();
  CHECK(next(worker.own_end)->kind == IpcMessageKind::unattended);
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
  REQUIRE(next(stays.own_end));
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
  keeper.say(KeeperKind::settings, 1);
  worker.brokers_end.reset();
  keeper.broker.reset();
  keeper.thread.join();
  CHECK(next(worker.own_end)->kind == IpcMessageKind::unattended);
  CHECK_FALSE(next(worker.own_end));
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
