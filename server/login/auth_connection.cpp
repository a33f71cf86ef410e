#include "server/login/auth_connection.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>

#include "protocol/wire/preface.hpp"
#include "protocol/wire/rdma.hpp"
#include "server/login/limits.hpp"

namespace gpuwire::server {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

namespace {

// A client without TLS and without a token is refused here.
bool needs_identity(const ipc::Arrival& arrival) {
  return !arrival.tls && arrival.unix_tenant.empty() && arrival.open_tenant.empty();
}

std::string greeting(const ipc::Arrival& arrival, bool on_unix_socket) {
  wire::Preface preface = wire::own_preface();
  preface.flags = wire::kPrefaceLogin | wire::kPrefaceTokenChallenge;
  if (arrival.tls) preface.flags |= wire::kPrefaceTls;
  if (needs_identity(arrival)) preface.flags |= wire::kPrefaceIdentity;
  // A faster transport would make no difference for a few queries.
  if (!arrival.management && on_unix_socket && !arrival.tls) preface.flags |= wire::kPrefaceSharedMemory;
  if (!arrival.management && !on_unix_socket && arrival.rdma) preface.flags |= wire::kPrefaceRdma;
  wire::PrefaceBytes bytes = wire::encode(preface);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_unix_socket(int socket) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

void set_blocking(int socket, bool blocking) {
  int flags = ::fcntl(socket, F_GETFL);
  ::fcntl(socket, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

}  // namespace

AuthConnection::AuthConnection(boost::asio::io_context& io, AuthConnectionOwner& keeper, ipc::Arrival arrival)
    : keeper_(keeper),
      arrival_(std::move(arrival)),
      socket_(io, arrival_.socket.release()),
      timer_(io),
      connection_(socket_.native_handle()) {}

AuthConnection::Progress AuthConnection::progress() const {
  if (requested_) return Progress::logged_in;
  if (stage_ >= Stage::refusing) return Progress::refused;
  if (connection_.bytes_received() == 0) return Progress::silent;
  return (stage_ == Stage::login || stage_ == Stage::challenge) && connection_.encrypted() ? Progress::secured
                                                                                           : Progress::speaking;
}

void AuthConnection::begin() {
  set_blocking(socket_.native_handle(), false);
  limit(wire::kHandshakeTimeoutMs);
  out_ = greeting(arrival_, is_unix_socket(socket_.native_handle()));
  advance();
}

// --- one step after the other --------------------------------------------------------------------------------------

void AuthConnection::advance() {
  auto self = shared_from_this();
  while (stage_ != Stage::over) {
    IoStep how = step();
    if (how == IoStep::done) continue;
    if (how == IoStep::want_read || how == IoStep::want_write) return wait_for(how);
    return ended(how);
  }
}

IoStep AuthConnection::step() {
  switch (stage_) {
    case Stage::greeting: {
      if (IoStep how = write_out(); how != IoStep::done) return how;
      auto identity = keeper_.identity();
      if (arrival_.tls && (!identity || !connection_.begin_tls(*identity))) return IoStep::closed;
      stage_ = arrival_.tls ? Stage::handshake : Stage::login;
      return IoStep::done;
    }
    case Stage::handshake: {
      IoStep how = connection_.handshake();
      if (how == IoStep::done) stage_ = Stage::login;
      return how;
    }
    case Stage::login: return read_login();
    case Stage::challenge: {
      if (IoStep how = write_out(); how != IoStep::done) return how;
      return read_login();
    }
    case Stage::waiting: return watch();
    case Stage::granted: {
      IoStep how = write_out();
      if (how == IoStep::done) hand_over();
      return how;
    }
    case Stage::refusing: {
      if (IoStep how = write_out(); how != IoStep::done) return how;
      connection_.send_end();
      ::shutdown(socket_.native_handle(), SHUT_WR);
      stage_ = Stage::lingering;
      limit(kLoginRefusalLingerMs);
      return IoStep::done;
    }
    case Stage::lingering: return linger();
    case Stage::over: break;
  }
  return IoStep::closed;
}

IoStep AuthConnection::write_out() {
  while (!out_.empty()) {
    size_t moved = 0;
    if (IoStep how = connection_.write(out_, moved); how != IoStep::done) return how;
    out_.erase(0, moved);
  }
  return IoStep::done;
}

IoStep AuthConnection::read_login() {
  size_t moved = 0;
  if (IoStep how = connection_.read(login_.space(), moved); how != IoStep::done) return how;
  switch (login_.filled(moved)) {
    case LoginFrameReader::State::incomplete: break;
    case LoginFrameReader::State::complete: said(); break;
    case LoginFrameReader::State::fault: turn_away(RefusalKind::protocol, login_.fault()); break;
  }
  return IoStep::done;
}

// The client may send data only after its admission; until then only silence or the end of the connection is expected.
IoStep AuthConnection::watch() {
  if (IoStep how = write_out(); how == IoStep::want_write) {
    if (!writing_) limit(kAnswerWriteMs);
    wait(stream_descriptor::wait_write, writing_);
  } else if (how != IoStep::done) {
    return how;
  } else {
    timer_.cancel();
  }
  IoStep how = connection_.poll();
  if (how != IoStep::done && how != IoStep::want_write) return how;
  requested_ = false;
  keeper_.gone(*this, "the client spoke before it was answered");
  send_answer(refused_frame("the client spoke before it was answered"), Stage::refusing);
  return IoStep::done;
}

IoStep AuthConnection::linger() {
  char discarded[4096];
  ssize_t got = ::recv(socket_.native_handle(), discarded, sizeof discarded, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return IoStep::want_read;
  lingered_bytes_ += got > 0 ? size_t(got) : 0;
  return got <= 0 || lingered_bytes_ > kLingerBytesMax ? IoStep::closed : IoStep::done;
}

void AuthConnection::wait_for(IoStep step) {
  if (step == IoStep::want_read) wait(stream_descriptor::wait_read, reading_);
  else wait(stream_descriptor::wait_write, writing_);
}

void AuthConnection::wait(stream_descriptor::wait_type what, bool& pending) {
  if (pending) return;
  pending = true;
  socket_.async_wait(what, [self = shared_from_this(), &pending](error_code error) {
    pending = false;
    if (!error && self->stage_ != Stage::over) self->advance();
  });
}

// --- authentication ------------------------------------------------------------------------------------------------

void AuthConnection::said() {
  if (stage_ == Stage::challenge) {
    said_.token = tls::sealed_token(token_hash_, challenge_, login_.frame().sealed_token);
    return log_in();
  }
  said_ = login_.frame();
  return said_.token.empty() && !said_.token_name.empty() ? challenge() : log_in();
}

// The answer to an unknown token equals the one to a shown token.
void AuthConnection::challenge() {
  auto identity = keeper_.identity();
  const Credential* known = identity ? identity->credentials().find(CredentialKind::token, said_.token_name) : nullptr;
  if (!known) return turn_away(RefusalKind::token, "this server does not know the token");
  auto nonce = tls::new_token_nonce();
  if (!nonce) return turn_away(RefusalKind::overload, "no random bytes for a challenge");
  token_hash_ = known->hash;
  challenge_.server = *nonce;
  std::copy_n(said_.token_nonce.begin(), challenge_.client.size(), challenge_.client.begin());
  out_ += challenge_frame(challenge_.server, tls::token_proof(token_hash_, challenge_));
  login_ = {};
  stage_ = Stage::challenge;
}

void AuthConnection::log_in() {
  const LoginFrame& login = said_;
  auto identity = keeper_.identity();
  Shown shown{.tls = connection_.encrypted(),
              .certificate = connection_.shown_certificate(),
              .token = login.token,
              .unix_tenant = arrival_.unix_tenant,
              .open_tenant = arrival_.open_tenant,
              .unix_user = arrival_.unix_user};
  auto choice = choose_tenant(shown, identity ? &identity->credentials() : nullptr, keeper_.now());
  if (auto* refused = std::get_if<RefusedTenant>(&choice))
    return turn_away(refused->kind, refused->reason, refused->tenant, refused->credential);
  auto& chosen = std::get<ChosenTenant>(choice);
  if (chosen.expires && *chosen.expires != WallTime::max())
    identity_ends_unix_s_ = std::chrono::system_clock::to_time_t(*chosen.expires);
  stage_ = Stage::waiting;
  requested_ = true;
  timer_.cancel();
  keeper_.requested(*this, {.connection = number(),
                            .tenant = std::move(chosen.tenant),
                            .security = std::move(chosen.security),
                            .credential = std::move(chosen.credential),
                            .gpus = login.gpus,
                            .memory_bytes = login.memory_bytes,
                            .program = login.program,
                            .host = login.host,
                            .process_id = login.process_id,
                            .peer = arrival_.peer,
                            .management = arrival_.management,
                            .resume = login.resume,
                            .ticket = login.ticket,
                            .query = login.query,
                            .gpu_type = login.gpu_type,
                            .user = std::move(chosen.user)});
}

void AuthConnection::queued(const ipc::Queued& place) {
  if (stage_ != Stage::waiting || out_.size() > kUnsentBytesMax) return;
  out_ += queued_frame(place);
  advance();
}

void AuthConnection::admitted() {
  if (stage_ != Stage::waiting) return;
  if (connection_.poll() != IoStep::want_read)
    return advance();  // the client has closed, or has sent data: watch() finds out which
  limit(kAnswerWriteMs);
  out_ += admitted_frame(identity_ends_unix_s_);
  stage_ = Stage::granted;
  advance();
}

void AuthConnection::refused(const std::string& reason) {
  if (stage_ != Stage::waiting) return;
  requested_ = false;
  send_answer(refused_frame(reason), Stage::refusing);
  advance();
}

// The broker limits the size of the answer.
void AuthConnection::told(const ipc::Told& part) {
  if (stage_ != Stage::waiting) return;
  if (part.last) {
    requested_ = false;
    send_answer(told_frame(part), Stage::refusing);
    limit(kAnswerWriteMs);
  } else {
    out_ += told_frame(part);
  }
  advance();
}

void AuthConnection::hand_over() {
  auto key = connection_.session_key();
  if (!key || connection_.holds_bytes()) {
    keeper_.gone(*this, key ? "the client spoke before it was answered" : key.error());
    return finish();
  }
  OwnedDescriptor socket(socket_.release());
  set_blocking(socket.get(), true);
  keeper_.passed(*this, std::move(socket), std::move(*key));
  finish();
}

// --- the end -------------------------------------------------------------------------------------------------------

void AuthConnection::limit(uint32_t ms) {
  timer_.expires_after(std::chrono::milliseconds(ms));
  timer_.async_wait([self = shared_from_this()](error_code error) {
    if (!error && self->stage_ != Stage::over) self->time_is_over();
  });
}

void AuthConnection::time_is_over() {
  auto self = shared_from_this();
  if (stage_ <= Stage::challenge) {
    turn_away(RefusalKind::timeout, fmt::format("no login within {} ms", wire::kHandshakeTimeoutMs));
    return advance();
  }
  if (requested_) keeper_.gone(*this, fmt::format("the client took no answer within {} ms", kAnswerWriteMs));
  finish();
}

void AuthConnection::ended(IoStep how) {
  const bool failed = how == IoStep::failed;
  if (requested_) {
    keeper_.gone(*this, failed ? connection_.failure() : "the client left while it waited");
  } else if (stage_ == Stage::login && !failed && needs_identity(arrival_) && connection_.bytes_received() == 0) {
    // The client has learned that it would be refused, and connects again with TLS.
  } else if (stage_ <= Stage::challenge) {
    ipc::TurnedAway refusal{arrival_.peer,
                            name_of(failed && arrival_.tls ? RefusalKind::tls : RefusalKind::protocol),
                            failed ? connection_.failure() : "the client left before it had logged in",
                            {},
                            {}};
    keeper_.turned_away(*this, std::move(refusal));
    if (failed) {
      // An alert is in transit; closing with unread bytes would discard it.
      ::shutdown(socket_.native_handle(), SHUT_WR);
      stage_ = Stage::lingering;
      limit(kLoginRefusalLingerMs);
      return advance();
    }
  }
  finish();
}

void AuthConnection::turn_away(RefusalKind kind, std::string reason, std::string tenant, std::string credential) {
  keeper_.turned_away(*this, {arrival_.peer, name_of(kind), reason, std::move(tenant), std::move(credential)});
  if (stage_ == Stage::login || stage_ == Stage::challenge) return send_answer(refused_frame(reason), Stage::refusing);
  finish();
}

void AuthConnection::send_answer(std::string frame, Stage then) {
  out_ += frame;
  stage_ = then;
  limit(kLoginRefusalLingerMs);
}

void AuthConnection::drop() {
  if (requested_ || stage_ == Stage::over) return;
  finish();
}

void AuthConnection::abandon() {
  if (stage_ != Stage::over) finish();
}

void AuthConnection::finish() {
  stage_ = Stage::over;
  timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  keeper_.left(*this);
}

}  // namespace gpuwire::server
