#include "server/login/login_frame.hpp"

#include <algorithm>
#include <cstring>

#include <capnp/message.h>
#include <fmt/format.h>

#include "protocol/tls/token_challenge.hpp"
#include "protocol/wire/message_reader.hpp"
#include "protocol/wire/ordinals.hpp"
#include "protocol/wire/terminal_text.hpp"
#include "schema/login.capnp.h"
#include "server/login/limits.hpp"

namespace gpuwire::server {
namespace {

// Cleans a client's text for logs and lists: it moves no cursor, breaks no line and changes no direction.
std::string printable(capnp::Text::Reader text) {
  return wire::ForeignText(std::string(text.begin(), std::min<size_t>(text.size(), kLoginTextBytesMax)));
}

// Copies the whole text: an implicit conversion would end at the first NUL.
std::string whole(capnp::Text::Reader text) { return {text.begin(), text.size()}; }

template <class Fill>
std::string answer_frame(Fill&& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<schema::LoginAnswer>());
  auto words = message.getSegmentsForOutput()[0];
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                           .ordinal = uint32_t(wire::ControlOrdinal::login_answer),
                           .message_words = uint32_t(words.size())};
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  return frame.append(words.asChars().begin(), words.asChars().size());
}

}  // namespace

std::span<std::byte> LoginFrameReader::space() {
  if (received_ < sizeof header_) return std::as_writable_bytes(std::span(&header_, 1)).subspan(received_);
  size_t have = received_ - sizeof header_;
  return std::as_writable_bytes(std::span(message_)).subspan(have, wanted_ - received_);
}

LoginFrameReader::State LoginFrameReader::filled(size_t bytes) {
  if (!fault_.empty()) return State::fault;
  received_ += std::min(bytes, space().size());
  if (received_ == sizeof header_ && wanted_ == sizeof header_ && check_header() == State::fault) return State::fault;
  if (received_ < wanted_) return State::incomplete;
  return read_message();
}

LoginFrameReader::State LoginFrameReader::check_header() {
  if (header_.magic != wire::FrameHeader::kMagic)
    return set_fault(fmt::format("no frame where the login should begin (found {:#06x})", header_.magic));
  if (wire::FrameKind(header_.kind) != wire::FrameKind::control ||
      header_.ordinal != uint32_t(wire::ControlOrdinal::login))
    return set_fault(
        fmt::format("a frame of kind {} and ordinal {} instead of a login", header_.kind, header_.ordinal));
  if (header_.flags || header_.bulk_bytes || header_.context)
    return set_fault("a login frame with flags, a context or bulk");
  if (header_.message_words > message_.size())
    return set_fault(fmt::format("a login of {} bytes is longer than the limit of {}",
                                 uint64_t(header_.message_words) * sizeof(capnp::word), wire::kLoginBytesMax));
  wanted_ = sizeof header_ + header_.message_words * sizeof(capnp::word);
  return State::incomplete;
}

LoginFrameReader::State LoginFrameReader::read_message() {
  auto wrong = wire::read_guarded([&] {
    wire::SegmentReader message(kj::arrayPtr(message_.data(), header_.message_words));
    auto login = message.getRoot<schema::Login>();
    frame_ = {.token = whole(login.getToken()),
              .gpus = login.getGpus(),
              .memory_bytes = login.getMemoryBytes(),
              .program = printable(login.getProgram()),
              .host = printable(login.getHost()),
              .process_id = login.getProcessId(),
              .query = printable(login.getQuery()),
              .gpu_type = printable(login.getGpuType())};
    auto resume = login.getResume().asChars();
    frame_.resume.assign(resume.begin(), resume.size());
    frame_.token_name = whole(login.getTokenName());
    auto nonce = login.getTokenNonce().asChars();
    frame_.token_nonce.assign(nonce.begin(), nonce.size());
    auto sealed = login.getSealedToken().asChars();
    frame_.sealed_token.assign(sealed.begin(), sealed.size());
    auto ticket = login.getTicket().asChars();
    frame_.ticket.assign(ticket.begin(), ticket.size());
  });
  for (const std::string& identity : {frame_.resume, frame_.ticket}) {
    if (!wrong && !identity.empty() && identity.size() != sizeof wire::Preface::session_id)
      return set_fault("a session's identity of a wrong length");
  }
  if (!wrong && !frame_.token_name.empty() && frame_.token_nonce.size() != tls::kTokenNonceBytes)
    return set_fault("a token's challenge of a wrong length");
  return wrong ? set_fault(*wrong) : State::complete;
}

LoginFrameReader::State LoginFrameReader::set_fault(std::string reason) {
  fault_ = std::move(reason);
  return State::fault;
}

std::string challenge_frame(std::span<const uint8_t> nonce, std::span<const uint8_t> proof) {
  return answer_frame([&](auto answer) {
    auto challenge = answer.initChallenge();
    challenge.setNonce({nonce.data(), nonce.size()});
    challenge.setProof({proof.data(), proof.size()});
  });
}

std::string admitted_frame(int64_t ends_unix_s) {
  return answer_frame([&](auto answer) {
    answer.setAdmitted();
    answer.setIdentityEndsUnixS(ends_unix_s);
  });
}

std::string queued_frame(const ipc::Queued& queued) {
  return answer_frame([&](auto answer) {
    auto place = answer.initQueued();
    place.setPlace(queued.place);
    place.setWaiting(queued.waiting);
    place.setWhy(queued.why);
    place.setTicket({reinterpret_cast<const kj::byte*>(queued.ticket.data()), queued.ticket.size()});
  });
}

std::string told_frame(const ipc::Told& told) {
  return answer_frame([&](auto answer) {
    auto part = answer.initTold();
    part.setText(told.text);
    part.setLast(told.last);
  });
}

std::string refused_frame(const std::string& reason) {
  return answer_frame([&](auto answer) { answer.setRefused(reason.substr(0, wire::kRefusalBytesMax)); });
}

}  // namespace gpuwire::server
