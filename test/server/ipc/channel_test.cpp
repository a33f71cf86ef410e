#include "server/ipc/channel.hpp"

#include <atomic>
#include <thread>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace gpuwire::server;
using namespace gpuwire::server::ipc;
using std::chrono::milliseconds;

namespace {

constexpr size_t kWaitingMax = 16;

struct Pair {
  OwnedDescriptor broker_end, worker_end;
  Pair() { REQUIRE(open_pair(broker_end, worker_end)); }
  Channel broker(std::function<void()> full = {}) {
    return Channel(std::move(broker_end), Speaker::worker, kWaitingMax, std::move(full));
  }
  Channel worker() { return Channel(std::move(worker_end), Speaker::broker, kWaitingMax); }
};

// Sends until the pair is full.
unsigned fill(Channel& channel) {
  unsigned sent = 0;
  while (channel.waiting() == 0 && channel.send(Warn{std::string(kTextBytesMax, 'x')})) ++sent;
  return sent;
}

}  // namespace

TEST_CASE("a message arrives whole, with its descriptor, which closes on exec, and is the sender's no more") {
  Pair pair;
  Channel broker = pair.broker(), worker = pair.worker();
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
  OwnedDescriptor peer(ends[1]);
  Message sent = Attach{OwnedDescriptor(ends[0]), std::string(kTlsKeyBytes, 'k')};
  REQUIRE(broker.send(std::move(sent)));
  struct stat facts {};
  CHECK(::fstat(ends[0], &facts) != 0);
  auto got = worker.await();
  REQUIRE(got);
  Attach& attach = std::get<Attach>(*got);
  CHECK(attach.tls_key == std::string(kTlsKeyBytes, 'k'));
  REQUIRE(attach.socket);
  CHECK((::fcntl(attach.socket.get(), F_GETFD) & FD_CLOEXEC) != 0);
  char byte = 'x';
  CHECK(::write(attach.socket.get(), &byte, 1) == 1);
  CHECK(::read(peer.get(), &byte, 1) == 1);
}

TEST_CASE("nothing there is not the end, and the end is not a message") {
  Pair pair;
  Channel worker = pair.worker();
  std::optional<Message> got;
  CHECK(worker.try_receive(got) == Channel::Received::none_yet);
  CHECK_FALSE(worker.await(milliseconds(1)));
  pair.broker_end.reset();
  CHECK(worker.try_receive(got) == Channel::Received::closed);
  CHECK_FALSE(worker.await());
  CHECK_FALSE(worker.send(Note{"nobody reads it"}));
}

TEST_CASE("messages from before the end arrive") {
  Pair pair;
  Channel broker = pair.broker();
  {
    Channel worker = pair.worker();
    REQUIRE(worker.send(Ended{EndCause::finished, "done"}));
  }
  auto got = broker.await();
  REQUIRE(got);
  CHECK(std::get<Ended>(*got).why == "done");
  CHECK_FALSE(broker.await());
}

TEST_CASE("bytes that are no message, and a message of another, end what is believed") {
  Pair pair;
  Channel broker = pair.broker();
  std::optional<Message> got;
  auto heard = [&](std::string_view said) {
    REQUIRE(::send(pair.worker_end.get(), said.data(), said.size(), MSG_NOSIGNAL) == ssize_t(said.size()));
    return broker.try_receive(got);
  };
  CHECK(heard("and another thing") == Channel::Received::nonsense);
  CHECK(broker.fault() == "what cannot be: 17 bytes");
  CHECK(heard("") == Channel::Received::nonsense);
  CHECK(broker.fault() == "what cannot be: no bytes");
  CHECK(heard(std::string(kPacketBytesMax + 8, ' ')) == Channel::Received::nonsense);
  Message stop = Stop{"so says the worker"};
  Packet packet = encode(stop);
  CHECK(heard({reinterpret_cast<const char*>(packet.bytes().data()), packet.bytes().size()}) ==
        Channel::Received::nonsense);
  CHECK_FALSE(got);
}

TEST_CASE(
    "messages wait in order while the pair is full, a bounded number, and the sender is told when one begins to") {
  Pair pair;
  unsigned told = 0;
  Channel broker = pair.broker([&] { ++told; }), worker = pair.worker();
  unsigned sent = fill(broker);
  CHECK(told == 1);
  CHECK((broker.events() & POLLOUT) != 0);
  Message last = Stop{"later"};
  while (broker.send(Stop{"later"})) ++sent;
  CHECK(told == 1);
  CHECK(broker.waiting() == kWaitingMax);
  CHECK_FALSE(broker.send(std::move(last)));
  CHECK(std::get<Stop>(last).why == "later");  // still the sender's
  unsigned warnings = 0, stops = 0;
  while (warnings + stops < sent) {
    auto got = worker.await();
    REQUIRE(got);
    if (std::holds_alternative<Warn>(*got)) {
      CHECK(stops == 0);
      ++warnings;
    } else {
      ++stops;
    }
    broker.drain();
  }
  CHECK(broker.waiting() == 0);
  CHECK((broker.events() & POLLOUT) == 0);
}

TEST_CASE("a flush goes on until all has been read, and no longer than it may") {
  Pair pair;
  Channel broker = pair.broker(), worker = pair.worker();
  fill(broker);
  CHECK_FALSE(broker.flush(milliseconds(1)));
  std::thread reader([&] {
    while (auto got = worker.await()) {
      if (std::holds_alternative<Stop>(*got)) return;
    }
  });
  REQUIRE(broker.send(Stop{"last"}));
  CHECK(broker.flush(std::chrono::minutes(5)));
  reader.join();
}

TEST_CASE("threads that send at once are all heard") {
  constexpr unsigned kThreads = 4, kEach = 500;
  Pair pair;
  Channel broker = pair.broker(), worker(std::move(pair.worker_end), Speaker::broker, kThreads * kEach);
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      for (unsigned j = 0; j < kEach; ++j) REQUIRE(worker.send(MemoryWanted{j, i, 1}));
    });
  std::array<unsigned, kThreads> next{};
  for (unsigned heard = 0; heard < kThreads * kEach; ++heard) {
    std::optional<Message> got;
    while (broker.try_receive(got) != Channel::Received::message) worker.drain();
    auto& wanted = std::get<MemoryWanted>(*got);
    CHECK(wanted.request == next[wanted.column]++);  // each thread's messages in order
  }
  for (std::thread& thread : threads) thread.join();
}
