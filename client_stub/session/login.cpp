#include "client_stub/session/login.hpp"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <optional>

#include <capnp/message.h>
#include <fmt/format.h>

#include "client_stub/session/ask.hpp"
#include "client_stub/session/printable.hpp"
#include "client_stub/session/rdma_library.hpp"
#include "client_stub/session/wait_observer.hpp"
#include "protocol/tls/token_challenge.hpp"
#include "protocol/tls/transport.hpp"
#include "protocol/transport/frame_receiver.hpp"
#include "protocol/transport/rdma_setup.hpp"
#include "protocol/transport/shared_memory_setup.hpp"
#include "protocol/wire/message_reader.hpp"
#include "protocol/wire/preface.hpp"
#include "protocol/wire/rdma.hpp"
#include "schema/login.capnp.h"

namespace gpuwire::client {

namespace {

using transport::Received;
using transport::Transport;
using Clock = std::chrono::steady_clock;
template <class T>
using Result = tl::expected<T, SessionStartError>;

// The bound of the server's first answer to a login: the server may have to start a process for it.
constexpr std::chrono::seconds kLoginTimeout{20};
// One wait of a client in the queue; repeated as long as the connection lives.
constexpr std::chrono::hours kQueueWait{1};
// The worker sends this answer, and may have to initialise its driver first.
constexpr std::chrono::seconds kRoadTimeout{30};
constexpr size_t kNameBytesMax = 256;
constexpr unsigned kQueueLinesMax = 1000;
constexpr size_t kAnswerBytesMax = 1 << 20;  // of an answer to a query

std::string printable_text(capnp::Text::Reader text) { return printable({text.begin(), text.size()}); }

// --- prefaces ------------------------------------------------------------------------------------------------------

SessionStartError refusal(Transport& connection, const wire::Preface& preface) {
  std::string reason(preface.text_bytes, '\0');
  receive_all(connection, std::as_writable_bytes(std::span(reason)), kAnswerTimeout);
  auto code = wire::RefusalCode(preface.status);
  return {code == wire::RefusalCode::no_device ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_SYSTEM_NOT_READY,
          "the server refuses: " + printable(std::move(reason)), code == wire::RefusalCode::busy,
          code != wire::RefusalCode::busy};
}

// Reads the server's preface byte by byte, only as far as needed to identify the peer: another service may send fewer
// than 64 bytes and wait. Takes no byte behind the preface.
Result<wire::Preface> receive_preface(Transport& connection) {
  wire::PrefaceBytes bytes;
  wire::Preface preface;
  std::string text;
  size_t got = 0;
  auto deadline = Clock::now() + kAnswerTimeout;
  for (;;) {
    auto result = connection.try_receive(std::span(bytes).subspan(got));
    if (result.status == transport::IoStatus::would_block) {
      auto left = deadline - Clock::now();
      if (left.count() <= 0)
        return not_ready(fmt::format("connected, but no answer within {} s (is it a gpuwire server?)",
                                     kAnswerTimeout.count() / 1000));
      connection.wait(transport::kReadable, left);
      continue;
    }
    if (result.status != transport::IoStatus::ok)
      return dropped(fmt::format("connected, but {} before it answered (is it a gpuwire server?)", describe(result)));
    got += result.bytes;
    switch (wire::check_server(std::span(bytes).first(got), preface, text)) {
      case wire::ServerAnswer::incomplete: continue;
      case wire::ServerAnswer::accepted: return preface;
      case wire::ServerAnswer::not_gpuwire: return not_ready(text);
      case wire::ServerAnswer::version:
        return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, text});
      case wire::ServerAnswer::refused: return tl::unexpected(refusal(connection, preface));
    }
  }
}

Result<wire::Preface> exchange_prefaces(Transport& connection, const Entry& entry) {
  wire::Preface own = wire::own_preface();
  if (entry.kind == SessionKind::management) own.flags |= wire::kPrefaceManagement;
  if (entry.encrypted) own.flags |= wire::kPrefaceTls;
  auto bytes = wire::encode(own);
  iovec piece{bytes.data(), bytes.size()};
  auto sent = send_all(connection, {&piece, 1}, kAnswerTimeout);
  // A server that refuses may have closed already; its text is more useful than the error of send.
  auto answer = receive_preface(connection);
  if (!answer) return answer;
  if (sent.status != transport::IoStatus::ok) return dropped("the connection was lost during the handshake");
  bool tls = answer->flags & wire::kPrefaceTls;
  if (entry.encrypted && !tls)
    return not_ready(
        "the server offers no TLS (a server behind an SSH tunnel is called by 127.0.0.1; tcp://HOST:PORT goes "
        "unencrypted)");
  if (!entry.encrypted && tls) return not_ready("the server begins TLS unasked");
  return answer;
}

// --- TLS -----------------------------------------------------------------------------------------------------------

Result<std::unique_ptr<tls::TlsChannel>> shake_hands(const tls::Context& context, int descriptor, tls::Wanted wanted) {
  auto channel = tls::TlsChannel::connect(context, descriptor, std::move(wanted));
  if (!channel)
    return not_ready("TLS cannot begin: out of memory, or the host has no name that a certificate can be for");
  if (auto met = channel->handshake(kAnswerTimeout); !met)
    return channel->dropped() ? dropped(met.error()) : not_ready(met.error());
  return channel;
}

// --- logging in ----------------------------------------------------------------------------------------------------

// The client's state of the challenge by which it proves its token.
struct TokenShowing {
  tls::TokenHash hash{};
  tls::TokenChallenge challenge;
  bool proven = false;  // the server has proved that it has the token
};

bool send_frame(Transport& connection, capnp::MallocMessageBuilder& message) {
  auto segments = message.getSegmentsForOutput();
  if (segments.size() != 1) return false;
  auto bytes = segments[0].asBytes();
  wire::FrameHeader header{.kind = uint8_t(wire::FrameKind::control),
                           .ordinal = uint32_t(wire::ControlOrdinal::login),
                           .message_words = uint32_t(segments[0].size())};
  iovec pieces[2] = {{&header, sizeof header}, {const_cast<kj::byte*>(bytes.begin()), bytes.size()}};
  return send_all(connection, pieces, kAnswerTimeout).status == transport::IoStatus::ok;
}

template <class Bytes>
capnp::Data::Reader data_of(const Bytes& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

bool send_sealed_token(Transport& connection, const TokenShowing& showing, const std::string& token) {
  capnp::MallocMessageBuilder message;
  message.initRoot<schema::Login>().setSealedToken(data_of(tls::sealed_token(showing.hash, showing.challenge, token)));
  return send_frame(connection, message);
}

// `showing` is null if the token may be sent itself.
bool send_login(Transport& connection, const Entry& entry, const TokenShowing* showing) {
  capnp::MallocMessageBuilder message;
  auto login = message.initRoot<schema::Login>();
  if (showing) {
    login.setTokenName(tls::token_name(showing->hash));
    login.setTokenNonce(data_of(showing->challenge.client));
  } else {
    login.setToken(entry.secrets->token);
  }
  login.setGpus(entry.gpus);
  login.setMemoryBytes(entry.memory_bytes);
  if (!entry.gpu_type.empty()) login.setGpuType(entry.gpu_type);
  login.setProgram(std::string(program_invocation_short_name).substr(0, kNameBytesMax));
  char host[kNameBytesMax] = {};
  gethostname(host, sizeof host - 1);
  login.setHost(host);
  login.setProcessId(uint32_t(getpid()));
  login.setRelease(GPUWIRE_VERSION);
  login.setResume(data_of(entry.resume));
  if (entry.place) login.setTicket(data_of(entry.place->ticket));
  if (!entry.query.empty()) login.setQuery(entry.query);
  return send_frame(connection, message);
}

// One answer of the server to a login.
struct Answer {
  enum class Kind : uint8_t { admitted, queued, refused, told, told_all, challenge } kind = Kind::refused;
  uint32_t place = 0, waiting = 0;
  std::string text;  // the reason
  std::string ticket = {};
  int64_t identity_ends_unix_s = 0;  // with `admitted`; 0: nothing ends
  tls::TokenNonce nonce{};           // of a challenge
  tls::TokenProof proof{};
};

Result<Answer> read_answer(const wire::FrameHeader& header, kj::ArrayPtr<const capnp::word> words) {
  if (wire::FrameKind(header.kind) != wire::FrameKind::control ||
      header.ordinal != uint32_t(wire::ControlOrdinal::login_answer))
    return not_ready("the server did not answer the login");
  Answer answer;
  wire::SegmentReader message(words);
  bool known = true;
  auto bad = wire::read_guarded([&] {
    auto root = message.getRoot<schema::LoginAnswer>();
    switch (root.which()) {
      case schema::LoginAnswer::ADMITTED:
        answer.kind = Answer::Kind::admitted;
        answer.identity_ends_unix_s = root.getIdentityEndsUnixS();
        break;
      case schema::LoginAnswer::REFUSED:
        answer = {Answer::Kind::refused, 0, 0, printable_text(root.getRefused())};
        break;
      case schema::LoginAnswer::TOLD: {
        auto part = root.getTold();
        auto text = part.getText();
        answer = {part.getLast() ? Answer::Kind::told_all : Answer::Kind::told, 0, 0, {text.begin(), text.size()}};
        break;
      }
      case schema::LoginAnswer::CHALLENGE: {
        auto nonce = root.getChallenge().getNonce(), proof = root.getChallenge().getProof();
        known = nonce.size() == answer.nonce.size() && proof.size() == answer.proof.size();
        if (!known) break;
        answer.kind = Answer::Kind::challenge;
        std::copy_n(nonce.begin(), nonce.size(), answer.nonce.begin());
        std::copy_n(proof.begin(), proof.size(), answer.proof.begin());
        break;
      }
      case schema::LoginAnswer::QUEUED: {
        auto queued = root.getQueued();
        auto ticket = queued.getTicket();
        answer = {Answer::Kind::queued, queued.getPlace(), queued.getWaiting(), printable_text(queued.getWhy())};
        if (ticket.size() == sizeof wire::Preface::session_id)
          answer.ticket.assign(ticket.asChars().begin(), ticket.size());
        break;
      }
      default: known = false;
    }
  });
  if (bad || !known)
    return not_ready(
        fmt::format("the server's answer to the login cannot be read: {}", bad ? printable(*bad) : "unknown"));
  return answer;
}

std::string queue_line(const Entry& entry, const Answer& answer) {
  std::string what = entry.gpus == 0 ? "a place" : entry.gpus == 1 ? "1 GPU" : fmt::format("{} GPUs", entry.gpus);
  std::string line = fmt::format("waiting for {} at {}: place {} of {}", what,
                                 entry.host.empty() ? "the server" : entry.host, answer.place, answer.waiting);
  return answer.text.empty() ? line : fmt::format("{} ({})", line, answer.text);
}

// The error of a program that does not wait in the queue.
SessionStartError would_wait(const Answer& answer) {
  return {
      .cause = fmt::format("the program would wait at place {} of {}{}, and is not to (--no-wait, GPUWIRE_QUEUE=off)",
                           answer.place, answer.waiting, answer.text.empty() ? "" : fmt::format(" ({})", answer.text)),
      .refused = true,
      .full = true};
}

std::string admitted_line(const Entry& entry, Clock::duration waited) {
  return fmt::format("admitted at {} after {}", entry.host.empty() ? "the server" : entry.host,
                     waited_text(std::chrono::duration_cast<std::chrono::seconds>(waited)));
}

// Returns an empty line if nothing ends soon.
std::string expiry_line(const Entry& entry, int64_t ends_unix_s, int64_t now_unix_s) {
  if (ends_unix_s <= 0) return {};
  const int64_t left_s = ends_unix_s - now_unix_s;
  if (left_s > std::chrono::seconds(kExpiryNotice).count()) return {};
  std::tm utc{};
  const std::time_t ends = ends_unix_s;
  char day[sizeof "2026-12-05"] = "";
  if (!gmtime_r(&ends, &utc) || !std::strftime(day, sizeof day, "%Y-%m-%d", &utc)) return {};
  const int64_t days = left_s / 86'400;
  const std::string in =
      left_s < 86'400 ? "in less than a day" : fmt::format("in {} day{}", days, days == 1 ? "" : "s");
  return fmt::format("your {} for {} expires on {}, {}: ask the server's administrator for a new one",
                     entry.secrets->credentials.certificate ? "certificate" : "token",
                     entry.host.empty() ? "the server" : entry.host, day, in);
}

// Without TLS any program that listens at the address could receive the token.
Result<std::optional<TokenShowing>> show_token_to(const Entry& entry) {
  if (entry.encrypted || entry.secrets->token.empty()) return std::nullopt;
  auto nonce = tls::new_token_nonce();
  if (!nonce) return not_ready("no random bytes to show a token by");
  return TokenShowing{.hash = tls::token_hash(entry.secrets->token), .challenge = {.client = *nonce}};
}

constexpr const char* kNotProven =
    "the server has not proven that it knows the token, which was not sent (is it the server that you mean?)";

Result<void> answer_challenge(Transport& connection, const Entry& entry, const Answer& answer,
                              std::optional<TokenShowing>& showing) {
  if (!showing || showing->proven) return not_ready("the server asks for a token that was not offered");
  showing->challenge.server = answer.nonce;
  showing->proven = tls::same(answer.proof, tls::token_proof(showing->hash, showing->challenge));
  if (!showing->proven) return not_ready(kNotProven);
  if (!send_sealed_token(connection, *showing, entry.secrets->token))
    return dropped("the connection was lost during the login");
  return {};
}

// `why` is TLS's reason for the end, or empty.
Result<void> log_in(Transport& connection, const Entry& entry, QueueNotice told,
                    const std::function<std::string()>& why) {
  auto showing = show_token_to(entry);
  if (!showing) return tl::unexpected(showing.error());
  if (!send_login(connection, entry, *showing ? &**showing : nullptr)) {
    std::string reason = why();
    return reason.empty() ? dropped("the connection was lost during the login") : not_ready(reason);
  }
  transport::FrameReceiver receiver(connection, wire::Sender::server);
  std::string said;
  unsigned lines = 0;
  std::optional<Clock::time_point> since;  // set while the client waits in the queue
  for (;;) {
    Received received =
        receiver.next(since ? transport::Nanoseconds(kQueueWait) : transport::Nanoseconds(kLoginTimeout));
    if (received == Received::nothing && since) continue;
    if (received == Received::nothing)
      return not_ready(fmt::format("the server did not answer the login within {} s", kLoginTimeout.count()));
    if (received != Received::frame) {
      std::string reason = why();
      if (!reason.empty()) return not_ready(reason);
      std::string cause = fmt::format("the login failed: {}", receiver.reason());
      return received == Received::ended ? dropped(cause) : not_ready(cause);
    }
    auto answer = read_answer(receiver.header(), receiver.message());
    if (!answer) return tl::unexpected(answer.error());
    if (answer->kind == Answer::Kind::challenge) {
      if (auto answered = answer_challenge(connection, entry, *answer, *showing); !answered) return answered;
      continue;
    }
    // A peer without this proof could receive the program's data in the server's place.
    if (answer->kind != Answer::Kind::refused && *showing && !(*showing)->proven) return not_ready(kNotProven);
    if (answer->kind == Answer::Kind::admitted) {
      if (std::string line = expiry_line(entry, answer->identity_ends_unix_s, std::time(nullptr)); !line.empty())
        told(line);
      // A program that waited at an earlier connection may be admitted at once on this one.
      if (!since && entry.place) since = entry.place->since;
      if (since) told(admitted_line(entry, std::chrono::nanoseconds(note_wait(WaitKind::queue, *since))));
      return {};
    }
    if (answer->kind == Answer::Kind::told || answer->kind == Answer::Kind::told_all) {
      if (!entry.answer || entry.answer->size() + answer->text.size() > kAnswerBytesMax)
        return not_ready("the server answers what was not asked");
      *entry.answer += answer->text;
      if (answer->kind == Answer::Kind::told_all) return {};
      continue;
    }
    if (answer->kind == Answer::Kind::refused)
      return tl::unexpected<SessionStartError>(
          {CUDA_ERROR_SYSTEM_NOT_READY, "the server refuses: " + answer->text, false, true});
    if (!entry.waits) return tl::unexpected(would_wait(*answer));
    if (!since) since = entry.place && entry.place->since ? *entry.place->since : Clock::now();
    if (entry.place && !answer->ticket.empty()) *entry.place = {answer->ticket, true, since};
    std::string line = queue_line(entry, *answer);
    if (line != said && lines++ < kQueueLinesMax) told(line);
    said = std::move(line);
  }
}

// Both handshakes, and the login between them.
Result<std::unique_ptr<Transport>> enter_encrypted(std::unique_ptr<Transport> connection, const Entry& entry,
                                                   QueueNotice told) {
  auto context = tls::client_context(entry.secrets->credentials);
  if (!context) return not_ready(context.error());
  auto first =
      shake_hands(*context, connection->descriptor(), {entry.host, entry.secrets->credentials.authorities_from});
  if (!first) return tl::unexpected(first.error());
  tls::TlsChannel& channel = **first;
  auto inside = tls::tls_view(*connection, channel);
  if (auto in = log_in(*inside, entry, told, [&] { return channel.dropped() ? std::string() : channel.failure(); });
      !in)
    return tl::unexpected(in.error());
  if (!entry.query.empty()) return nullptr;
  auto key = channel.exported_key();
  if (!key) return not_ready("no key for the session: " + key.error());
  tls::Context keyed = tls::key_client_context(*key);
  OPENSSL_cleanse(key->data(), key->size());
  if (!channel.drained()) return not_ready("the server sent more than its answer to the login");
  auto second = shake_hands(keyed, connection->descriptor(), {});
  if (!second)
    return tl::unexpected<SessionStartError>(
        {second.error().result, "the session's own TLS: " + second.error().cause, second.error().again});
  return tls::tls_transport(std::move(connection), std::move(*second));
}

}  // namespace

// --- entering -------------------------------------------------------------------------------------------------------

namespace {

// Returns whether the connection stays on this machine.
bool stays_here(int descriptor) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
  if (peer.ss_family == AF_UNIX) return true;
  if (peer.ss_family == AF_INET) return (ntohl(reinterpret_cast<sockaddr_in&>(peer).sin_addr.s_addr) >> 24) == 127;
  if (peer.ss_family != AF_INET6) return false;
  const in6_addr& address = reinterpret_cast<sockaddr_in6&>(peer).sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

Entry::Rdma rdma_wish(TransportChoice choice) {
  switch (choice) {
    case TransportChoice::rdma: return Entry::Rdma::wanted;
    case TransportChoice::automatic: return Entry::Rdma::where_it_is;
    default: return Entry::Rdma::no;
  }
}

bool wants_tls(const ServerAddress& address, const LoginSettings& settings, bool here) {
  if (address.kind == ServerAddress::Kind::network)
    return !here || settings.identity_given || settings.authorities_given;
  return address.kind == ServerAddress::Kind::tls;
}

}  // namespace

Result<Entry> plan_entry(const ServerAddress& address, const Transport& connection, SessionKind kind) {
  auto settings = login_settings();
  if (!settings) return not_ready(settings.error());
  bool here = stays_here(connection.descriptor());
  bool local = address.kind == ServerAddress::Kind::local;
  if (settings->transport == TransportChoice::shared_memory && !local)
    return not_ready("shared memory is for a server on this machine: --server unix:/PATH");
  if (settings->transport == TransportChoice::rdma && local)
    return not_ready("RDMA is for a server on a network: --server HOST");
  Entry entry{.host = address.host(),
              .encrypted = wants_tls(address, *settings, here),
              .gpus = settings->gpus,
              .memory_bytes = settings->memory_bytes,
              .kind = kind,
              // Queries are too short for shared memory to pay.
              .shared_memory = local && settings->transport != TransportChoice::tcp && kind == SessionKind::program};
  entry.answer_time_max = settings->answer_time_max;
  entry.waits = settings->waits;
  entry.gpu_type = settings->gpu_type;
  if (!local && kind == SessionKind::program) entry.rdma = rdma_wish(settings->transport);
  const bool has_identity = !settings->identity.empty() || !settings->token.empty();
  entry.identity_unused = !entry.encrypted && !local && address.kind == ServerAddress::Kind::network && has_identity &&
                          !settings->token_given;
  auto secrets = read_secrets(*settings, entry.encrypted);
  if (!secrets) return not_ready(secrets.error());
  if (!secrets->token.empty() && !entry.encrypted && !here)
    return not_ready("a token is not sent unencrypted: use tls://HOST:PORT");
  entry.secrets = std::make_shared<const LoginSecrets>(std::move(*secrets));
  return entry;
}

namespace {

Result<std::unique_ptr<Transport>> go_on_in_shared_memory(std::unique_ptr<Transport> connection, uint32_t server_flags,
                                                          QueueNotice told) {
  if (!(server_flags & wire::kPrefaceSharedMemory)) {
    told("the server offers no shared memory; the session goes over its Unix socket");
    return connection;
  }
  transport::Agreed agreed = transport::ask_for_shared_memory(std::move(connection), kRoadTimeout);
  if (agreed.lost) return dropped("shared memory could not be agreed on: " + agreed.declined);
  if (!agreed.declined.empty())
    told("no shared memory with the server (" + agreed.declined + "); the session goes over its Unix socket");
  return std::move(agreed.connection);
}

Result<std::unique_ptr<Transport>> go_on_by_rdma(std::unique_ptr<Transport> connection, uint32_t server_flags,
                                                 Entry::Rdma wish, QueueNotice told) {
  auto slower = [&](const std::string& why) {
    told(fmt::format("no RDMA with the server ({}); the session goes over {}", why, connection->road()));
  };
  if (wish == Entry::Rdma::no) return connection;
  if (!(server_flags & wire::kPrefaceRdma)) {
    if (wish == Entry::Rdma::wanted) slower("it offers none");
    return connection;
  }
  auto fabric = rdma_fabric();
  if (!fabric) {
    if (wish == Entry::Rdma::wanted) slower(fabric.error());
    return connection;
  }
  transport::Agreed agreed = transport::ask_for_rdma(std::move(connection), std::move(*fabric), kRoadTimeout);
  connection = std::move(agreed.connection);
  if (agreed.lost) return dropped("RDMA could not be agreed on: " + agreed.declined);
  if (!agreed.declined.empty()) slower(printable(agreed.declined));
  return connection;
}

}  // namespace

Result<std::unique_ptr<Transport>> enter(std::unique_ptr<Transport> connection, const Entry& entry, QueueNotice told) {
  auto preface = exchange_prefaces(*connection, entry);
  if (!preface) return tl::unexpected(preface.error());
  if (entry.encrypted) {
    auto entered = enter_encrypted(std::move(connection), entry, told);
    if (!entered || !entry.query.empty()) return entered;
    return go_on_by_rdma(std::move(*entered), preface->flags, entry.rdma, told);
  }
  // The identity in the user's folder needs TLS: the caller tries again with it.
  if (entry.identity_unused && preface->flags & wire::kPrefaceIdentity)
    return tl::unexpected<SessionStartError>({CUDA_ERROR_SYSTEM_NOT_READY,
                                              "the server refuses: this server requires a certificate or a token",
                                              false, true});
  // Another program may listen at the address of a server that is not running.
  if (!entry.secrets->token.empty() && !(preface->flags & wire::kPrefaceTokenChallenge))
    return not_ready("the server does not prove that it knows the token, which is not sent to it without TLS");
  // A server without tenants authenticates nobody.
  if (preface->flags & wire::kPrefaceLogin)
    if (auto in = log_in(*connection, entry, told, [] { return std::string(); }); !in)
      return tl::unexpected(in.error());
  if (!entry.query.empty()) {
    if (preface->flags & wire::kPrefaceLogin) return nullptr;
    return not_ready(kAnswersNoQueries);
  }
  if (entry.shared_memory) return go_on_in_shared_memory(std::move(connection), preface->flags, told);
  return go_on_by_rdma(std::move(connection), preface->flags, entry.rdma, told);
}

std::string waited_text(std::chrono::seconds waited) {
  const auto seconds = waited.count();
  if (seconds < 60) return fmt::format("{} s", seconds);
  if (seconds < 3600) return fmt::format("{} min", seconds / 60);
  return fmt::format("{} h {} min", seconds / 3600, seconds / 60 % 60);
}

}  // namespace gpuwire::client
