// What is RDMA's alone: tokens, and peers that break the rules. Where the plug-in is not there, nothing is tested.
#include <doctest/doctest.h>

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "protocol/transport/rdma.hpp"
#include "protocol/transport/rdma_plugin.hpp"
#include "protocol/transport/rdma_window.hpp"
#include "protocol/transport/unix.hpp"
#include "test/protocol/transport/pairs.hpp"

// An end that UCX cannot close safely is left to it (protocol/transport/ucx/plugin.cpp): what it still holds then is no
// leak of ours. Called by the leak sanitizer, where there is one.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() {
  return "leak:libucs.so\nleak:libucp.so\nleak:libuct\n";
}

using namespace gpuwire;
using namespace gpuwire::transport;
using rdma::Header;
using rdma::Kind;

namespace {

constexpr std::chrono::seconds kLimit{120};
// What somebody who is not heard is given to be heard in.
constexpr std::chrono::milliseconds kNothing{50};

std::shared_ptr<RdmaFabric> fabric() {
  auto found = test::rdma_fabric("tcp");
  if (!found) MESSAGE("left out: ", found.error());
  return found ? *found : nullptr;
}

std::unique_ptr<RdmaEnd> end_of(const std::shared_ptr<RdmaFabric>& fabric) {
  auto end = RdmaEnd::make(fabric);
  REQUIRE(end.has_value());
  return std::move(*end);
}

// Somebody who has the plug-in and says what he likes.
class Stranger {
 public:
  Stranger(const std::shared_ptr<RdmaFabric>& fabric, const std::string& to) : fabric_(fabric) {
    char error[256] = {};
    end_ = plugin().make(fabric->handle(), &kEvents, this, memory_.data(), memory_.size(), error, sizeof error);
    REQUIRE_MESSAGE(end_, error);
    REQUIRE_MESSAGE(plugin().connect(end_, to.data(), to.size(), error, sizeof error), error);
  }
  ~Stranger() {
    if (end_) plugin().close(end_);
  }
  // Is the memory free then? If not, it stays.
  bool close() {
    static std::vector<std::vector<std::byte>> kept;
    bool free = plugin().close(std::exchange(end_, nullptr)) != 0;
    if (!free) kept.push_back(std::move(memory_));
    return free;
  }

  std::string address() {
    std::string bytes(rdma::kAddressBytesMax, '\0');
    bytes.resize(plugin().address(end_, bytes.data(), bytes.size()));
    return bytes;
  }
  // Until it has left.
  void say(const Header& header, size_t bytes = 0, size_t header_bytes = sizeof(Header)) {
    begin_to_say(header, bytes, header_bytes);
    while (under_way_ && !broken_) plugin().progress(end_);
  }
  // False: it has left, or never will.
  bool begin_to_say(const Header& header, size_t bytes, size_t header_bytes = sizeof(Header)) {
    header_ = header;
    under_way_ = plugin().send(end_, &header_, header_bytes, memory_.data(), bytes, 0) == kGpuwireRdmaUnderWay;
    return under_way_;
  }
  void progress() { plugin().progress(end_); }

 private:
  const GpuwireRdmaPlugin& plugin() const { return fabric_->plugin(); }
  static const GpuwireRdmaEvents kEvents;

  std::shared_ptr<RdmaFabric> fabric_;
  std::vector<std::byte> memory_{1u << 20};
  GpuwireRdmaEnd* end_ = nullptr;
  Header header_;
  bool under_way_ = false, broken_ = false;
};

const GpuwireRdmaEvents Stranger::kEvents = {
    [](void*, const void*, size_t, const void*, size_t, void*) { return 0; },
    [](void* user, uint64_t, int) { static_cast<Stranger*>(user)->under_way_ = false; }, [](void*, uint64_t, int) {},
    [](void* user, const char*) { static_cast<Stranger*>(user)->broken_ = true; }};

// A connection whose other end may say what it likes.
struct Hostile {
  explicit Hostile(const std::shared_ptr<RdmaFabric>& fabric)
      : victim(end_of(fabric)), peer(fabric, victim->address()) {
    token = victim->token();
    victim->greet_back(peer.address(), {});
    peer.say({.kind = Kind::greeting, .token = token});
    for (int tries = 0; tries < 60'000 && !victim->await_greeting(std::chrono::milliseconds(1)); ++tries)
      peer.progress();
    REQUIRE(victim->await_greeting(kLimit));
    auto pair = unix_pair();
    REQUIRE(pair.has_value());
    beside = std::move(pair->second);
    connection = RdmaEnd::carry(std::move(victim), std::move(pair->first));
  }
  // What the victim then says of the connection.
  IoResult outcome() {
    std::byte out[4096];
    IoResult got;
    do {
      peer.progress();
      connection->wait(kReadable, std::chrono::milliseconds(1));
      got = connection->try_receive(out);
    } while (got.status == IoStatus::ok || got.status == IoStatus::would_block);
    return got;
  }

  std::unique_ptr<RdmaEnd> victim;
  Stranger peer;
  rdma::Token token;
  std::unique_ptr<Transport> beside, connection;
};

}  // namespace

TEST_CASE("a peer that does not show the token is ignored, and keeps nobody out who does") {
  auto there = fabric();
  if (!there) return;
  auto end = end_of(there), stranger = end_of(there), peer = end_of(there);
  end->greet_back(peer->address(), peer->token());
  rdma::Token wrong = end->token();
  wrong[15] ^= 1;
  REQUIRE(stranger->greet(end->address(), wrong).has_value());
  while (end->refused() == 0 && !end->await_greeting(std::chrono::milliseconds(1))) {}
  CHECK_FALSE(end->await_greeting(kNothing));
  CHECK_FALSE(stranger->await_greeting(kNothing));
  Stranger raw(there, end->address());
  raw.say({.kind = Kind::data, .bytes = 1000}, 1000);
  raw.say({.magic = 0, .kind = Kind::greeting, .token = end->token()});
  raw.say({.kind = Kind::greeting, .token = end->token()}, 0, sizeof(Header) - 8);
  while (end->refused() < 4 && !end->await_greeting(std::chrono::milliseconds(1))) raw.progress();
  CHECK_FALSE(end->await_greeting(kNothing));
  REQUIRE(peer->greet(end->address(), end->token()).has_value());
  CHECK(peer->await_greeting(kLimit));
  CHECK(end->await_greeting(kLimit));
}

TEST_CASE("an end that is not greeted says nothing to anybody") {
  auto there = fabric();
  if (!there) return;
  auto end = end_of(there), other = end_of(there);
  end->greet_back(other->address(), other->token());
  CHECK_FALSE(end->await_greeting(kNothing));
  CHECK_FALSE(other->await_greeting(kNothing));
  CHECK(end->failure().empty());
}

TEST_CASE("an end that goes while it is being connected takes nothing with it, wherever the other one is") {
  auto fabric = ::fabric();
  if (!fabric) return;
  std::minstd_rand random(unsigned(test::test_seed()));
  for (int round = 0; round < 300; ++round) {
    auto one = end_of(fabric), other = end_of(fabric);
    std::string there = other->address();
    auto token = other->token();
    const bool gone = round % 3 == 0;
    if (gone) other.reset();
    else if (round % 3 == 1) CHECK(other->greet(one->address(), one->token()));
    else other->greet_back(one->address(), one->token());
    if (!one->greet(there, token)) continue;
    // How far it gets is the machine's to say.
    for (unsigned turns = random() % 50; turns != 0; --turns) std::this_thread::yield();
    one.reset();
  }
}

TEST_CASE("an end that nobody has answered gives its memory back, unless something under way is about that") {
  auto fabric = ::fabric();
  if (!fabric) return;
  auto other = end_of(fabric);
  Stranger silent(fabric, other->address());
  silent.say({.kind = Kind::greeting});  // so that it can be closed; from here on it does nothing
  for (size_t bytes : {0, 1000}) {
    Stranger unanswered(fabric, silent.address());
    REQUIRE(unanswered.begin_to_say({.kind = Kind::data, .bytes = uint32_t(bytes)}, bytes));
    CHECK(unanswered.close() == (bytes == 0));
  }
}

TEST_CASE("a peer that has the token and breaks the rules ends its connection, and is damaged") {
  auto there = fabric();
  if (!there) return;
  struct Breach {
    const char* what;
    Header header;
    size_t bytes;
  };
  const Breach breaches[] = {
      {"no place at that position", {.kind = Kind::data, .position = rdma::kWindowBytes, .bytes = 1}, 1},
      {"a place that is left out", {.kind = Kind::data, .position = 1, .bytes = 1}, 1},
      {"over the edge of the window", {.kind = Kind::data, .position = rdma::kWindowBytes - 1, .bytes = 2}, 2},
      {"longer than it says", {.kind = Kind::data, .bytes = 1}, 2},
      {"longer than any message",
       {.kind = Kind::data, .bytes = rdma::kMessageBytesMax + 1},
       rdma::kMessageBytesMax + 1},
      {"empty", {.kind = Kind::data}, 0},
      {"far ahead", {.kind = Kind::data, .number = rdma::kMessagesMax, .bytes = 1}, 1},
      {"a number that wraps", {.kind = Kind::data, .number = ~0ull, .position = ~0ull, .bytes = 1}, 1},
      {"taken what was not sent", {.kind = Kind::taken, .taken_bytes = 1}, 0},
      {"taken messages that were not sent", {.kind = Kind::taken, .taken_messages = ~0ull}, 0},
      {"bytes behind an end", {.kind = Kind::end}, 1},
      {"of no kind", {.kind = Kind(77)}, 0},
  };
  for (const Breach& breach : breaches) {
    INFO(breach.what);
    Hostile hostile(there);
    Header header = breach.header;
    header.token = hostile.token;
    hostile.peer.say(header, breach.bytes);
    CHECK(hostile.outcome().status == IoStatus::failed);
    CHECK(hostile.connection->damaged());
    CHECK_FALSE(hostile.connection->failure().empty());
  }
}

TEST_CASE("bytes beside the fabric, where none belong, end the connection") {
  auto there = fabric();
  if (!there) return;
  Hostile hostile(there);
  std::byte byte{1};
  iovec piece{&byte, 1};
  REQUIRE(hostile.beside->try_send({&piece, 1}).status == IoStatus::ok);
  CHECK(hostile.outcome().status == IoStatus::failed);
  CHECK(hostile.connection->damaged());
}

TEST_CASE("an end says two things only once, and nothing comes behind it") {
  auto there = fabric();
  if (!there) return;
  Hostile hostile(there);
  hostile.peer.say({.kind = Kind::end, .token = hostile.token});
  CHECK(hostile.outcome().status == IoStatus::closed);
  hostile.peer.say({.kind = Kind::end, .token = hostile.token});
  while (hostile.connection->failure().empty()) hostile.peer.progress();
  CHECK(hostile.connection->damaged());
}

TEST_CASE("no header makes the receiver write beside the window or return data that have not arrived") {
  std::mt19937_64 random(test::test_seed());
  INFO("seed ", test::test_seed());
  std::vector<std::byte> window(rdma::kWindowBytes), out(1u << 16);
  for (int round = 0; round < 50; ++round) {
    rdma::Incoming in(window.data());
    uint64_t position = 0, number = 0;
    for (int step = 0; step < 200; ++step) {
      Header header{.kind = Kind::data,
                    .number = random() % 3   ? number
                              : random() % 4 ? number + random() % 300
                                             : random(),
                    .position = random() % 3   ? position
                                : random() % 4 ? position + random() % 5'000'000
                                               : random(),
                    .bytes = uint32_t(random() % 4 ? random() % 300'000 : random())};
      if (std::byte* into = in.expect(header)) {
        REQUIRE(into >= window.data());
        REQUIRE(into + header.bytes <= window.data() + window.size());
        if (!in.come(header.number)) break;
        number = std::max(number, header.number + 1);
        position = in.received();
      }
      REQUIRE(in.available() <= window.size());
      uint64_t before = in.taken();
      size_t got = in.take(std::span(out).first(random() % out.size()));
      REQUIRE(in.taken() == before + got);
      REQUIRE(in.taken() <= in.received());
    }
  }
}

TEST_CASE("messages that come in any order are one stream, and places are used again only when they are free") {
  std::mt19937_64 random(test::test_seed());
  INFO("seed ", test::test_seed());
  std::vector<std::byte> there(rdma::kWindowBytes), here(rdma::kWindowBytes);
  rdma::Outgoing out(there.data());
  rdma::Incoming in(here.data());
  std::vector<rdma::Outgoing::Message> under_way, to_release;
  uint64_t sent = 0, got = 0;
  auto byte_at = [](uint64_t position) { return std::byte(position * 0x9e3779b97f4a7c15ull >> 56); };
  constexpr uint64_t kBytes = 3 * rdma::kWindowBytes;
  std::vector<std::byte> taken(1u << 20);
  while (got < kBytes) {
    if (size_t room = out.room(); room && random() % 2) {
      size_t bytes = std::min<size_t>(room, 1 + random() % 300'000);
      for (size_t i = 0; i < bytes; ++i) out.place()[i] = byte_at(sent + i);
      under_way.push_back(out.add(bytes));
      sent += bytes;
    }
    if (!under_way.empty() && random() % 2) {
      size_t which = random() % under_way.size();
      auto message = under_way[which];
      under_way.erase(under_way.begin() + long(which));
      std::byte* into = in.expect(*message.header);
      REQUIRE(into);
      std::memcpy(into, message.data, message.header->bytes);
      REQUIRE(in.come(message.number));
      to_release.push_back(message);
    }
    if (!to_release.empty() && random() % 2) {
      size_t which = random() % to_release.size();
      out.released(to_release[which].number);
      to_release.erase(to_release.begin() + long(which));
    }
    size_t step = in.take(std::span(taken).first(random() % taken.size()));
    for (size_t i = 0; i < step; ++i)
      if (taken[i] != byte_at(got + i)) FAIL("a wrong byte at ", got + i);
    got += step;
    if (random() % 4 == 0) REQUIRE(out.taken(in.taken(), in.taken_messages()));
  }
}

TEST_CASE("a child after fork has nothing of the connection, and the parent's goes on") {
  auto there = fabric();
  if (!there) return;
  for (const auto& kind : test::pair_kinds()) {
    if (!kind.name.starts_with("rdma")) continue;
    INFO(kind.name);
    auto ends = kind.make(1);
    pid_t child = fork();
    if (child == 0) {
      ends.first->abandon_after_fork();
      _exit(0);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    std::vector<std::byte> bytes(1'000'000, std::byte(7)), got(bytes.size());
    std::thread sender([&] {
      iovec piece{bytes.data(), bytes.size()};
      send_all(*ends.first, {&piece, 1}, kLimit);
    });
    CHECK(receive_all(*ends.second, got, kLimit).status == IoStatus::ok);
    sender.join();
    CHECK(got == bytes);
  }
}

TEST_CASE("the library takes no signal of the program's") {
  auto there = fabric();
  if (!there) return;
  for (int number = 1; number < SIGRTMAX; ++number) {
    struct sigaction action {};
    if (sigaction(number, nullptr, &action) != 0 || action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)
      continue;
    Dl_info holder{};
    dladdr(reinterpret_cast<void*>(action.sa_handler), &holder);
    INFO("signal ", number, " is ", holder.dli_fname ? holder.dli_fname : "?");
    CHECK(std::string_view(holder.dli_fname ? holder.dli_fname : "").find("libuc") == std::string_view::npos);
  }
}

namespace {

// Descriptors at which this process can be connected to.
std::set<int> listening() {
  std::set<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    int listens = 0;
    socklen_t bytes = sizeof listens;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) == 0 && listens) found.insert(descriptor);
  }
  return found;
}

std::set<int> listening_with(const std::shared_ptr<RdmaFabric>& fabric) {
  const std::set<int> before = listening();
  auto end = end_of(fabric);
  std::set<int> more = listening();
  for (int descriptor : before) more.erase(descriptor);
  return more;
}

}  // namespace

TEST_CASE("nobody can connect to a process for its RDMA, unless it was told to use UCX's TCP") {
  auto told = fabric();
  if (!told) return;
  CHECK_FALSE(listening_with(told).empty());
  for (const char* name : {"UCX_TLS", "GPUWIRE_UCX_TLS"}) unsetenv(name);
  for (bool confined : {false, true}) {
    INFO(confined);
    auto untold = RdmaFabric::open(test::rdma_plugin(), confined);
    REQUIRE(untold.has_value());
    CHECK(listening_with(*untold).empty());
  }
}

TEST_CASE("a plug-in that is not there is told in words") {
  auto none = RdmaFabric::open("/nowhere/libgpuwire_rdma.so");
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().find("/nowhere/libgpuwire_rdma.so") != std::string::npos);
}
