#include "test/client_stub/session/login_server.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>

#include "protocol/tls/token_challenge.hpp"
#include "protocol/tls/transport.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/unix.hpp"
#include "protocol/wire/message_reader.hpp"
#include "protocol/wire/preface.hpp"
#include "schema/login.capnp.h"
#include "schema/session.capnp.h"
#include "test/client_stub/session/session_fixture.hpp"

namespace gpuwire::test {

namespace {
constexpr std::chrono::seconds kLimit{120};
}

LoginServer::LoginServer(Options options, std::function<void(LoginServer&)> answer)
    : options_(std::move(options)), answer_(std::move(answer)) {
  if (options_.unix_path.empty()) {
    auto listener = transport::TcpListener::listen({"127.0.0.1", 0});
    if (!listener) throw std::runtime_error(listener.error());
    listener_ = std::move(*listener);
    port_ = std::to_string(listener_->endpoint().port);
  } else {
    auto listener = transport::listen_unix(options_.unix_path);
    if (!listener) throw std::runtime_error(listener.error());
    unix_listener_ = *listener;
  }
  thread_ = std::thread([this] { serve(); });
}

LoginServer::~LoginServer() {
  thread_.join();
  if (unix_listener_ >= 0) {
    close(unix_listener_);
    unlink(options_.unix_path.c_str());
  }
}

void LoginServer::tell_seen() {
  seen_whole_ = true;
  seen_whole_.notify_all();
}

void LoginServer::serve() {
  serve_clients();
  tell_seen();
}

void LoginServer::serve_clients() {
  for (unsigned i = 0; i < options_.drops; ++i) {
    if (!next_client()) return;
    drop(i % 3);
  }
  for (unsigned i = 0; i < options_.queue_drops; ++i) {
    if (!next_client() || !exchange_prefaces() || !read_login()) return;
    queued(1, 1, "the GPU is in use", std::string(sizeof wire::Preface::session_id, 't'));
    connection_ = nullptr;
    bare_.reset();
  }
  if (!options_.plain_refusal.empty() && !refuse_plain()) return;
  if (!next_client() || !exchange_prefaces()) return;
  if (options_.context) meet();
  if (connection_ && read_login()) answer_(*this);
  if (admitted_) return begin_session();
  (connection_ ? connection_ : bare_.get())->shutdown();
}

bool LoginServer::refuse_plain() {
  tls::Context context = std::exchange(options_.context, {});
  const uint32_t flags = options_.flags;
  if (options_.told_before) options_.flags |= wire::kPrefaceIdentity;
  const bool met = next_client() && exchange_prefaces(), asked = met && read_login();
  if (asked) refuse(options_.plain_refusal);
  options_.flags = flags;
  options_.context = std::move(context);
  connection_ = nullptr;
  bare_.reset();
  return met && asked != options_.told_before;
}

bool LoginServer::next_client() {
  pollfd ready{listener_ ? listener_->descriptor() : unix_listener_, POLLIN, 0};
  if (poll(&ready, 1, 120'000) != 1) return false;
  int descriptor = listener_ ? listener_->accept().descriptor : accept4(unix_listener_, nullptr, nullptr, SOCK_CLOEXEC);
  bare_ = transport::adopt_stream(descriptor);
  connection_ = bare_.get();
  return true;
}

bool LoginServer::exchange_prefaces() {
  wire::PrefaceBytes bytes;
  if (receive_all(*bare_, bytes, kLimit).status != transport::IoStatus::ok) return false;
  seen_.preface_flags = wire::decode(bytes).flags;
  wire::Preface own = wire::own_preface();
  own.flags = options_.flags | (options_.context ? uint32_t(wire::kPrefaceTls) : 0) |
              (options_.token.empty() ? 0 : uint32_t(wire::kPrefaceTokenChallenge));
  bytes = wire::encode(own);
  iovec piece{bytes.data(), bytes.size()};
  send_all(*bare_, {&piece, 1}, kLimit);
  return true;
}

void LoginServer::drop(unsigned stage) {
  if (stage >= 1 && exchange_prefaces() && stage >= 2 && !options_.context) read_login();
  connection_ = nullptr;
  bare_.reset();
}

void LoginServer::meet() {
  channel_ = tls::TlsChannel::accept(options_.context, bare_->descriptor());
  if (!channel_->handshake(kLimit)) {
    connection_ = nullptr;
    return;
  }
  inside_ = tls::tls_view(*bare_, *channel_);
  connection_ = inside_.get();
  tls::Certificate shown(SSL_get1_peer_certificate(channel_->native()));
  char name[256] = {};
  if (shown && X509_NAME_get_text_by_NID(X509_get_subject_name(shown.get()), NID_commonName, name, sizeof name) > 0)
    seen_.certificate_name = name;
}

template <class Fill>
void LoginServer::answer(Fill&& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<schema::LoginAnswer>());
  auto bytes = message.getSegmentsForOutput()[0].asBytes();
  send_frame({.kind = uint8_t(wire::FrameKind::control),
              .ordinal = uint32_t(wire::ControlOrdinal::login_answer),
              .message_words = uint32_t(bytes.size() / 8)},
             std::as_bytes(std::span(bytes.begin(), bytes.size())));
}

bool LoginServer::read_login() {
  transport::FrameReceiver receiver(*connection_, wire::Sender::client);
  if (receiver.next(kLimit) != transport::Received::frame ||
      receiver.header().ordinal != uint32_t(wire::ControlOrdinal::login))
    return false;
  wire::SegmentReader message(receiver.message());
  auto login = message.getRoot<schema::Login>();
  seen_.token = login.getToken();
  seen_.program = login.getProgram();
  seen_.host = login.getHost();
  seen_.release = login.getRelease();
  seen_.gpus = login.getGpus();
  seen_.query = login.getQuery();
  seen_.memory_bytes = login.getMemoryBytes();
  seen_.gpu_type = login.getGpuType();
  seen_.process_id = login.getProcessId();
  seen_.token_name = login.getTokenName();
  auto nonce = login.getTokenNonce().asChars();
  return seen_.token_name.empty() || options_.token.empty() || challenge({nonce.begin(), nonce.size()});
}

// Returns true if the client has shown its token, which `seen_` then has.
bool LoginServer::challenge(const std::string& nonce) {
  const tls::TokenHash hash = tls::token_hash(options_.token);
  tls::TokenChallenge challenge{.client = {}, .server = tls::new_token_nonce().value()};
  if (nonce.size() != challenge.client.size()) return false;
  std::copy(nonce.begin(), nonce.end(), challenge.client.begin());
  tls::TokenProof proof = tls::token_proof(hash, challenge);
  if (!options_.proves) proof[0] ^= 1;
  answer([&](schema::LoginAnswer::Builder root) {
    root.initChallenge().setNonce({challenge.server.data(), challenge.server.size()});
    root.getChallenge().setProof({proof.data(), proof.size()});
  });
  transport::FrameReceiver receiver(*connection_, wire::Sender::client);
  if (receiver.next(kLimit) != transport::Received::frame) return false;
  wire::SegmentReader message(receiver.message());
  auto sealed = message.getRoot<schema::Login>().getSealedToken().asChars();
  seen_.token = tls::sealed_token(hash, challenge, {sealed.begin(), sealed.size()});
  return true;
}

void LoginServer::begin_session() {
  if (channel_) {
    auto key = channel_->exported_key();
    if (options_.another_key) (*key)[0] ^= 1;
    tls::Context context = tls::key_server_context(*key);
    auto second = tls::TlsChannel::accept(context, bare_->descriptor());
    if (!second->handshake(kLimit)) return;
    bare_ = tls::tls_transport(std::move(bare_), std::move(second));
  }
  if (options_.flags & wire::kPrefaceSharedMemory)
    bare_ = transport::offer_shared_memory(std::move(bare_), kLimit, options_.ring_bytes).connection;
  seen_.road = bare_->road();
  tell_seen();
  FakeServer session(std::move(bare_), answer_all, FakeServer::Begins::with_hello);
}

void LoginServer::send_frame(const wire::FrameHeader& header, std::span<const std::byte> message) {
  iovec pieces[2] = {{const_cast<wire::FrameHeader*>(&header), sizeof header},
                     {const_cast<std::byte*>(message.data()), message.size()}};
  send_all(*connection_, pieces, kLimit);
}

void LoginServer::queued(uint32_t place, uint32_t waiting, const std::string& why, const std::string& ticket) {
  answer([&](schema::LoginAnswer::Builder root) {
    auto queued = root.initQueued();
    queued.setPlace(place);
    queued.setWaiting(waiting);
    queued.setWhy(why);
    queued.setTicket({reinterpret_cast<const kj::byte*>(ticket.data()), ticket.size()});
  });
}

void LoginServer::refuse(const std::string& why) {
  answer([&](schema::LoginAnswer::Builder root) { root.setRefused(why); });
}

void LoginServer::admit(int64_t ends_unix_s) {
  answer([&](schema::LoginAnswer::Builder root) {
    root.setAdmitted();
    root.setIdentityEndsUnixS(ends_unix_s);
  });
  admitted_ = true;
}

void LoginServer::admit_and_end(const std::string& reason) {
  answer([&](schema::LoginAnswer::Builder root) { root.setAdmitted(); });
  // A worker sends nothing before the client's Hello.
  transport::FrameReceiver receiver(*connection_, wire::Sender::client);
  if (receiver.next(kLimit) != transport::Received::frame) return;
  capnp::MallocMessageBuilder message;
  message.initRoot<schema::Ending>().setReason(reason);
  auto bytes = message.getSegmentsForOutput()[0].asBytes();
  send_frame({.kind = uint8_t(wire::FrameKind::notice),
              .ordinal = uint32_t(wire::NoticeOrdinal::ending),
              .message_words = uint32_t(bytes.size() / 8)},
             std::as_bytes(std::span(bytes.begin(), bytes.size())));
  await_end();
}

void LoginServer::await_end() {
  std::byte byte;
  receive_all(*connection_, {&byte, 1}, kLimit);
}

}  // namespace gpuwire::test
