#include "protocol/transport/rdma_setup.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include <capnp/message.h>

#include "protocol/transport/control_message.hpp"
#include "protocol/wire/frame.hpp"
#include "protocol/wire/rdma.hpp"
#include "schema/handshake.capnp.h"

namespace gpuwire::transport {

namespace {

using Clock = std::chrono::steady_clock;

constexpr uint32_t kWordsMax = rdma::kAddressBytesMax / 8 + 64;
constexpr size_t kReasonBytesMax = 256;
// The interval at which a thread that waits for a greeting checks whether the server is still there.
constexpr std::chrono::milliseconds kGreetingPoll{20};

// One message of the negotiation.
struct Word {
  enum class Kind : uint8_t { end, declined, use } kind = Kind::declined;
  uint32_t version = 0;
  std::string address;
  rdma::Token token{};
  std::string why;
};

bool send(Transport& connection, const Word& word, Nanoseconds timeout) {
  capnp::MallocMessageBuilder message(kWordsMax);
  auto root = message.initRoot<schema::Rdma>();
  switch (word.kind) {
    case Word::Kind::end: {
      auto end = root.initEnd();
      end.setVersion(word.version);
      end.setAddress({reinterpret_cast<const kj::byte*>(word.address.data()), word.address.size()});
      end.setToken({word.token.data(), word.token.size()});
      break;
    }
    case Word::Kind::declined: root.setDeclined(word.why.substr(0, kReasonBytesMax)); break;
    case Word::Kind::use: root.setUse(); break;
  }
  return send_control(connection, wire::kRdmaOrdinal, message, timeout);
}

tl::expected<Word, std::string> receive(Transport& connection, Nanoseconds timeout) {
  Word word;
  bool whole = true;
  auto heard = receive_control(connection, wire::kRdmaOrdinal, kWordsMax, timeout, [&](capnp::MessageReader& message) {
    auto root = message.getRoot<schema::Rdma>();
    switch (root.which()) {
      case schema::Rdma::END: {
        auto end = root.getEnd();
        auto address = end.getAddress().asChars();
        auto token = end.getToken();
        whole = token.size() == word.token.size() && address.size() <= rdma::kAddressBytesMax;
        if (!whole) return;
        word.kind = Word::Kind::end;
        word.version = end.getVersion();
        word.address.assign(address.begin(), address.size());
        std::copy(token.begin(), token.end(), word.token.begin());
        break;
      }
      case schema::Rdma::DECLINED: {
        auto why = root.getDeclined();
        word.why.assign(why.begin(), std::min<size_t>(why.size(), kReasonBytesMax));
        if (word.why.empty()) word.why = "without a reason";
        break;
      }
      case schema::Rdma::USE: word.kind = Word::Kind::use; break;
      default: whole = false;
    }
  });
  if (!heard) return tl::unexpected(heard.error());
  if (!whole) return tl::unexpected(std::string("a word about RDMA that cannot be"));
  return word;
}

Word word_of(const RdmaEnd& end) {
  return {.kind = Word::Kind::end, .version = rdma::kVersion, .address = end.address(), .token = end.token()};
}
Word declined(std::string why) { return {.kind = Word::Kind::declined, .why = std::move(why)}; }

// Returns true if the client's first bytes ask for RDMA. Waits for as many of them as the answer needs.
bool asks(Transport& connection, const Peek& peek, Nanoseconds timeout) {
  auto deadline = Clock::now() + timeout;
  wire::FrameHeader header;
  for (;;) {
    auto left = deadline - Clock::now();
    if (left.count() <= 0 || !connection.wait(kReadable, left)) return false;
    // Read before the bytes: if the peer had closed by then, nothing follows the bytes that `peek` returns.
    const bool closed = connection.peer_closed();
    IoResult seen = peek(std::as_writable_bytes(std::span(&header, 1)));
    if (seen.status == IoStatus::would_block) continue;
    if (seen.status != IoStatus::ok) return false;
    if (seen.bytes == sizeof header) break;
    if (closed) return false;
    ::poll(nullptr, 0, 1);  // more bytes are about to arrive; the present ones would end every other kind of wait
  }
  return header.magic == wire::FrameHeader::kMagic && header.kind == uint8_t(wire::FrameKind::control) &&
         header.ordinal == uint32_t(wire::kRdmaOrdinal);
}

// The server sends nothing over the connection meanwhile. If the connection is readable, it has ended, and no greeting
// will arrive.
bool await_greeting(RdmaEnd& end, Transport& connection, Nanoseconds timeout) {
  auto deadline = Clock::now() + timeout;
  for (;;) {
    const Nanoseconds left = deadline - Clock::now();
    if (end.await_greeting(std::clamp<Nanoseconds>(left, Nanoseconds(0), kGreetingPoll))) return true;
    if (left.count() <= 0 || !end.failure().empty() || connection.input()) return false;
  }
}

std::string why_not(const RdmaEnd& end) {
  std::string failure = end.failure();
  return failure.empty() ? "no answer over the fabric" : failure;
}

}  // namespace

Agreed ask_for_rdma(std::unique_ptr<Transport> connection, std::shared_ptr<RdmaFabric> fabric, Nanoseconds timeout,
                    Nanoseconds greeting_max) {
  auto end = RdmaEnd::make(std::move(fabric));
  if (!end) return {std::move(connection), end.error()};
  if (!send(*connection, word_of(**end), timeout)) return {std::move(connection), "the connection was lost", true};
  auto answer = receive(*connection, timeout);
  if (!answer) return {std::move(connection), answer.error(), true};
  if (answer->kind == Word::Kind::declined) return {std::move(connection), "the server: " + answer->why};
  if (answer->kind != Word::Kind::end) return {std::move(connection), "the server's answer is no answer", true};
  std::string failure;
  if (answer->version != rdma::kVersion) failure = "the server speaks version " + std::to_string(answer->version);
  else if (auto greeted = (*end)->greet(answer->address, answer->token); !greeted) failure = greeted.error();
  else if (!await_greeting(**end, *connection, greeting_max)) failure = why_not(**end);
  if (!send(*connection, failure.empty() ? Word{.kind = Word::Kind::use} : declined(failure), timeout))
    return {std::move(connection), "the connection was lost", true};
  if (!failure.empty()) return {std::move(connection), failure};
  return {RdmaEnd::carry(std::move(*end), std::move(connection)), {}};
}

IoResult peek_socket(const Transport& connection, std::span<std::byte> out) {
  ssize_t seen = ::recv(connection.descriptor(), out.data(), out.size(), MSG_PEEK | MSG_DONTWAIT);
  if (seen > 0) return {IoStatus::ok, size_t(seen)};
  if (seen == 0) return {IoStatus::closed};
  return {errno == EAGAIN || errno == EINTR ? IoStatus::would_block : IoStatus::failed, 0, errno};
}

Agreed offer_rdma(std::unique_ptr<Transport> connection, const Peek& peek, std::shared_ptr<RdmaFabric> fabric,
                  const std::string& why, Nanoseconds timeout) {
  if (!asks(*connection, peek, timeout)) return {std::move(connection), {}};
  auto asked = receive(*connection, timeout);
  if (!asked) return {std::move(connection), "RDMA was asked for in no way that there is: " + asked.error(), true};
  auto decline = [&](std::string reason) -> Agreed {
    bool told = send(*connection, declined(reason), timeout);
    return {std::move(connection), "no RDMA for the client: " + reason, !told};
  };
  if (asked->kind != Word::Kind::end) return decline("it was asked for in no way that there is");
  if (!fabric) return decline(why);
  if (asked->version != rdma::kVersion) return decline("it asks for version " + std::to_string(asked->version));
  auto end = RdmaEnd::make(std::move(fabric));
  if (!end) return decline(end.error());
  (*end)->greet_back(asked->address, asked->token);
  if (!send(*connection, word_of(**end), timeout)) return {std::move(connection), "the client has gone", true};
  auto verdict = receive(*connection, timeout + kRdmaGreetingMax);
  if (!verdict) return {std::move(connection), verdict.error(), true};
  if (verdict->kind == Word::Kind::declined) return {std::move(connection), "no RDMA with the client: " + verdict->why};
  // A peer sends this message only after it has received a greeting and has sent one.
  if (verdict->kind != Word::Kind::use || !(*end)->await_greeting(Nanoseconds(0)))
    return {std::move(connection), "the client goes on by RDMA without having greeted", true};
  return {RdmaEnd::carry(std::move(*end), std::move(connection)), {}};
}

}  // namespace gpuwire::transport
