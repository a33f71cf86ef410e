#include "test/server/login/login_fixture.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <capnp/message.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/tls/context.hpp"
#include "protocol/wire/ordinals.hpp"
#include "protocol/wire/preface.hpp"
#include "schema/login.capnp.h"

extern char** environ;

namespace gpuwire::test {
namespace {

using namespace gpuwire::server;

constexpr int kDeadlineMs = 120'000;

WallTime days_ago(unsigned days) { return std::chrono::system_clock::now() - std::chrono::hours(24) * days; }

}  // namespace

Lab::Lab() : path_(temporary_.path() / "identity") {
  if (auto made = init_identity(path_, {.hosts = {"gpu7", "127.0.0.1"}}, days_ago(100)); !made)
    throw std::runtime_error(made.error());
}

NewCredential Lab::certificate(const std::string& tenant, unsigned days, unsigned age_days) const {
  return add_certificate(path_, tenant, days, {}, days_ago(age_days)).value();
}

NewCredential Lab::token(const std::string& tenant, unsigned days, unsigned age_days) const {
  return add_token(path_, tenant, days, {}, days_ago(age_days)).value();
}

std::string Lab::file(std::string_view name) const { return read_private_file(path_ / name, kPemBytesMax).value(); }

std::string token_in(const NewCredential& made) {
  std::string line = made.text.substr(made.text.find('\n') + 1);
  line.pop_back();
  return line;
}

std::optional<ClientTls> shown(bool tls, const NewCredential& certificate) {
  return tls ? std::optional(ClientTls{certificate.authority, certificate.text}) : std::nullopt;
}

// --- a client ------------------------------------------------------------------------------------------------------

LoginClient::LoginClient(int socket) : socket_(socket) {
  std::signal(SIGPIPE, SIG_IGN);  // libssl writes without MSG_NOSIGNAL
  timeval limit{kDeadlineMs / 1000, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

LoginClient::LoginClient(LoginClient&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), context_(std::move(other.context_)), tls_(std::move(other.tls_)) {}

LoginClient::~LoginClient() { close(); }

void LoginClient::close() {
  tls_.reset();
  if (socket_ >= 0) ::close(std::exchange(socket_, -1));
}

bool LoginClient::send_bare(std::string_view bytes) {
  return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == ssize_t(bytes.size());
}

bool LoginClient::send(std::string_view bytes) {
  return tls_ ? SSL_write(tls_.get(), bytes.data(), int(bytes.size())) == int(bytes.size()) : send_bare(bytes);
}

std::string LoginClient::read_bare(size_t bytes) {
  std::string out(bytes, 0);
  ssize_t got = ::recv(socket_, out.data(), bytes, MSG_WAITALL);
  out.resize(got > 0 ? size_t(got) : 0);
  return out;
}

bool LoginClient::read_exactly(std::span<std::byte> out, std::string& why) {
  while (!out.empty()) {
    ssize_t got;
    if (tls_) {
      ERR_clear_error();
      got = SSL_read(tls_.get(), out.data(), int(out.size()));
      if (got <= 0) why = SSL_get_error(tls_.get(), int(got)) == SSL_ERROR_SSL ? tls::take_error() : "end";
    } else {
      got = ::recv(socket_, out.data(), out.size(), 0);
      if (got <= 0) why = got == 0 ? "end" : std::strerror(errno);
    }
    if (got <= 0) return false;
    out = out.subspan(size_t(got));
  }
  return true;
}

std::optional<wire::Preface> LoginClient::read_preface() {
  wire::PrefaceBytes bytes;
  std::string why;
  if (!read_exactly(bytes, why)) return std::nullopt;
  return wire::decode(bytes);
}

std::string LoginClient::handshake(const ClientTls& with) {
  tls::start_openssl();
  context_.reset(SSL_CTX_new(TLS_client_method()));
  SSL_CTX_set_max_proto_version(context_.get(), with.version_max);
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), read_certificate(with.authority).value().get());
  if (!with.bundle.empty()) {
    SSL_CTX_use_certificate(context_.get(), read_certificate(with.bundle).value().get());
    SSL_CTX_use_PrivateKey(context_.get(), read_key(with.bundle).value().get());
  }
  tls_.reset(SSL_new(context_.get()));
  SSL_set_fd(tls_.get(), socket_);
  ERR_clear_error();
  return SSL_connect(tls_.get()) == 1 ? "" : tls::take_error();
}

void LoginClient::send_login(const std::string& token, unsigned gpus) {
  capnp::MallocMessageBuilder message;
  auto login = message.initRoot<schema::Login>();
  if (!token.empty()) login.setToken({token.data(), token.size()});
  login.setGpus(gpus);
  login.setProgram("vector_add");
  login.setHost("laptop\n\x1b[2J");
  login.setProcessId(4711);
  auto words = message.getSegmentsForOutput()[0];
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                           .ordinal = uint32_t(wire::ControlOrdinal::login),
                           .message_words = uint32_t(words.size())};
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  send(frame.append(words.asChars().begin(), words.asChars().size()));
}

namespace {

std::string login_frame(capnp::MessageBuilder& message) {
  auto words = message.getSegmentsForOutput()[0];
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                           .ordinal = uint32_t(wire::ControlOrdinal::login),
                           .message_words = uint32_t(words.size())};
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  return frame.append(words.asChars().begin(), words.asChars().size());
}

}  // namespace

std::string LoginClient::show_token(const std::string& token, bool spoilt) {
  const tls::TokenHash hash = tls::token_hash(token);
  tls::TokenChallenge challenge{.client = tls::new_token_nonce().value(), .server = {}};
  capnp::MallocMessageBuilder named, sealed;
  auto login = named.initRoot<schema::Login>();
  login.setTokenName(tls::token_name(hash));
  login.setTokenNonce({challenge.client.data(), challenge.client.size()});
  send(login_frame(named));
  challenged_ = false;
  if (std::string said = answer(); !challenged_) return said;
  challenge.server = server_nonce_;
  if (!tls::same(server_proof_, tls::token_proof(hash, challenge))) return "the server has proven nothing";
  std::string shown = tls::sealed_token(hash, challenge, token);
  if (spoilt) shown[0] = char(shown[0] ^ 1);
  sealed.initRoot<schema::Login>().setSealedToken({reinterpret_cast<const kj::byte*>(shown.data()), shown.size()});
  send(login_frame(sealed));
  return {};
}

std::string LoginClient::answer() {
  wire::FrameHeader header;
  std::string why;
  if (!read_exactly(std::as_writable_bytes(std::span(&header, 1)), why)) return "closed: " + why;
  std::vector<capnp::word> words(header.message_words);
  if (!read_exactly(std::as_writable_bytes(std::span(words)), why)) return "closed: " + why;
  kj::ArrayPtr<const capnp::word> segment = kj::arrayPtr(words.data(), words.size());
  capnp::SegmentArrayMessageReader reader(kj::arrayPtr(&segment, 1));
  auto answer = reader.getRoot<schema::LoginAnswer>();
  if (answer.isAdmitted()) return "admitted";
  if (answer.isChallenge()) {
    auto nonce = answer.getChallenge().getNonce(), proof = answer.getChallenge().getProof();
    challenged_ = nonce.size() == server_nonce_.size() && proof.size() == server_proof_.size();
    if (!challenged_) return "a challenge that is none";
    std::copy(nonce.begin(), nonce.end(), server_nonce_.begin());
    std::copy(proof.begin(), proof.end(), server_proof_.begin());
    return "challenge";
  }
  if (answer.isRefused()) return std::string("refused: ") + answer.getRefused().cStr();
  auto queued = answer.getQueued();
  return fmt::format("queued {} of {}: {}", queued.getPlace(), queued.getWaiting(), queued.getWhy().cStr());
}

std::string LoginClient::log_in(const std::optional<ClientTls>& with, const std::string& token) {
  if (!read_preface()) return "no preface";
  if (with)
    if (std::string error = handshake(*with); !error.empty()) return error;
  send_login(token);
  return {};
}

std::string LoginClient::exported_key() {
  auto key = tls::exported_key(tls_.get());
  return key ? std::string(reinterpret_cast<const char*>(key->data()), key->size()) : "none";
}

bool LoginClient::closed_by_server() {
  char byte;
  ssize_t got;
  while ((got = ::recv(socket_, &byte, 1, 0)) > 0) {}
  return got == 0 || errno == ECONNRESET;
}

// --- the process ---------------------------------------------------------------------------------------------------

LoginProcessFixture::LoginProcessFixture(const Lab* lab) {
  OwnedDescriptor ours, theirs;
  if (!ipc::open_pair(ours, theirs)) throw std::runtime_error("socketpair");
  broker_.emplace(std::move(ours), ipc::Speaker::auth_server, 4096);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, theirs.get(), ipc::kDescriptor);
  char* arguments[] = {const_cast<char*>(GPUWIRE_TEST_LOGIN), nullptr};
  int error = ::posix_spawn(&pid_, GPUWIRE_TEST_LOGIN, &actions, nullptr, arguments, environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error) throw std::runtime_error(std::strerror(error));
  theirs.reset();
  if (lab)
    if (std::string why = give_identity(lab->path()); !why.empty()) throw std::runtime_error(why);
}

LoginProcessFixture::~LoginProcessFixture() {
  broker_.reset();
  if (pid_ >= 0) wait();
}

std::string LoginProcessFixture::give_identity(const std::filesystem::path& folder) {
  auto open = [&](std::string_view file) {
    return OwnedDescriptor(::open((folder / file).c_str(), O_RDONLY | O_CLOEXEC));
  };
  send(ipc::Identity{open(kAuthorityCertificateFile), open(kServerCertificateFile), open(kServerKeyFile),
                     open(kRegisterFile)});
  auto read = next_as<ipc::IdentityRead>();
  return read ? read->error : "no answer";
}

LoginClient LoginProcessFixture::connect(ipc::Arrival arrival, std::string_view early) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
  if (arrival.address.empty()) arrival.address = "10.0.0.1";
  if (arrival.peer.empty()) arrival.peer = arrival.address + ":4711";
  arrival.connection = ++last_;
  arrival.socket.reset(ends[1]);
  LoginClient client(ends[0]);
  if (!early.empty()) client.send_bare(early);
  // The pair holds a few hundred messages.
  send(std::move(arrival));
  if (!broker_->flush(std::chrono::milliseconds(kDeadlineMs)))
    throw std::runtime_error("the login process takes nothing");
  return client;
}

LoginClient LoginProcessFixture::waiting_client(const std::optional<ClientTls>& shows) {
  LoginClient client = connect({.tls = shows.has_value(), .open_tenant = "open"});
  client.log_in(shows);
  if (!next_request()) throw std::runtime_error("the broker hears of no client that has logged in");
  return client;
}

void LoginProcessFixture::send(ipc::Message message) { broker_->send(std::move(message)); }

std::optional<ipc::Message> LoginProcessFixture::receive() {
  return broker_->await(std::chrono::milliseconds(kDeadlineMs));
}

std::optional<ipc::Message> LoginProcessFixture::next() {
  while (messages_.empty()) {
    auto message = receive();
    if (!message) return std::nullopt;
    if (auto* refusal = std::get_if<ipc::TurnedAway>(&*message)) refusals_.push_back(std::move(*refusal));
    else messages_.push_back(std::move(*message));
  }
  ipc::Message first = std::move(messages_.front());
  messages_.erase(messages_.begin());
  return first;
}

std::optional<ipc::Login> LoginProcessFixture::next_request() {
  auto message = next();
  while (message && std::holds_alternative<ipc::Gone>(*message)) message = next();
  if (!message || !std::holds_alternative<ipc::Login>(*message)) return std::nullopt;
  return std::get<ipc::Login>(std::move(*message));
}

std::optional<ipc::TurnedAway> LoginProcessFixture::next_refusal() {
  while (refusals_.empty()) {
    auto message = receive();
    if (!message) return std::nullopt;
    if (auto* refusal = std::get_if<ipc::TurnedAway>(&*message)) refusals_.push_back(std::move(*refusal));
    else messages_.push_back(std::move(*message));
  }
  ipc::TurnedAway refusal = std::move(refusals_.front());
  refusals_.erase(refusals_.begin());
  return refusal;
}

int LoginProcessFixture::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace gpuwire::test
