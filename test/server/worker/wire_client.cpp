#include "test/server/worker/wire_client.hpp"

#include <cerrno>
#include <cstring>

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "protocol/wire/handle.hpp"
#include "protocol/wire/preface.hpp"
#include "schema/handshake.capnp.h"
#include "schema/login.capnp.h"
#include "protocol/transport/connecting.hpp"

namespace gpuwire::test {
namespace {

constexpr int kDeadlineMs = int(std::chrono::milliseconds(kDeadline).count());
constexpr uint64_t kPrimaryHandle = wire::make_handle(wire::HandleKind::context, 1, 1);

// Returns false if the deadline has passed. Ignores interruptions by signals (a broker's SIGCHLD in the same process).
bool wait_readable(int socket) {
  pollfd ready{socket, POLLIN, 0};
  int count;
  do count = ::poll(&ready, 1, kDeadlineMs);
  while (count < 0 && errno == EINTR);
  return count > 0;
}

}  // namespace

bool WireClient::connect(uint16_t port) {
  socket_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // A SIGCHLD of the broker in the same process may come meanwhile.
  return transport::connect_through_signals(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

bool WireClient::connect_unix(const std::string& path) {
  socket_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  // A SIGCHLD of the broker in the same process may come meanwhile.
  return transport::connect_through_signals(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

void WireClient::reset_connection() {
  linger now{1, 0};
  ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  socket_.reset();
}

bool WireClient::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes = bytes.subspan(size_t(sent));
  }
  return true;
}

bool WireClient::send_preface() { return send(wire::encode(wire::own_preface())); }

bool WireClient::send_hello() {
  capnp::MallocMessageBuilder builder;
  auto hello = builder.initRoot<schema::Hello>();
  hello.setRelease("0.1.0");
  hello.setProgram("wire_client");
  hello.setHost("test");
  hello.setProcessId(1);
  hello.setEndsWithConnection(true);
  auto segment = builder.getSegmentsForOutput()[0];
  wire::FrameHeader header;
  header.kind = uint8_t(wire::FrameKind::control);
  header.ordinal = uint32_t(wire::ControlOrdinal::hello);
  header.message_words = uint32_t(segment.size());
  return send_header(header) && send(std::as_bytes(std::span(segment.begin(), segment.size())));
}

bool WireClient::read_exactly(std::span<std::byte> out) {
  while (!out.empty()) {
    if (!wait_readable(socket_.get())) return false;
    ssize_t got = ::recv(socket_.get(), out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out = out.subspan(size_t(got));
  }
  return true;
}

std::optional<wire::Preface> WireClient::read_preface(std::string& text) {
  wire::PrefaceBytes bytes;
  if (!read_exactly(bytes)) return std::nullopt;
  wire::Preface preface = wire::decode(bytes);
  text.resize(preface.text_bytes);
  if (!read_exactly(std::as_writable_bytes(std::span(text)))) return std::nullopt;
  return preface;
}

bool WireClient::ask(std::string& text, const std::string& token, const std::string& resume, const std::string& query) {
  if (!send_preface()) return false;
  auto preface = read_preface(text);
  if (!preface || preface->status != 0) return false;
  capnp::MallocMessageBuilder builder;
  auto login = builder.initRoot<schema::Login>();
  if (!token.empty()) login.setToken(token);
  if (!resume.empty()) login.setResume({reinterpret_cast<const capnp::byte*>(resume.data()), resume.size()});
  if (!query.empty()) login.setQuery(query);
  auto segment = builder.getSegmentsForOutput()[0];
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                           .ordinal = uint32_t(wire::ControlOrdinal::login),
                           .message_words = uint32_t(segment.size())};
  return send_header(header) && send(std::as_bytes(std::span(segment.begin(), segment.size())));
}

std::string WireClient::answer(std::string& text) {
  auto frame = receive();
  if (!frame || frame->header.ordinal != uint32_t(wire::ControlOrdinal::login_answer)) return {};
  std::string said;
  frame->with<schema::LoginAnswer>([&](schema::LoginAnswer::Reader read) {
    said = read.isAdmitted() ? "admitted" : read.isQueued() ? "queued" : read.isTold() ? "told" : "refused";
    if (read.isRefused()) text = read.getRefused();
  });
  return said;
}

bool WireClient::log_in(std::string& text, const std::string& token) {
  if (!ask(text, token)) return false;
  std::string said = answer(text);
  while (said == "queued") said = answer(text);
  return said == "admitted";
}

bool WireClient::open_session(uint16_t port) {
  std::string refusal;
  if (!connect(port) || !log_in(refusal) || !send_hello()) return false;
  auto welcome = receive();
  return welcome && welcome->header.kind == uint8_t(wire::FrameKind::control) &&
         welcome->header.ordinal == uint32_t(wire::ControlOrdinal::welcome);
}

uint64_t WireClient::send_message(wire::FrameKind kind, uint32_t ordinal, uint32_t context,
                                  capnp::MessageBuilder& builder, std::span<const std::byte> bulk) {
  auto segment = builder.getSegmentsForOutput()[0];
  wire::FrameHeader header;
  header.kind = uint8_t(kind);
  header.ordinal = ordinal;
  header.sequence = ++sequence_;
  header.context = context;
  header.message_words = uint32_t(segment.size());
  header.bulk_bytes = bulk.size();
  send_header(header);
  send(std::as_bytes(std::span(segment.begin(), segment.size())));
  send(bulk);
  return header.sequence;
}

uint64_t WireClient::send_empty(wire::FrameKind kind, uint32_t ordinal, uint32_t context,
                                std::span<const std::byte> bulk) {
  wire::FrameHeader header;
  header.kind = uint8_t(kind);
  header.ordinal = ordinal;
  header.sequence = ++sequence_;
  header.context = context;
  header.bulk_bytes = bulk.size();
  send_header(header);
  send(bulk);
  return header.sequence;
}

std::optional<ReceivedFrame> WireClient::receive() {
  ReceivedFrame frame;
  if (!read_exactly(std::as_writable_bytes(std::span(&frame.header, 1)))) return std::nullopt;
  frame.message.resize(frame.header.message_words);
  frame.bulk.resize(frame.header.bulk_bytes);
  if (!read_exactly(std::as_writable_bytes(std::span(frame.message))) || !read_exactly(frame.bulk)) return std::nullopt;
  return frame;
}

std::optional<ReceivedFrame> WireClient::reply(uint64_t sequence) {
  while (auto frame = receive()) {
    if (frame->header.kind == uint8_t(wire::FrameKind::reply) && frame->header.sequence == sequence) return frame;
    if (frame->header.kind == uint8_t(wire::FrameKind::notice)) notices.push_back(std::move(*frame));
  }
  return std::nullopt;
}

std::string WireClient::reason_of_end() {
  std::string reason;
  while (auto frame = receive()) {
    if (frame->header.kind != uint8_t(wire::FrameKind::notice) ||
        frame->header.ordinal != uint32_t(wire::NoticeOrdinal::ending))
      continue;
    frame->with<schema::Ending>([&](schema::Ending::Reader ending) { reason = ending.getReason().cStr(); });
  }
  return reason;
}

bool WireClient::closed_by_server() {
  char discarded[4096];
  for (;;) {
    if (!wait_readable(socket_.get())) return false;
    ssize_t got = ::recv(socket_.get(), discarded, sizeof discarded, 0);
    if (got == 0 || (got < 0 && errno != EINTR)) return true;
  }
}

uint32_t WireClient::retain_primary() {
  send_call<schema::RetainPrimary>(wire::FrameKind::posted, uint32_t(wire::SessionOrdinal::retain_primary), 0,
                                   [](schema::RetainPrimary::Builder params) {
                                     params.setContext(kPrimaryHandle);
                                     params.setDevice(0);
                                   });
  return uint32_t(kPrimaryHandle);
}

int32_t WireClient::ping() {
  int32_t result = -1;
  auto answer = reply(send_empty(wire::FrameKind::called, uint32_t(wire::SessionOrdinal::ping)));
  if (answer) answer->with<schema::Result>([&](schema::Result::Reader reader) { result = reader.getResult(); });
  return result;
}

}  // namespace gpuwire::test
