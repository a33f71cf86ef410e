// Reconnection to a server whose name has several addresses, some of them of other servers.
#include "client_stub/session/server_reconnector.hpp"

#include <doctest/doctest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "protocol/resume/exchange.hpp"
#include "protocol/tls/token_challenge.hpp"
#include "protocol/transport/frame_receiver.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/wire/message_reader.hpp"
#include "protocol/wire/preface.hpp"
#include "schema/login.capnp.h"

using namespace gpuwire;
using client::AddressRotation;
using client::ServerReconnector;
using transport::Endpoint;
using Addresses = std::vector<Endpoint>;

namespace {

constexpr std::chrono::seconds kLimit{120};
const resume::SessionId kSession{1, 2, 3};
const resume::Secret kSecret{9, 8, 7}, kOtherSecret{9, 8, 6};
constexpr uint64_t kServerReceived = 77;

// Listens on loopback and handles each connection in the same way, one after the other.
class Place {
 public:
  using Meet = std::function<void(transport::Transport&)>;
  explicit Place(Meet meet) : meet_(std::move(meet)) {
    auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
    REQUIRE(listener);
    listener_ = std::move(*listener);
    thread_ = std::thread([this] { serve(); });
  }
  ~Place() {
    over_ = true;
    // One more connection wakes the thread from poll() or from a wait for a peer's bytes.
    auto last = transport::connect_tcp(endpoint(), kLimit);
    thread_.join();
  }
  Endpoint endpoint() const { return listener_->endpoint(); }
  unsigned met() const { return met_; }

 private:
  void serve() {
    while (!over_) {
      pollfd ready{listener_->descriptor(), POLLIN, 0};
      poll(&ready, 1, -1);
      auto connection = transport::adopt_stream(listener_->accept().descriptor);
      if (!connection || over_) continue;
      ++met_;
      meet_(*connection);
      connection->shutdown();
    }
  }

  const Meet meet_;
  std::unique_ptr<transport::TcpListener> listener_;
  std::atomic<bool> over_{false};
  std::atomic<unsigned> met_{0};
  std::thread thread_;
};

// A server with a session of this secret, without a login.
void resume_session(transport::Transport& connection, const resume::Secret& secret) {
  wire::PrefaceBytes bytes;
  if (receive_all(connection, bytes, kLimit).status != transport::IoStatus::ok) return;
  bytes = wire::encode(wire::own_preface());
  iovec piece{bytes.data(), bytes.size()};
  if (send_all(connection, {&piece, 1}, kLimit).status != transport::IoStatus::ok) return;
  if (resume::receive_request(connection, kSession, secret, kLimit))
    resume::accept(connection, kServerReceived, kLimit);
}

void say_something_else(transport::Transport& connection) {
  std::string answer = "HTTP/1.1 400 Bad Request\r\n\r\n";
  iovec piece{answer.data(), answer.size()};
  send_all(connection, {&piece, 1}, kLimit);
}

void say_nothing(transport::Transport& connection) {
  std::byte bytes[256];
  while (receive_all(connection, {bytes, 1}, kLimit).status == transport::IoStatus::ok) {}
}

void go(transport::Transport&) {}

// Returns a reconnector that resolves these addresses, in this order, for a session that `carrier` has carried.
ServerReconnector way_over(Addresses addresses, const Endpoint& carrier) {
  client::ServerAddress name{client::ServerAddress::Kind::tcp, {"server.test", 9750}, {}};
  return {
      name, kSession, kSecret, false, carrier.host + ":" + std::to_string(carrier.port), [addresses](const Endpoint&) {
        return addresses;
      }};
}

// Returns a port without a listener.
Endpoint nobody() {
  auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
  REQUIRE(listener);
  return (*listener)->endpoint();
}

}  // namespace

TEST_CASE("an address that leads nowhere costs one attempt, whatever it does with a connection") {
  std::pair<const char*, Place::Meet> ways[] = {
      {"silent", say_nothing},
      {"closes at once", go},
      {"no gpuwire server", say_something_else},
      {"does not know the session", [](transport::Transport& it) { resume_session(it, kOtherSecret); }}};
  for (auto& [what, meet] : ways) {
    CAPTURE(what);
    Place elsewhere(meet), server([](transport::Transport&it) { resume_session(it, kSecret); });
    // The name's addresses have changed: none of them has carried the session.
    ServerReconnector way = way_over({elsewhere.endpoint(), server.endpoint()}, nobody());
    auto first = way.reconnect(0);
    REQUIRE_FALSE(first);
    CHECK(first.error().again);
    auto second = way.reconnect(0);
    REQUIRE_MESSAGE(second, second.error().cause);
    CHECK(second->server_received == kServerReceived);
    CHECK(elsewhere.met() == 1);
    CHECK(server.met() == 1);
  }
}

TEST_CASE("the address that carried the session has the first turn, and carries its lanes") {
  Place elsewhere(say_something_else), server([](transport::Transport&it) { resume_session(it, kSecret); });
  ServerReconnector way = way_over({elsewhere.endpoint(), server.endpoint()}, server.endpoint());
  CHECK(way.reconnect(0));
  CHECK(way.open_lane({.set = 1, .number = 0, .count = 2}));
  CHECK(server.met() == 2);
  CHECK(elsewhere.met() == 0);
}

TEST_CASE("a session ends when every address has refused, and says what its own server said") {
  auto unknown = [](transport::Transport& it) { resume_session(it, kOtherSecret); };
  Place one(unknown), other(unknown);
  ServerReconnector way = way_over({one.endpoint(), other.endpoint()}, nobody());
  auto refused = way.reconnect(0);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().again);
  refused = way.reconnect(0);
  REQUIRE_FALSE(refused);
  CHECK_FALSE(refused.error().again);
  CHECK(refused.error().cause == "the server refuses: the session is not this client's");
}

namespace {

void refuse(transport::Transport& connection, wire::RefusalCode code) {
  wire::PrefaceBytes bytes;
  if (receive_all(connection, bytes, kLimit).status != transport::IoStatus::ok) return;
  wire::Preface own = wire::own_preface();
  own.status = uint32_t(code);
  bytes = wire::encode(own);
  iovec piece{bytes.data(), bytes.size()};
  send_all(connection, {&piece, 1}, kLimit);
}

}  // namespace

TEST_CASE("a session that has begun and is refused has lost its device: CUDA itself was ready") {
  for (auto code : {wire::RefusalCode::unauthorised, wire::RefusalCode::no_device}) {
    CAPTURE(int(code));
    Place server([code](transport::Transport& it) { refuse(it, code); });
    ServerReconnector way = way_over({server.endpoint()}, server.endpoint());
    auto refused = way.reconnect(0);
    REQUIRE_FALSE(refused);
    CHECK_FALSE(refused.error().again);
    CHECK(refused.error().result == CUDA_ERROR_DEVICE_UNAVAILABLE);
  }
}

TEST_CASE("a session that its own server refuses ends when the other addresses have had their turn") {
  Place server([](transport::Transport& it) { resume_session(it, kOtherSecret); });
  ServerReconnector way = way_over({nobody(), server.endpoint()}, server.endpoint());
  auto refused = way.reconnect(0);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().again);
  refused = way.reconnect(0);
  REQUIRE_FALSE(refused);
  CHECK_FALSE(refused.error().again);
  CHECK(refused.error().cause == "the server refuses: the session is not this client's");
}

TEST_CASE("a refusal elsewhere is no end while the session's own server cannot be reached") {
  Place elsewhere([](transport::Transport& it) { resume_session(it, kOtherSecret); });
  Endpoint down = nobody();
  ServerReconnector way = way_over({elsewhere.endpoint(), down}, down);
  for (int attempt = 0; attempt < 4; ++attempt) {
    auto refused = way.reconnect(0);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().again);
  }
}

TEST_CASE("addresses keep their turns when a resolver shuffles them, finds more, or finds none") {
  const Endpoint a{"192.0.2.1", 1}, b{"192.0.2.2", 1}, c{"192.0.2.3", 1};
  AddressRotation rotation(b);
  CHECK(rotation.in_turn({a, b}) == Addresses{b, a});
  rotation.failed(b);
  CHECK(rotation.in_turn({b, a}) == Addresses{a, b});
  CHECK(rotation.in_turn({c, b, a}) == Addresses{a, b, c});
  CHECK(rotation.in_turn({}) == Addresses{a, b, c});
  rotation.failed(a);
  CHECK(rotation.in_turn({a, b}) == Addresses{b, a});
  rotation.refused(b);
  CHECK(rotation.exhausted());
  rotation.carries(a);
  CHECK_FALSE(rotation.exhausted());
  CHECK(rotation.in_turn({b, a}) == Addresses{a, b});
  CHECK(rotation.carrier() == a);
  CHECK_FALSE(AddressRotation(std::nullopt).exhausted());
}

namespace {

// Reads the Login after the prefaces, notes its token and closes.
void note_token(transport::Transport& connection, std::string& token) {
  wire::PrefaceBytes bytes;
  if (receive_all(connection, bytes, kLimit).status != transport::IoStatus::ok) return;
  wire::Preface own = wire::own_preface();
  own.flags |= wire::kPrefaceLogin | wire::kPrefaceTokenChallenge;
  bytes = wire::encode(own);
  iovec piece{bytes.data(), bytes.size()};
  if (send_all(connection, {&piece, 1}, kLimit).status != transport::IoStatus::ok) return;
  transport::FrameReceiver receiver(connection, wire::Sender::client);
  if (receiver.next(kLimit) != transport::Received::frame) return;
  wire::SegmentReader message(receiver.message());
  CHECK(message.getRoot<schema::Login>().getToken() == "");
  auto text = message.getRoot<schema::Login>().getTokenName();
  token.assign(text.begin(), text.size());
}

}  // namespace

TEST_CASE("a session comes back as who began it when the program cannot read its files or environment any more") {
  std::filesystem::path folder = std::filesystem::temp_directory_path() / ("way_back." + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string file = folder / "token";
  auto write = [&](const std::string& token) {
    std::ofstream(file) << token << "\n";
    chmod(file.c_str(), 0600);
  };
  const std::string first = "the-first-token-of-all", second = "the-second-token-of-all";
  auto name_of = [](const std::string& token) { return tls::token_name(tls::token_hash(token)); };
  write(first);
  setenv("GPUWIRE_TOKEN_FILE", file.c_str(), 1);
  std::string seen;
  Place server([&](transport::Transport& it) { note_token(it, seen); });
  client::ServerAddress name{client::ServerAddress::Kind::tcp, server.endpoint(), {}};
  auto connection = transport::connect_tcp(server.endpoint(), kLimit);
  REQUIRE(connection);
  auto entry = client::plan_entry(name, **connection, client::SessionKind::program);
  REQUIRE(entry);
  connection->reset();
  ServerReconnector way(name, kSession, kSecret, false, "", transport::resolve,
                        std::make_shared<const client::Entry>(std::move(*entry)));
  auto token_of_attempt = [&] {
    seen.clear();
    CHECK_FALSE(way.reconnect(0));
    return seen;
  };
  CHECK(token_of_attempt() == name_of(first));
  write(second);
  CHECK(token_of_attempt() == name_of(second));
  std::filesystem::remove_all(folder);
  CHECK(token_of_attempt() == name_of(first));
  unsetenv("GPUWIRE_TOKEN_FILE");
  CHECK(token_of_attempt() == name_of(first));
}
