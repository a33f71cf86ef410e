#include "client_stub/session/handshake.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <system_error>

#include <capnp/message.h>
#include <fmt/format.h>

#include "client_stub/session/cache_key.hpp"
#include "client_stub/session/environment.hpp"
#include "client_stub/session/printable.hpp"
#include "protocol/cuda_abi/peer_code.hpp"
#include "protocol/transport/stream.hpp"
#include "protocol/transport/tcp.hpp"
#include "protocol/transport/unix.hpp"
#include "protocol/wire/message_reader.hpp"
#include "schema/handshake.capnp.h"
#include "schema/session.capnp.h"

namespace gpuwire::client {

namespace {

using transport::Received;

// A worker that was not prewarmed first initialises its driver.
constexpr std::chrono::seconds kWelcomeTimeout{30};
constexpr size_t kProgramBytesMax = 256;

// GPUWIRE_RESUME=off: the session ends with its connection.
bool comes_back() {
  const char* wish = setting("GPUWIRE_RESUME");
  return !wish || std::string_view(wish) != "off";
}

bool send_hello(link::Link& link, Outgoing& outgoing, unsigned lanes) {
  capnp::MallocMessageBuilder message;
  auto hello = message.initRoot<schema::Hello>();
  hello.setRelease(GPUWIRE_VERSION);
  hello.setCudaVersion(CUDA_VERSION);
  hello.setProcessId(uint32_t(getpid()));
  hello.setProgram(std::string(program_invocation_short_name).substr(0, kProgramBytesMax));
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  hello.setHost(host);
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    hello.setVisibleDevices(std::string(visible).substr(0, kProgramBytesMax));
  hello.setEndsWithConnection(!comes_back());
  hello.setHeartbeats(comes_back());
  if (comes_back()) hello.setLanes(uint8_t(lanes));
  auto end = transport::own_end_of(link.transport()->descriptor());
  hello.setAddress(end.address);
  hello.setMachine(end.machine);
  if (auto key = cache_key(cache_key_file())) hello.setCacheKey({key->data(), key->size()});
  auto words = message.getSegmentsForOutput();
  if (words.size() != 1) return false;
  if (!outgoing.append_control(wire::ControlOrdinal::hello, words[0])) return false;
  link.push(outgoing.appended_bytes(), kAnswerTimeout);
  return outgoing.all_sent();
}

wire::ForeignText text_of(capnp::Text::Reader text) { return std::string(text.begin(), text.size()); }

template <class T, class List>
std::vector<T> vector_of(const List& list) {
  std::vector<T> out;
  out.reserve(list.size());
  for (auto item : list) out.push_back(item);
  return out;
}

DeviceFacts device_facts(schema::Device::Reader device) {
  DeviceFacts facts;
  facts.name = text_of(device.getName());
  auto uuid = device.getUuid();
  std::copy_n(uuid.begin(), std::min(uuid.size(), sizeof facts.uuid.bytes), facts.uuid.bytes);
  auto luid = device.getLuid();
  std::copy_n(luid.begin(), std::min(luid.size(), sizeof facts.luid), facts.luid);
  facts.total_bytes = device.getTotalBytes();
  facts.attributes = vector_of<int32_t>(device.getAttributes());
  facts.attribute_errors = vector_of<int32_t>(device.getAttributeErrors());
  facts.pci_bus_id = text_of(device.getPciBusId());
  facts.limits = vector_of<uint64_t>(device.getLimits());
  facts.stream_priority_least = device.getStreamPriorityLeast();
  facts.stream_priority_greatest = device.getStreamPriorityGreatest();
  facts.peers = vector_of<bool>(device.getPeers());
  return facts;
}

ServerFacts server_facts(schema::Welcome::Reader welcome) {
  ServerFacts facts;
  facts.release = text_of(welcome.getRelease());
  facts.driver_name = text_of(welcome.getDriverName());
  facts.driver_version = welcome.getDriverVersion();
  facts.software = welcome.getSoftware();
  facts.same_machine = welcome.getSameMachine();
  facts.orders_uploads = welcome.getOrdersUploads();
  auto ordinals = welcome.getOrdinals();
  facts.ordinals.assign(ordinals.begin(), ordinals.end());
  for (auto device : welcome.getDevices()) facts.devices.push_back(device_facts(device));
  return facts;
}

void take_chunk_facts(schema::Welcome::Reader welcome, ServerFacts& facts) {
  using Chunks = ServerFacts::Chunks;
  if (!facts.knows(uint32_t(wire::SessionOrdinal::copy_chunks))) return;
  if (welcome.getChunks() == uint8_t(Chunks::plain)) facts.chunks = Chunks::plain;
  if (welcome.getChunks() != uint8_t(Chunks::keyed)) return;
  auto key = cache_key(cache_key_file());  // as in Hello
  if (!key || key->size() != facts.chunk_key.size()) return;
  std::copy(key->begin(), key->end(), facts.chunk_key.begin());
  facts.chunks = Chunks::keyed;
}

void take_resume_facts(schema::Welcome::Reader welcome, Begun& begun) {
  auto id = welcome.getSessionId();
  auto secret = welcome.getResumeSecret();
  if (!comes_back() || id.size() != begun.id.size() || secret.size() != begun.secret.size()) return;
  std::copy(id.begin(), id.end(), begun.id.begin());
  std::copy(secret.begin(), secret.end(), begun.secret.begin());
  begun.resume_grace = std::chrono::milliseconds(welcome.getResumeGraceMs());
  begun.hang_up_grace = std::chrono::milliseconds(welcome.getHangUpGraceMs());
  // An older server does not report this grace.
  if (begun.hang_up_grace.count() == 0) begun.hang_up_grace = begun.resume_grace;
  begun.heartbeats = welcome.getHeartbeats();
  begun.lanes = welcome.getLanes();
}

}  // namespace

namespace {

// Compares with the causes of connect_tcp() and connect_unix(). While a server restarts, its socket's file does not
// exist.
bool nobody_listens(std::string_view cause) {
  return cause.starts_with("connection refused") || cause == std::system_category().message(ECONNREFUSED) ||
         cause == std::system_category().message(ENOENT);
}

}  // namespace

tl::expected<std::unique_ptr<transport::Transport>, SessionStartError> reach(const ServerAddress& address) {
  auto connected = address.kind == ServerAddress::Kind::local
                       ? transport::connect_unix(address.path)
                       : transport::connect_tcp(address.endpoint, kConnectTimeout);
  if (connected) return std::move(*connected);
  const bool absent = nobody_listens(connected.error());
  return tl::unexpected<SessionStartError>({.cause = std::move(connected.error()), .absent = absent});
}

tl::expected<Begun, SessionStartError> begin_session(link::Link& link, Outgoing& outgoing,
                                                     transport::FrameReceiver& receiver, unsigned lanes) {
  if (!send_hello(link, outgoing, lanes)) return dropped("the connection was lost during the handshake");
  Received received = receiver.next(kWelcomeTimeout);
  if (received == Received::nothing)
    return not_ready(
        fmt::format("the server accepted, but did not start a session within {} s", kWelcomeTimeout.count()));
  if (received != Received::frame) {
    std::string cause = fmt::format("the session was not started: {}", receiver.reason());
    return received == Received::ended ? dropped(cause) : not_ready(cause);
  }
  const wire::FrameHeader& header = receiver.header();
  wire::SegmentReader message(receiver.message());
  Begun begun;
  SessionStartError ending;
  bool ended = false, welcomed = false;
  auto bad = wire::read_guarded([&] {
    if (wire::FrameKind(header.kind) == wire::FrameKind::notice &&
        header.ordinal == uint32_t(wire::NoticeOrdinal::ending)) {
      auto notice = message.getRoot<schema::Ending>();
      ended = ending.ended = true;
      auto reason = notice.getReason();
      ending.cause = "the server ended the session: " + printable({reason.begin(), reason.size()});
      if (notice.getResult()) ending.result = cuda_abi::from_peer(notice.getResult());
    } else if (wire::FrameKind(header.kind) == wire::FrameKind::control &&
               header.ordinal == uint32_t(wire::ControlOrdinal::welcome)) {
      welcomed = true;
      auto welcome = message.getRoot<schema::Welcome>();
      begun.facts = server_facts(welcome);
      take_chunk_facts(welcome, begun.facts);
      take_resume_facts(welcome, begun);
    }
  });
  if (bad) return not_ready(fmt::format("the server's welcome cannot be read: {}", *bad));
  if (ended) return tl::unexpected(ending);
  if (!welcomed) return not_ready("the server did not begin with a welcome");
  return begun;
}

}  // namespace gpuwire::client
