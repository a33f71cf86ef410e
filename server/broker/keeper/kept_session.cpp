#include "server/broker/keeper/kept_session.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>

#include "server/ipc/codec.hpp"
#include "server/broker/keeper/kept_session.capnp.h"

namespace gpuwire::server {
namespace {

const std::string kSharePrefix = "share/", kPlacePrefix = "place/", kTotalPrefix = "total/";
constexpr size_t kTextBytesMax = 512, kUuidBytesMax = 56, kDevicesMax = 64;

std::string cut(const std::string& text) { return text.substr(0, kTextBytesMax); }

int64_t to_ns(std::chrono::system_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}
std::chrono::system_clock::time_point from_ns(int64_t ns) {
  return std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(std::chrono::nanoseconds(ns)));
}

KeptSession read(kept::Session::Reader root) {
  KeptSession session{.build = root.getBuild(),
                      .record = {.number = scheduler::SessionId(root.getNumber()),
                                 .tenant = root.getTenant(),
                                 .user = root.getUser(),
                                 .memory_bytes = root.getMemoryBytes(),
                                 .peer = root.getPeer(),
                                 .security = root.getSecurity(),
                                 .credential = root.getCredential(),
                                 .program = root.getProgram(),
                                 .host = root.getHost(),
                                 .client_pid = root.getClientPid(),
                                 .gpu_type = root.getGpuType(),
                                 .worker_pid = pid_t(root.getWorkerPid()),
                                 .management = root.getManagement(),
                                 .state = root.getQueued()     ? SessionState::queued
                                          : root.getDetached() ? SessionState::detached
                                          : root.getBegun()    ? SessionState::running
                                                               : SessionState::granted,
                                 .arrived = from_ns(root.getArrivedNs()),
                                 .begun = from_ns(root.getBegunNs()),
                                 .detached_until = from_ns(root.getDetachedUntilNs()),
                                 .suspended_bytes = root.getSuspendedBytes(),
                                 .suspended_since = from_ns(root.getSuspendedSinceNs())},
                      .gpus = root.getGpus(),
                      .queue_round = root.getQueueRound(),
                      .device_uuids = {},
                      .stop = {root.getStopReason(), StopKind(std::min<unsigned>(root.getStopKind(), kStopKinds - 1))},
                      .resume_grace_ms = root.getResumeGraceMs(),
                      .ledger_slot = root.getLedgerSlot(),
                      .host_before_bytes = root.getHostBeforeBytes(),
                      .page_began_ns = root.getPageBeganNs(),
                      .lanes = root.getLanes(),
                      .suspension = root.getSuspension(),
                      .returned_ns = root.getReturnedNs(),
                      .return_took_ns = root.getReturnTookNs()};
  for (auto device : root.getDevices()) {
    session.record.devices.push_back(device.getIndex());
    session.device_uuids.push_back(device.getUuid());
  }
  return session;
}

}  // namespace

// Pages have versions of their own, which the part that maps them checks.
std::string kept_build() { return fmt::format("IPC {}", ipc::kVersion); }

std::string kept_name(scheduler::SessionId session) { return fmt::format("session/{}", uint64_t(session)); }

std::string kept_place_name(scheduler::SessionId session) {
  return fmt::format("{}{}", kPlacePrefix, uint64_t(session));
}
bool is_place(const std::string& name) { return name.starts_with(kPlacePrefix); }
std::string kept_total_name(const std::string& of) { return kTotalPrefix + of; }
bool is_total(const std::string& name) { return name.starts_with(kTotalPrefix); }

std::string kept_name(const ShareToken& token) {
  std::string name = kSharePrefix;
  for (uint8_t byte : token) name += fmt::format("{:02x}", byte);
  return name;
}

std::optional<ShareToken> token_of(const std::string& name) {
  ShareToken token{};
  if (!name.starts_with(kSharePrefix) || name.size() != kSharePrefix.size() + 2 * token.size()) return std::nullopt;
  for (size_t i = 0; i < token.size(); ++i) {
    const char* digits = name.data() + kSharePrefix.size() + 2 * i;
    if (auto [end, error] = std::from_chars(digits, digits + 2, token[i], 16);
        error != std::errc() || end != digits + 2)
      return std::nullopt;
  }
  return token;
}

// The text is two numbers and the user's name, which may have any characters.
std::string encode(const KeptShare& share) {
  return fmt::format("{} {} {}", uint64_t(share.session), share.kind, share.user);
}

tl::expected<KeptShare, std::string> decode_kept_share(const std::string& text) {
  const char *at = text.data(), *end = at + text.size();
  uint64_t session = 0;
  KeptShare share;
  auto first = std::from_chars(at, end, session);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ')
    return tl::unexpected(std::string("a share without a session"));
  auto second = std::from_chars(first.ptr + 1, end, share.kind);
  if (second.ec != std::errc() || second.ptr == end || *second.ptr != ' ')
    return tl::unexpected(std::string("a share without a kind"));
  share.session = scheduler::SessionId(session);
  share.user.assign(second.ptr + 1, end);
  return share;
}

std::string encode_kept_inventory(const Inventory& inventory) {
  ipc::Message message = ipc::Ready{inventory};
  ipc::Packet packet = ipc::encode(message);
  return {reinterpret_cast<const char*>(packet.bytes().data()), packet.bytes().size()};
}

std::optional<Inventory> decode_kept_inventory(const std::string& text) {
  auto message = ipc::decode(std::as_bytes(std::span(text)), {}, ipc::Speaker::worker);
  auto* ready = message ? std::get_if<ipc::Ready>(&*message) : nullptr;
  if (!ready) return std::nullopt;
  return std::move(ready->inventory);
}

std::string encode(const KeptSession& session) {
  const SessionRecord& record = session.record;
  capnp::MallocMessageBuilder message;
  auto root = message.initRoot<kept::Session>();
  root.setBuild(session.build);
  root.setNumber(uint64_t(record.number));
  root.setWireId({record.wire_id.data(), record.wire_id.size()});
  root.setTenant(cut(record.tenant));
  root.setUser(cut(record.user));
  auto devices = root.initDevices(unsigned(std::min(record.devices.size(), kDevicesMax)));
  for (unsigned i = 0; i < devices.size(); ++i) {
    devices[i].setIndex(record.devices[i]);
    if (i < session.device_uuids.size()) devices[i].setUuid(session.device_uuids[i].substr(0, kUuidBytesMax));
  }
  root.setMemoryBytes(record.memory_bytes);
  root.setPeer(cut(record.peer));
  root.setSecurity(cut(record.security));
  root.setCredential(cut(record.credential));
  root.setProgram(cut(record.program));
  root.setHost(cut(record.host));
  root.setClientPid(record.client_pid);
  root.setWorkerPid(uint32_t(record.worker_pid));
  root.setManagement(record.management);
  root.setGpuType(cut(record.gpu_type));
  root.setBegun(record.begun.time_since_epoch().count() != 0);
  root.setDetached(record.state == SessionState::detached);
  root.setQueued(record.state == SessionState::queued);
  root.setGpus(session.gpus);
  root.setQueueRound(session.queue_round);
  root.setStopReason(cut(session.stop.why));
  root.setStopKind(uint8_t(session.stop.kind));
  root.setArrivedNs(to_ns(record.arrived));
  root.setBegunNs(to_ns(record.begun));
  root.setDetachedUntilNs(to_ns(record.detached_until));
  root.setResumeGraceMs(session.resume_grace_ms);
  root.setLedgerSlot(session.ledger_slot);
  root.setHostBeforeBytes(session.host_before_bytes);
  root.setPageBeganNs(session.page_began_ns);
  root.setLanes(session.lanes);
  root.setSuspension(session.suspension);
  root.setReturnedNs(session.returned_ns);
  root.setReturnTookNs(session.return_took_ns);
  root.setSuspendedBytes(record.suspended_bytes);
  root.setSuspendedSinceNs(to_ns(record.suspended_since));
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asChars();
  return {bytes.begin(), bytes.size()};
}

tl::expected<KeptSession, std::string> decode_kept_session(const std::string& text) {
  std::vector<capnp::word> words(text.size() / sizeof(capnp::word));
  std::memcpy(words.data(), text.data(), words.size() * sizeof(capnp::word));
  try {
    capnp::FlatArrayMessageReader message({words.data(), words.size()});
    auto root = message.getRoot<kept::Session>();
    if (root.getDevices().size() > kDevicesMax)
      return tl::unexpected(fmt::format("a session with {} devices", root.getDevices().size()));
    KeptSession session = read(root);
    auto id = root.getWireId();
    if (id.size() != session.record.wire_id.size())
      return tl::unexpected(fmt::format("an identity of {} bytes", id.size()));
    std::copy(id.begin(), id.end(), session.record.wire_id.begin());
    if (session.record.number == scheduler::SessionId{})
      return tl::unexpected(std::string("a session without a number"));
    return session;
  } catch (const kj::Exception& error) {
    return tl::unexpected(std::string(error.getDescription().cStr()));
  }
}

}  // namespace gpuwire::server
