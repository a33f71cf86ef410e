// Peers other than a willing server: each causes one CUDA error and one line that names the cause.
#include <doctest/doctest.h>

#include <poll.h>

#include <cstring>
#include <thread>

#include "client_stub/session/session.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"
#include "protocol/wire/preface.hpp"
#include "test/client_stub/session/session_fixture.hpp"

using namespace gpuwire;
using namespace gpuwire::test;

namespace {

// Accepts one connection, takes the client's preface, sends `answer`, then keeps the connection until the client
// leaves, or closes it.
class Stranger {
 public:
  explicit Stranger(std::string answer, bool close_at_once = false)
      : listener_(std::move(*transport::TcpListener::listen({"127.0.0.1", 0}))) {
    thread_ = std::thread([this, answer = std::move(answer), close_at_once] {
      pollfd ready{listener_->descriptor(), POLLIN, 0};
      if (poll(&ready, 1, 120'000) != 1) return;
      auto connection = transport::adopt_stream(listener_->accept().descriptor);
      std::vector<std::byte> preface(sizeof(wire::Preface));
      receive_all(*connection, preface, std::chrono::seconds(120));
      iovec piece{const_cast<char*>(answer.data()), answer.size()};
      if (!answer.empty()) send_all(*connection, {&piece, 1}, std::chrono::seconds(120));
      if (close_at_once) return listener_.reset();
      std::vector<std::byte> rest(4096);
      receive_all(*connection, rest, std::chrono::seconds(120));
    });
  }
  ~Stranger() { thread_.join(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(listener_->endpoint().port); }

 private:
  std::unique_ptr<transport::TcpListener> listener_;
  std::thread thread_;
};

struct Outcome {
  CUresult result;
  std::string error, printed;
};

Outcome try_patiently(const std::string& address, const char* patience) {
  Outcome outcome;
  RecordingHandler handler;
  std::unique_ptr<client::Session> session;
  setenv("GPUWIRE_CONNECT_PATIENCE", patience, 1);
  outcome.printed =
      stderr_of([&] { outcome.result = client::Session::connect(address, handler, session, outcome.error); });
  CHECK_FALSE(session);
  CHECK(handler.ends == 0);
  CHECK(outcome.error.find(address + ": ") == 0);
  CHECK(outcome.error.find('\n') == std::string::npos);
  return outcome;
}

Outcome try_connect(const std::string& address) {
  auto outcome = try_patiently(address, "0s");
  CHECK(outcome.printed.empty());
  return outcome;
}

std::string bytes_of(const wire::Preface& preface) {
  auto bytes = wire::encode(preface);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

TEST_CASE("nobody listens there") {
  std::string address;
  {
    auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
    REQUIRE(listener);
    address = "127.0.0.1:" + std::to_string((*listener)->endpoint().port);
  }
  auto outcome = try_connect(address);
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(outcome.error.find("connection refused") != std::string::npos);
}

TEST_CASE("where nobody listens a program tries again for a while, and says so once") {
  for (std::string address : {"127.0.0.1:1", "unix:/nonexistent/socket"}) {
    auto outcome = try_patiently(address, "1ms");
    CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
    CHECK(outcome.printed.find("gpuwire: " + outcome.error + "; trying for 0.001 s\n") == 0);
    CHECK(outcome.printed.find('\n') == outcome.printed.size() - 1);
  }
}

TEST_CASE("a server that answers otherwise than by taking a session is not tried again while there is patience") {
  Stranger stranger("HTTP/1.1 400 Bad Request\r\n\r\n");
  auto outcome = try_patiently(stranger.address(), "1h");
  CHECK(outcome.error.find("not a gpuwire server") != std::string::npos);
  CHECK(outcome.printed.empty());
}

TEST_CASE("a patience that is no duration is an error that names the variable") {
  auto outcome = try_patiently("127.0.0.1:1", "10");
  CHECK(outcome.error.find("GPUWIRE_CONNECT_PATIENCE: \"10\" is not a duration") != std::string::npos);
}

TEST_CASE("the address is none") {
  CHECK(try_connect("127.0.0.1:port").result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(try_connect("no such host:1").error.find("unknown host") != std::string::npos);
}

TEST_CASE("an HTTP server is recognised as one") {
  Stranger stranger("HTTP/1.1 400 Bad Request\r\n\r\n");
  auto outcome = try_connect(stranger.address());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(outcome.error.find("not a gpuwire server: an HTTP server answers there") != std::string::npos);
}

TEST_CASE("other services are recognised as not gpuwire") {
  for (auto [answer, expected] : {std::pair{"SSH-2.0-OpenSSH_9.2p1\r\n", "an SSH server"},
                                  {"220 mail ready\r\n", "it answers \"220 mail ready..\""},
                                  {"\x15\x03\x01\x02\x28", "a TLS server"}}) {
    Stranger stranger(answer);
    auto outcome = try_connect(stranger.address());
    CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
    INFO(outcome.error);
    CHECK(outcome.error.find(expected) != std::string::npos);
  }
}

TEST_CASE("a service that closes without a word is tried again") {
  Stranger stranger("", true);
  auto outcome = try_connect(stranger.address());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(outcome.error.find("connection refused") != std::string::npos);  // after a retry
}

TEST_CASE("another protocol version is named with both sides' versions") {
  wire::Preface preface = wire::own_preface();
  preface.protocol_major = 7;
  preface.protocol_minor = 3;
  std::strcpy(preface.release, "9.8.7");
  preface.status = uint32_t(wire::RefusalCode::version);
  Stranger stranger(bytes_of(preface));
  auto outcome = try_connect(stranger.address());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
  CHECK(outcome.error.find("client speaks gpuwire protocol 2.0 (release " GPUWIRE_VERSION
                           "), server speaks 7.3 (release 9.8.7)") != std::string::npos);
}

TEST_CASE("a refusal carries the server's reason") {
  std::string reason = "all 8 places are taken\nand a second line";
  wire::Preface preface = wire::refusing_preface(wire::RefusalCode::shutting_down, reason);
  Stranger stranger(bytes_of(preface) + reason);
  auto outcome = try_connect(stranger.address());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(outcome.error.find("the server refuses: all 8 places are taken and a second line") != std::string::npos);
}

TEST_CASE("a server without a device is told apart") {
  std::string reason = "no device is free";
  wire::Preface preface = wire::refusing_preface(wire::RefusalCode::no_device, reason);
  Stranger stranger(bytes_of(preface) + reason);
  CHECK(try_connect(stranger.address()).result == CUDA_ERROR_NO_DEVICE);
}

TEST_CASE("a server that accepts and then says nonsense, or nothing, is an error") {
  for (bool nonsense : {true, false}) {
    Stranger stranger(bytes_of(wire::own_preface()) + (nonsense ? std::string(100, 'x') : std::string()), true);
    auto outcome = try_connect(stranger.address());
    CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
    // An ended connection is retried, without a listener by then.
    CHECK(outcome.error.find(nonsense ? "the session was not started" : "connection refused") != std::string::npos);
  }
}

TEST_CASE("a welcome that cannot be read is an error") {
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                           .ordinal = uint32_t(wire::ControlOrdinal::welcome),
                           .message_words = 1};
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  Stranger stranger(bytes_of(wire::own_preface()) + frame + std::string("\x00\xff\xff\x00\x01\x00\x00\x00", 8));
  auto outcome = try_connect(stranger.address());
  CHECK(outcome.result == CUDA_ERROR_SYSTEM_NOT_READY);
  CHECK(outcome.error.find("welcome cannot be read") != std::string::npos);
}
