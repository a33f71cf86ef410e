#include "server/ipc/event_channel.hpp"

#include <memory>

#include <boost/asio/post.hpp>
#include <doctest/doctest.h>
#include <sys/socket.h>

using namespace gpuwire::server;
using namespace gpuwire::server::ipc;

namespace {

struct Fixture {
  boost::asio::io_context io{1};
  std::unique_ptr<EventChannel> broker;
  std::optional<Channel> worker;
  std::vector<std::string> notes;
  std::optional<std::string> over;

  explicit Fixture(EventChannel::Trust trust = EventChannel::Trust::full) {
    OwnedDescriptor ours, theirs;
    REQUIRE(open_pair(ours, theirs));
    broker = std::make_unique<EventChannel>(
        io, std::move(ours), Speaker::worker, 1000, trust,
        EventChannel::Events{.heard = [this](Message message) { heard(std::get<Note>(message).text); },
                             .over = [this](const std::string& why) { over = why; }});
    worker.emplace(std::move(theirs), Speaker::broker, 1000);
  }
  void heard(const std::string& text) {
    notes.push_back(text);
    if (text == "destroy") broker.reset();
  }
  template <class Condition>
  void until(Condition&& condition) {
    while (!condition()) io.run_one_for(std::chrono::minutes(1));
  }
};

}  // namespace

TEST_CASE("what is said is heard in order, and then the end") {
  Fixture fixture;
  for (const char* text : {"one", "two", "three"}) REQUIRE(fixture.worker->send(Note{text}));
  fixture.worker.reset();
  fixture.until([&] { return fixture.over.has_value(); });
  CHECK(fixture.notes == std::vector<std::string>{"one", "two", "three"});
  CHECK(*fixture.over == "");
}

TEST_CASE("nothing is heard after nonsense, which is told") {
  Fixture fixture;
  REQUIRE(fixture.worker->send(Note{"one"}));
  REQUIRE(::send(fixture.worker->descriptor(), "nonsense", 5, MSG_NOSIGNAL) == 5);
  REQUIRE(fixture.worker->send(Note{"two"}));
  fixture.until([&] { return fixture.over.has_value(); });
  CHECK(*fixture.over == "what cannot be: 5 bytes");
  fixture.broker->hear_rest(10);
  fixture.io.poll();
  CHECK(fixture.notes == std::vector<std::string>{"one"});
}

TEST_CASE("a channel may go while it tells what it has heard") {
  Fixture fixture;
  REQUIRE(fixture.worker->send(Note{"destroy"}));
  REQUIRE(fixture.worker->send(Note{"unheard"}));
  fixture.until([&] { return !fixture.broker; });
  fixture.io.poll();
  CHECK(fixture.notes == std::vector<std::string>{"destroy"});
}

TEST_CASE("what waits is sent when the other end has read") {
  Fixture fixture;
  unsigned sent = 0;
  while (fixture.broker->waiting() < 3) {
    REQUIRE(fixture.broker->send(Warn{std::string(kTextBytesMax, 'x')}));
    ++sent;
  }
  unsigned got = 0;
  while (got < sent) {
    std::optional<Message> message;
    if (fixture.worker->hear(message) == Channel::Heard::message) ++got;
    else fixture.io.run_one_for(std::chrono::minutes(1));
  }
  CHECK(fixture.broker->waiting() == 0);
}

TEST_CASE("who floods is not listened to any more, and others have their turn before that") {
  Fixture fixture(EventChannel::Trust::budget);
  size_t others = 0;
  std::function<void()> other = [&] {
    ++others;
    // It says as much as the pair takes, again and again.
    while (fixture.worker->drain() && fixture.worker->send(Note{"and another thing"})) {}
    if (!fixture.over) boost::asio::post(fixture.io, other);
  };
  boost::asio::post(fixture.io, other);
  fixture.until([&] { return fixture.over.has_value(); });
  CHECK(*fixture.over == "more than 2000 messages a second");
  CHECK(others * kMessagesPerTurn >= fixture.notes.size());
}
