#include "server/ipc/login_messages.hpp"

#include <cstring>
#include <vector>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include "protocol/wire/message_reader.hpp"
#include "server/ipc/login_messages.capnp.h"

namespace gpuwire::server {
namespace {

constexpr size_t kTextBytesMax = 512;  // seven of them stay below kIpcMessageTextBytesMax

std::string cut(const std::string& text) { return text.substr(0, kTextBytesMax); }

capnp::Data::Reader data_of(const std::string& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}
std::string bytes_of(capnp::Data::Reader data) { return {data.asChars().begin(), data.size()}; }

template <class Structure, class Fill>
std::string pack(Fill&& fill) {
  capnp::MallocMessageBuilder message;
  fill(message.initRoot<Structure>());
  auto words = capnp::messageToFlatArray(message);
  auto bytes = words.asChars();
  return {bytes.begin(), bytes.size()};
}

template <class Structure, class Read>
bool unpack(const std::string& text, Read&& read) {
  std::vector<capnp::word> words(text.size() / sizeof(capnp::word));
  if (words.empty()) return false;
  std::memcpy(words.data(), text.data(), words.size() * sizeof(capnp::word));
  return !wire::read_guarded([&] {
    capnp::FlatArrayMessageReader message({words.data(), words.size()});
    read(message.getRoot<Structure>());
  });
}

}  // namespace

IpcMessage login_message(LoginKind kind, ConnectionId connection, std::string text, uint32_t number) {
  IpcMessage message;
  message.kind = IpcMessageKind(kind);
  message.number = number;
  std::memcpy(message.id.data(), &connection, sizeof connection);
  message.text = std::move(text);
  return message;
}

LoginKind login_kind(const IpcMessage& message) { return LoginKind(message.kind); }

ConnectionId connection_of(const IpcMessage& message) {
  ConnectionId connection = 0;
  std::memcpy(&connection, message.id.data(), sizeof connection);
  return connection;
}

std::string encode(const Arrival& arrival) {
  return pack<login_text::Arrival>([&](auto root) {
    root.setPeer(cut(arrival.peer));
    root.setAddress(cut(arrival.address));
    root.setTls(arrival.tls);
    root.setUnixTenant(cut(arrival.unix_tenant));
    root.setOpenTenant(cut(arrival.open_tenant));
    root.setManagement(arrival.management);
  });
}

std::string encode(const LoginRequestMessage& request) {
  return pack<login_text::Request>([&](auto root) {
    root.setTenant(cut(request.tenant));
    root.setSecurity(cut(request.security));
    root.setCredential(cut(request.credential));
    root.setGpus(request.gpus);
    root.setMemoryBytes(request.memory_bytes);
    root.setProgram(cut(request.program));
    root.setHost(cut(request.host));
    root.setProcessId(request.process_id);
    root.setPeer(cut(request.peer));
    root.setManagement(request.management);
    root.setResume(data_of(request.resume));
    root.setTicket(data_of(request.ticket));
  });
}

std::string encode(const LoginQueued& queued) {
  return pack<login_text::Queued>([&](auto root) {
    root.setPlace(queued.place);
    root.setWaiting(queued.waiting);
    root.setWhy(cut(queued.why));
    root.setTicket(data_of(queued.ticket));
  });
}

std::string encode(const LoginRefusal& refusal) {
  return pack<login_text::Refusal>([&](auto root) {
    root.setPeer(cut(refusal.peer));
    root.setKind(cut(refusal.kind));
    root.setReason(cut(refusal.reason));
    root.setTenant(cut(refusal.tenant));
    root.setCredential(cut(refusal.credential));
  });
}

bool decode(const std::string& text, Arrival& arrival) {
  return unpack<login_text::Arrival>(text, [&](auto root) {
    arrival = {root.getPeer(),       root.getAddress(),    root.getTls(),
               root.getUnixTenant(), root.getOpenTenant(), root.getManagement()};
  });
}

bool decode(const std::string& text, LoginRequestMessage& request) {
  return unpack<login_text::Request>(text, [&](auto root) {
    request = {root.getTenant(),
               root.getSecurity(),
               root.getCredential(),
               root.getGpus(),
               root.getMemoryBytes(),
               root.getProgram(),
               root.getHost(),
               root.getProcessId(),
               root.getPeer(),
               root.getManagement(),
               {},
               {}};
    request.resume = bytes_of(root.getResume());
    request.ticket = bytes_of(root.getTicket());
  });
}

bool decode(const std::string& text, LoginQueued& queued) {
  return unpack<login_text::Queued>(text, [&](auto root) {
    queued = {root.getPlace(), root.getWaiting(), root.getWhy(), bytes_of(root.getTicket())};
  });
}

bool decode(const std::string& text, LoginRefusal& refusal) {
  return unpack<login_text::Refusal>(text, [&](auto root) {
    refusal = {root.getPeer(), root.getKind(), root.getReason(), root.getTenant(), root.getCredential()};
  });
}

}  // namespace gpuwire::server
