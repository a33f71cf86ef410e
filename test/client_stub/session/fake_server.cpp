#include "test/client_stub/session/fake_server.hpp"

#include <algorithm>
#include <vector>

#include "protocol/wire/preface.hpp"
#include "schema/handshake.capnp.h"
#include "schema/session.capnp.h"

namespace gpuwire::test {

namespace {
// A bound for a test that hangs; no result depends on it.
constexpr std::chrono::seconds kLimit{120};
}  // namespace

FakeServer::FakeServer(std::unique_ptr<transport::Transport> transport, Serve serve, Begins begins)
    : transport_(std::move(transport)),
      receiver_(*transport_, wire::Sender::client),
      thread_([this, serve = std::move(serve), begins] {
        if ((begins == Begins::with_hello || exchange_prefaces()) && welcome()) serve(*this);
        transport_->shutdown();
      }) {}

bool FakeServer::exchange_prefaces() {
  wire::PrefaceBytes preface;
  if (receive_all(*transport_, preface, kLimit).status != transport::IoStatus::ok) return false;
  std::string text;
  if (wire::check_client(preface, text) != wire::RefusalCode::accepted) return false;
  send_raw(wire::encode(wire::own_preface()));
  sent_bytes_ = 0;
  return true;
}

bool FakeServer::receive() {
  if (receiver_.next(kLimit) != transport::Received::frame) return false;
  frame_begin_ = frame_end_;
  frame_end_ += sizeof header() + header().message_words * sizeof(capnp::word) + header().bulk_bytes;
  return true;
}

bool FakeServer::welcome() {
  if (!receive()) return false;
  capnp::MallocMessageBuilder message;
  auto welcome = message.initRoot<schema::Welcome>();
  welcome.setRelease(GPUWIRE_VERSION);
  welcome.setDriverVersion(13000);
  welcome.setDriverName("fake driver");
  auto ordinals = welcome.initOrdinals(wire::kOrdinalMax / 8);
  std::fill(ordinals.begin(), ordinals.end(), 0xff);
  auto devices = welcome.initDevices(2);
  devices[0].setName("first fake device");
  devices[0].setTotalBytes(1 << 20);
  devices[0].initAttributes(2).set(1, 1024);
  devices[1].setName("second fake device");
  send({.kind = uint8_t(wire::FrameKind::control), .ordinal = uint32_t(wire::ControlOrdinal::welcome)}, message, {});
  return true;
}

bool FakeServer::next() {
  for (;;) {
    if (!receive()) return false;
    auto kind = wire::FrameKind(header().kind);
    if (kind == wire::FrameKind::acknowledge) {
      client_acknowledged_ = header().sequence;
      continue;
    }
    if (kind == wire::FrameKind::control && answer_control()) continue;
    if (kind == wire::FrameKind::control) {
      goodbye_ = header().ordinal == uint32_t(wire::ControlOrdinal::goodbye);
      return false;
    }
    if (header().sequence != last_sequence_ + 1) sequences_ok_ = false;
    last_sequence_ = header().sequence;
    if (acknowledge_every && last_sequence_ % acknowledge_every == 0) acknowledge(frame_begin_);
    return true;
  }
}

// Handles a control frame; returns false if it ends the session.
bool FakeServer::answer_control() {
  switch (wire::ControlOrdinal(header().ordinal)) {
    case wire::ControlOrdinal::acknowledge_now: acknowledge(frame_end_); return true;
    case wire::ControlOrdinal::heartbeat: ++heartbeats_; return true;
    default: return false;
  }
}

std::vector<std::byte> FakeServer::bulk() {
  std::vector<std::byte> bytes(receiver_.bulk_left());
  if (!receiver_.read_bulk(bytes)) bytes.clear();
  return bytes;
}

void FakeServer::reply(uint64_t sequence, int32_t result, std::span<const std::byte> bulk) {
  capnp::MallocMessageBuilder message;
  message.initRoot<schema::Result>().setResult(result);
  reply(sequence, message, bulk);
}

void FakeServer::reply(uint64_t sequence, capnp::MessageBuilder& message, std::span<const std::byte> bulk) {
  send({.kind = uint8_t(wire::FrameKind::reply), .sequence = sequence}, message, bulk);
}

void FakeServer::notice(wire::NoticeOrdinal ordinal, capnp::MessageBuilder& message, std::span<const std::byte> bulk) {
  send({.kind = uint8_t(wire::FrameKind::notice), .ordinal = uint32_t(ordinal), .sequence = ++notices_sent_}, message,
       bulk);
}

void FakeServer::acknowledge(uint64_t position) {
  send_header({.kind = uint8_t(wire::FrameKind::acknowledge), .sequence = position});
}

void FakeServer::send_header(const wire::FrameHeader& header) { send_raw(std::as_bytes(std::span(&header, 1))); }

void FakeServer::send_raw(std::span<const std::byte> bytes) {
  iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
  send_all(*transport_, {&piece, 1}, kLimit);
  sent_bytes_ += bytes.size();
}

void FakeServer::send(wire::FrameHeader header, capnp::MessageBuilder& message, std::span<const std::byte> bulk) {
  auto words = message.getSegmentsForOutput()[0];
  header.message_words = uint32_t(words.size());
  header.bulk_bytes = bulk.size();
  iovec pieces[3] = {{&header, sizeof header},
                     {const_cast<capnp::word*>(words.begin()), words.asBytes().size()},
                     {const_cast<std::byte*>(bulk.data()), bulk.size()}};
  send_all(*transport_, pieces, kLimit);
  sent_bytes_ += sizeof header + words.asBytes().size() + bulk.size();
}

}  // namespace gpuwire::test
