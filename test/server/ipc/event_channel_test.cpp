#include "server/ipc/event_channel.hpp"

#include <cstring>
#include <memory>

#include <boost/asio/post.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/ipc/shareable.hpp"

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
        EventChannel::Events{.on_message = [this](Message message) { on_message(std::get<Note>(message).text); },
                             .over = [this](const std::string& why) { over = why; }});
    worker.emplace(std::move(theirs), Speaker::broker, 1000);
  }
  void on_message(const std::string& text) {
    notes.push_back(text);
    if (text == "destroy") broker.reset();
  }
  template <class Condition>
  void until(Condition&& condition) {
    while (!condition()) io.run_one_for(std::chrono::minutes(1));
  }
};

}  // namespace

TEST_CASE("messages arrive in order, and then the end") {
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

TEST_CASE("waiting messages are sent when the other end has read") {
  Fixture fixture;
  unsigned sent = 0;
  while (fixture.broker->waiting() < 3) {
    REQUIRE(fixture.broker->send(Warn{std::string(kTextBytesMax, 'x')}));
    ++sent;
  }
  unsigned got = 0;
  while (got < sent) {
    std::optional<Message> message;
    if (fixture.worker->try_receive(message) == Channel::Received::message) ++got;
    else fixture.io.run_one_for(std::chrono::minutes(1));
  }
  CHECK(fixture.broker->waiting() == 0);
}

TEST_CASE("a flooding peer is not read any more, and others have their turn before that") {
  Fixture fixture(EventChannel::Trust::budget);
  size_t others = 0;
  std::function<void()> other = [&] {
    ++others;
    // The worker fills the pair again and again.
    while (fixture.worker->drain() && fixture.worker->send(Note{"and another thing"})) {}
    if (!fixture.over) boost::asio::post(fixture.io, other);
  };
  boost::asio::post(fixture.io, other);
  fixture.until([&] { return fixture.over.has_value(); });
  CHECK(*fixture.over == "more than 2000 messages a second");
  CHECK(others * kMessagesPerTurn >= fixture.notes.size());
}

namespace {

// The broker's end of a worker's channel.
struct Suspicious {
  boost::asio::io_context io{1};
  std::vector<OwnedDescriptor> unwelcome;
  unsigned shares = 0;
  std::optional<std::string> over;
  std::unique_ptr<EventChannel> broker;
  OwnedDescriptor worker;

  Suspicious() {
    OwnedDescriptor ours;
    REQUIRE(open_pair(ours, worker));
    broker = std::make_unique<EventChannel>(
        io, std::move(ours), Speaker::worker, 1000, EventChannel::Trust::budget,
        EventChannel::Events{
            .on_message = [this](Message message) { shares += std::holds_alternative<Share>(message); },
            .over = [this](const std::string& why) { over = why; },
            .unwelcome = [this](OwnedDescriptor descriptor) { unwelcome.push_back(std::move(descriptor)); }});
  }
  void share(OwnedDescriptor descriptor) {
    Channel channel(OwnedDescriptor(::fcntl(worker.get(), F_DUPFD_CLOEXEC, 0)), Speaker::broker, 8);
    REQUIRE(channel.send(Share{1, {}, 1, "user", std::move(descriptor)}));
  }
  template <class Condition>
  void until(Condition&& condition) {
    while (!condition()) io.run_one_for(std::chrono::minutes(1));
  }
};

OwnedDescriptor socket_of_any_kind() { return OwnedDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

}  // namespace

TEST_CASE("a worker shares memory and what stands for a handle") {
  Suspicious fixture;
  fixture.share(OwnedDescriptor(::memfd_create("anything", MFD_CLOEXEC)));
  fixture.share(OwnedDescriptor(::eventfd(0, EFD_CLOEXEC)));
  fixture.until([&] { return fixture.shares == 2; });
  CHECK_FALSE(fixture.over);
}

TEST_CASE(
    "a worker that hands over what may keep its closer is not believed, and nothing of it is closed by who hears") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const OwnedDescriptor pipe[] = {OwnedDescriptor(ends[0]), OwnedDescriptor(ends[1])};
  auto copy = [](const OwnedDescriptor& of) { return OwnedDescriptor(::fcntl(of.get(), F_DUPFD_CLOEXEC, 0)); };
  for (unsigned kind = 0; kind < 3; ++kind) {
    CAPTURE(kind);
    Suspicious fixture;
    fixture.share(kind == 0   ? socket_of_any_kind()
                  : kind == 1 ? copy(pipe[0])
                              : OwnedDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
    fixture.until([&] { return fixture.over.has_value(); });
    CHECK(*fixture.over == kNotShareable);
    CHECK(fixture.unwelcome.size() == 1);
    CHECK(fixture.shares == 0);
  }
}

TEST_CASE("more descriptors than a message has come to who closes them, whatever they are beside") {
  Suspicious fixture;
  const OwnedDescriptor one = socket_of_any_kind();
  std::vector<int> many(200, one.get());
  char nothing = 0;
  iovec part{&nothing, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(200 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  *header = {.cmsg_len = CMSG_LEN(200 * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  std::memcpy(CMSG_DATA(header), many.data(), 200 * sizeof(int));
  REQUIRE(::sendmsg(fixture.worker.get(), &message, MSG_NOSIGNAL) == 1);
  // After the rejected message.
  fixture.share(socket_of_any_kind());
  fixture.until([&] { return fixture.over.has_value(); });
  CHECK(fixture.unwelcome.size() == 200);
  fixture.broker->discard_unread();
  CHECK(fixture.unwelcome.size() == 201);
  fixture.broker.reset();
  CHECK(fixture.unwelcome.size() == 202);  // the pair's own end
}
