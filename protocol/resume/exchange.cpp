#include "protocol/resume/exchange.hpp"

#include <algorithm>
#include <functional>

#include <capnp/message.h>
#include <sys/random.h>

#include "protocol/transport/control_message.hpp"
#include "protocol/wire/terminal_text.hpp"
#include "schema/handshake.capnp.h"

namespace gpuwire::resume {

namespace {

using transport::Nanoseconds;
using transport::Transport;
using wire::ControlOrdinal;

// The maximum length of these messages.
constexpr uint32_t kWordsMax = 64;

tl::expected<void, std::string> receive(Transport& connection, ControlOrdinal ordinal, Nanoseconds timeout,
                                        const std::function<void(capnp::MessageReader&)>& read) {
  return transport::receive_control(connection, ordinal, kWordsMax, timeout, read);
}

std::string text_of(capnp::Text::Reader text) { return {text.begin(), text.size()}; }

template <size_t size>
bool copy(capnp::Data::Reader data, std::array<uint8_t, size>& out) {
  if (data.size() != size) return false;
  std::copy(data.begin(), data.end(), out.begin());
  return true;
}

template <size_t size>
capnp::Data::Reader data_of(const std::array<uint8_t, size>& bytes) {
  return {bytes.data(), size};
}

}  // namespace

bool make_random(std::span<uint8_t> out) { return ::getrandom(out.data(), out.size(), 0) == ssize_t(out.size()); }

// --- the client ----------------------------------------------------------------------------------------------------

tl::expected<uint64_t, Failure> ask(Transport& connection, const Claim& claim, Nanoseconds timeout) {
  // The client sends first, as in each handshake, because the code that read the login's answer may have read further
  // bytes.
  capnp::MallocMessageBuilder question;
  question.initRoot<schema::ResumeChallenge>();
  if (!send_control(connection, ControlOrdinal::resume_challenge, question, timeout))
    return tl::unexpected<Failure>({false, "the connection was lost"});
  Challenge challenge{};
  bool whole = false;
  auto heard = receive(connection, ControlOrdinal::resume_challenge, timeout, [&](capnp::MessageReader& message) {
    whole = copy(message.getRoot<schema::ResumeChallenge>().getNonce(), challenge);
  });
  if (!heard) return tl::unexpected<Failure>({false, heard.error()});
  if (!whole) return tl::unexpected<Failure>({false, "the server's challenge is of a wrong length"});
  capnp::MallocMessageBuilder answer;
  auto resume = answer.initRoot<schema::Resume>();
  resume.setAttempt(claim.attempt);
  std::string binding = connection.binding();
  resume.setProof(
      data_of(claim.lane ? lane_proof_of(claim.secret, challenge, binding, claim.session, claim.attempt, *claim.lane)
                         : proof_of(claim.secret, challenge, binding, claim.session, claim.attempt)));
  if (claim.lane) {
    resume.setLanes(claim.lane->count);
    resume.setLane(claim.lane->number);
    resume.setLaneSet(claim.lane->set);
  }
  resume.setReceived(claim.received);
  resume.setAddress(claim.address);
  resume.setMachine(claim.machine);
  if (!send_control(connection, ControlOrdinal::resume, answer, timeout))
    return tl::unexpected<Failure>({false, "the connection was lost"});
  uint64_t received = 0;
  std::string refused;
  heard = receive(connection, ControlOrdinal::resumed, timeout, [&](capnp::MessageReader& message) {
    auto resumed = message.getRoot<schema::Resumed>();
    received = resumed.getReceived();
    auto reason = resumed.getRefused();
    refused.assign(reason.begin(), std::min<size_t>(reason.size(), wire::kRefusalBytesMax));
    wire::blank_unshown(refused);
  });
  if (!heard) return tl::unexpected<Failure>({false, heard.error()});
  if (!refused.empty()) return tl::unexpected<Failure>({true, refused});
  return received;
}

// --- the server ----------------------------------------------------------------------------------------------------

tl::expected<Request, std::string> receive_request(Transport& connection, const SessionId& session,
                                                   const Secret& secret, Nanoseconds timeout) {
  if (auto asked = receive(connection, ControlOrdinal::resume_challenge, timeout, [](capnp::MessageReader&) {}); !asked)
    return tl::unexpected(asked.error());
  Challenge challenge;
  if (!make_random(challenge)) return tl::unexpected(std::string("the system has no random bytes"));
  capnp::MallocMessageBuilder question;
  question.initRoot<schema::ResumeChallenge>().setNonce(data_of(challenge));
  if (!send_control(connection, ControlOrdinal::resume_challenge, question, timeout))
    return tl::unexpected(std::string("the connection was lost"));
  Request heard;
  Proof proof{};
  bool whole = false;
  auto answer = receive(connection, ControlOrdinal::resume, timeout, [&](capnp::MessageReader& message) {
    auto resume = message.getRoot<schema::Resume>();
    heard = {resume.getAttempt(), resume.getReceived(), text_of(resume.getAddress()), text_of(resume.getMachine())};
    if (resume.getLanes() != 0) heard.lane = Lane{resume.getLaneSet(), resume.getLane(), resume.getLanes()};
    whole = copy(resume.getProof(), proof);
  });
  if (!answer) return tl::unexpected(answer.error());
  std::string binding = connection.binding();
  Proof right = heard.lane ? lane_proof_of(secret, challenge, binding, session, heard.attempt, *heard.lane)
                           : proof_of(secret, challenge, binding, session, heard.attempt);
  if (whole && same(proof, right)) return heard;
  refuse(connection, "the session is not this client's", timeout);
  return tl::unexpected(std::string("a wrong proof"));
}

bool accept(Transport& connection, uint64_t received, Nanoseconds timeout) {
  capnp::MallocMessageBuilder message;
  message.initRoot<schema::Resumed>().setReceived(received);
  return send_control(connection, ControlOrdinal::resumed, message, timeout);
}

void refuse(Transport& connection, const std::string& reason, Nanoseconds timeout) {
  capnp::MallocMessageBuilder message;
  message.initRoot<schema::Resumed>().setRefused(reason);
  send_control(connection, ControlOrdinal::resumed, message, timeout);
}

}  // namespace gpuwire::resume
