#include "server/ipc/codec.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include <capnp/message.h>
#include <fmt/format.h>

#include "protocol/wire/message_reader.hpp"
#include "server/ipc/messages.capnp.h"

namespace gpuwire::server::ipc {
namespace {

namespace schema = ipc_schema;
using Kind = schema::Message::Which;
using Builder = schema::Message::Builder;

// --- what is sent --------------------------------------------------------------------------------------------------

std::string cut(const std::string& text, size_t bytes_max = kTextBytesMax) { return text.substr(0, bytes_max); }
std::string cut_name(const std::string& name) { return cut(name, kNameBytesMax); }

capnp::Data::Reader as_data(const std::string& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}
// A longer one is none: half of it would mean something else.
capnp::Data::Reader entry_text(const std::string& text) {
  return text.size() <= kEntryTextBytesMax ? as_data(text) : capnp::Data::Reader();
}
template <size_t N>
capnp::Data::Reader as_data(const std::array<uint8_t, N>& bytes) {
  return {bytes.data(), bytes.size()};
}

class Writer {
 public:
  Writer(Builder root, std::vector<OwnedDescriptor*>& descriptors) : root_(root), descriptors_(descriptors) {}

  void operator()(Ready& said) { write(root_.initReady(), said.inventory); }
  void operator()(Failed& said) { root_.setFailed(cut(said.why)); }
  void operator()(Begun& said) { root_.setBegun(cut(said.client)); }
  void operator()(Ended& said) {
    auto out = root_.initEnded();
    out.setCause(uint8_t(said.cause));
    out.setWhy(cut(said.why));
  }
  void operator()(Note& said) { root_.setNote(cut(said.text)); }
  void operator()(Share& said) {
    auto out = root_.initShare();
    write_share(out, said);
    out.setDescriptor(place_of(said.descriptor));
  }
  void operator()(Claim& said) { write_share(root_.initClaim(), said); }
  void operator()(Withdraw& said) { root_.setWithdraw(as_data(said.token)); }
  void operator()(MemoryWanted& said) {
    auto out = root_.initMemoryWanted();
    out.setRequest(said.request);
    out.setColumn(said.column);
    out.setBytes(said.bytes);
    out.setAhead(said.ahead);
  }
  void operator()(Detached& said) {
    auto out = root_.initDetached();
    out.setGraceMs(said.grace_ms);
    out.setWhy(cut(said.why));
  }
  void operator()(Attached&) { root_.setAttached(); }
  void operator()(ResumeRefused& said) { root_.setResumeRefused(cut(said.why)); }

  void operator()(Serve& said) {
    auto out = root_.initServe();
    out.setWireId(as_data(said.wire_id));
    write(out.initSpec(), said.spec);
    out.setClient(place_of(said.descriptors.client));
    out.setSessionPage(place_of(said.descriptors.session_page));
    out.setDoorbell(place_of(said.descriptors.doorbell));
    out.setTenantPage(place_of(said.descriptors.tenant_page));
    out.setChunkMemory(place_of(said.descriptors.chunk_memory));
    out.setChunkDisk(place_of(said.descriptors.chunk_disk));
  }
  void operator()(Stop& said) { root_.setStop(cut(said.why)); }
  void operator()(Warn& said) { root_.setWarn(cut(said.text)); }
  void operator()(Answer& said) {
    auto out = root_.initAnswer();
    out.setRequest(said.request);
    out.setYes(said.yes);
    out.setDescriptor(place_of(said.descriptor));
  }
  void operator()(Attach& said) {
    auto out = root_.initAttach();
    out.setSocket(place_of(said.socket));
    out.setTlsKey(as_data(said.tls_key));
  }
  void operator()(Adopted&) { root_.setAdopted(); }
  void operator()(Unattended&) { root_.setUnattended(); }

  void operator()(Identity& said) {
    auto out = root_.initIdentity();
    out.setAuthority(place_of(said.authority));
    out.setServerCertificate(place_of(said.server_certificate));
    out.setServerKey(place_of(said.server_key));
    out.setCredentials(place_of(said.credentials));
  }
  void operator()(Arrival& said) {
    auto out = root_.initArrival();
    out.setConnection(said.connection);
    out.setSocket(place_of(said.socket));
    out.setPeer(cut_name(said.peer));
    out.setAddress(cut_name(said.address));
    out.setTls(said.tls);
    out.setUnixTenant(cut_name(said.unix_tenant));
    out.setOpenTenant(cut_name(said.open_tenant));
    out.setManagement(said.management);
    out.setRdma(said.rdma);
  }
  void operator()(Queued& said) {
    auto out = root_.initQueued();
    out.setConnection(said.connection);
    out.setPlace(said.place);
    out.setWaiting(said.waiting);
    out.setWhy(cut(said.why));
    out.setTicket(as_data(said.ticket));
  }
  void operator()(Admitted& said) { root_.setAdmitted(said.connection); }
  void operator()(Refused& said) { write(root_.initRefused(), said.connection, said.why); }

  void operator()(IdentityRead& said) { root_.setIdentityRead(cut(said.error)); }
  void operator()(Login& said) {
    auto out = root_.initLogin();
    out.setConnection(said.connection);
    out.setTenant(cut_name(said.tenant));
    out.setSecurity(cut_name(said.security));
    out.setCredential(cut_name(said.credential));
    out.setGpus(said.gpus);
    out.setMemoryBytes(said.memory_bytes);
    out.setProgram(cut_name(said.program));
    out.setHost(cut_name(said.host));
    out.setProcessId(said.process_id);
    out.setPeer(cut_name(said.peer));
    out.setManagement(said.management);
    out.setResume(as_data(said.resume));
    out.setTicket(as_data(said.ticket));
    out.setQuery(cut_name(said.query));
  }
  void operator()(Told& said) {
    auto out = root_.initTold();
    out.setConnection(said.connection);
    out.setText(cut(said.text, kToldBytesMax));
    out.setLast(said.last);
  }
  void operator()(Gone& said) { write(root_.initGone(), said.connection, said.why); }
  void operator()(Passed& said) {
    auto out = root_.initPassed();
    out.setConnection(said.connection);
    out.setSocket(place_of(said.socket));
    out.setTlsKey(as_data(said.tls_key));
  }
  void operator()(TurnedAway& said) {
    auto out = root_.initTurnedAway();
    out.setPeer(cut_name(said.peer));
    out.setKind(cut_name(said.kind));
    out.setReason(cut(said.reason));
    out.setTenant(cut_name(said.tenant));
    out.setCredential(cut_name(said.credential));
    out.setUntold(said.untold);
  }

  void operator()(Hello& said) {
    auto out = root_.initHello();
    out.setVersion(said.version);
    out.setKey(as_data(said.key));
  }
  void operator()(Grace& said) { root_.setGrace(said.ms); }
  void operator()(Put& said) { write(root_.initPut(), said.entry); }
  void operator()(Rewrite& said) {
    auto out = root_.initRewrite();
    out.setName(cut(said.name, kEntryNameBytesMax));
    out.setText(entry_text(said.text));
  }
  void operator()(Remove& said) { root_.setRemove(cut(said.name, kEntryNameBytesMax)); }
  void operator()(Give&) { root_.setGive(); }
  void operator()(Entry& said) { write(root_.initEntry(), said.entry); }
  void operator()(Given& said) { root_.setGiven(said.count); }

 private:
  uint8_t place_of(OwnedDescriptor& descriptor) {
    if (!descriptor) return 0;
    descriptors_.push_back(&descriptor);
    return uint8_t(descriptors_.size());
  }

  template <class Said>
  void write_share(schema::Share::Builder out, const Said& said) {
    out.setRequest(said.request);
    out.setToken(as_data(said.token));
    out.setKind(said.kind);
    out.setUser(cut_name(said.user));
  }
  void write(schema::ConnectionText::Builder out, ConnectionId connection, const std::string& text) {
    out.setConnection(connection);
    out.setText(cut(text));
  }
  void write(schema::Inventory::Builder out, const Inventory& inventory) {
    out.setSummary(cut_name(inventory.summary));
    auto devices = out.initDevices(unsigned(std::min(inventory.devices.size(), kDevicesMax)));
    for (unsigned i = 0; i < devices.size(); ++i) {
      devices[i].setName(cut(inventory.devices[i].name, kDeviceNameBytesMax));
      devices[i].setUuid(cut(inventory.devices[i].uuid, kDeviceNameBytesMax));
      devices[i].setBytes(inventory.devices[i].bytes);
      devices[i].setTakenBytes(inventory.devices[i].taken_bytes);
    }
  }
  void write(schema::SessionSpec::Builder out, const SessionSpec& spec) {
    out.setNumber(spec.number);
    out.setPeer(cut_name(spec.peer));
    out.setTenant(cut_name(spec.tenant));
    auto devices = out.initDevices(unsigned(std::min(spec.devices.size(), kDevicesMax)));
    for (unsigned i = 0; i < devices.size(); ++i) {
      devices[i].setIndex(spec.devices[i].index);
      devices[i].setLimitBytes(spec.devices[i].limit_bytes);
    }
    out.setTlsKey(as_data(spec.tls_key));
    out.setHostMemoryBytes(spec.host_memory_bytes);
    out.setLedgerSlot(spec.ledger_slot);
    out.setIdentified(spec.identified);
    out.setResumeGraceMs(spec.resume_grace_ms);
    out.setHangUpGraceMs(spec.hang_up_grace_ms);
    out.setLanesMax(spec.lanes_max);
    out.setChunksCharged(spec.chunks_charged);
  }
  void write(schema::Entry::Builder out, KeptEntry& entry) {
    out.setSession(entry.session);
    out.setAwaited(entry.awaited);
    out.setName(cut(entry.name, kEntryNameBytesMax));
    out.setText(entry_text(entry.text));
    auto places = out.initDescriptors(unsigned(std::min(entry.descriptors.size(), kDescriptorsMax)));
    for (unsigned i = 0; i < places.size(); ++i) places.set(i, place_of(entry.descriptors[i]));
  }

  Builder root_;
  std::vector<OwnedDescriptor*>& descriptors_;
};

// --- what comes ----------------------------------------------------------------------------------------------------

// A message that cannot be; thrown and caught in this file alone.
struct Impossible {
  std::string what;
};

// Whose it is to say.
bool may_say(Speaker speaker, Kind kind) {
  switch (speaker) {
    case Speaker::worker: return kind <= schema::Message::RESUME_REFUSED;
    // To all three of the others; none of them mistakes what is for another, since each has a channel of its own.
    case Speaker::broker:
      return (kind >= schema::Message::SERVE && kind <= schema::Message::REFUSED) ||
             (kind >= schema::Message::HELLO && kind <= schema::Message::GIVE) || kind == schema::Message::TOLD;
    case Speaker::auth_server: return kind >= schema::Message::IDENTITY_READ && kind <= schema::Message::TURNED_AWAY;
    case Speaker::keeper: return kind == schema::Message::ENTRY || kind == schema::Message::GIVEN;
  }
  return false;
}

std::string text(capnp::Text::Reader from, size_t bytes_max = kTextBytesMax) {
  if (from.size() > bytes_max) throw Impossible{fmt::format("a text of {} bytes", from.size())};
  return {from.begin(), from.size()};
}
std::string name(capnp::Text::Reader from) { return text(from, kNameBytesMax); }

// So many bytes, or none.
std::string bytes_or_none(capnp::Data::Reader from, size_t bytes, const char* what) {
  if (from.size() != 0 && from.size() != bytes) throw Impossible{fmt::format("{} of {} bytes", what, from.size())};
  return {from.asChars().begin(), from.size()};
}
std::array<uint8_t, 16> sixteen(capnp::Data::Reader from, const char* what) {
  std::array<uint8_t, 16> bytes;
  if (from.size() != bytes.size()) throw Impossible{fmt::format("{} of {} bytes", what, from.size())};
  std::copy(from.begin(), from.end(), bytes.begin());
  return bytes;
}

class Reader {
 public:
  explicit Reader(std::vector<OwnedDescriptor> descriptors) : descriptors_(std::move(descriptors)) {}

  Message read(schema::Message::Reader from) {
    switch (from.which()) {
      case schema::Message::READY: return Ready{inventory(from.getReady())};
      case schema::Message::FAILED: return Failed{text(from.getFailed())};
      case schema::Message::BEGUN: return Begun{text(from.getBegun())};
      case schema::Message::ENDED: return Ended{cause(from.getEnded().getCause()), text(from.getEnded().getWhy())};
      case schema::Message::NOTE: return Note{text(from.getNote())};
      case schema::Message::SHARE: {
        auto share = from.getShare();
        return Share{share.getRequest(), token(share.getToken()), share.getKind(), name(share.getUser()),
                     descriptor(share.getDescriptor())};
      }
      case schema::Message::CLAIM: {
        auto claim = from.getClaim();
        return Claim{claim.getRequest(), token(claim.getToken()), claim.getKind(), name(claim.getUser())};
      }
      case schema::Message::WITHDRAW: return Withdraw{token(from.getWithdraw())};
      case schema::Message::MEMORY_WANTED: {
        auto wanted = from.getMemoryWanted();
        return MemoryWanted{wanted.getRequest(), wanted.getColumn(), wanted.getBytes(), wanted.getAhead()};
      }
      case schema::Message::DETACHED:
        return Detached{from.getDetached().getGraceMs(), text(from.getDetached().getWhy())};
      case schema::Message::ATTACHED: return Attached{};
      case schema::Message::RESUME_REFUSED: return ResumeRefused{text(from.getResumeRefused())};
      case schema::Message::SERVE: return serve(from.getServe());
      case schema::Message::STOP: return Stop{text(from.getStop())};
      case schema::Message::WARN: return Warn{text(from.getWarn())};
      case schema::Message::ANSWER: {
        auto answer = from.getAnswer();
        return Answer{answer.getRequest(), answer.getYes(), descriptor(answer.getDescriptor())};
      }
      case schema::Message::ATTACH:
        return Attach{descriptor(from.getAttach().getSocket()), tls_key(from.getAttach().getTlsKey())};
      case schema::Message::ADOPTED: return Adopted{};
      case schema::Message::UNATTENDED: return Unattended{};
      case schema::Message::IDENTITY: {
        auto identity = from.getIdentity();
        return Identity{descriptor(identity.getAuthority()), descriptor(identity.getServerCertificate()),
                        descriptor(identity.getServerKey()), descriptor(identity.getCredentials())};
      }
      case schema::Message::ARRIVAL: return arrival(from.getArrival());
      case schema::Message::QUEUED: {
        auto queued = from.getQueued();
        return Queued{queued.getConnection(), queued.getPlace(), queued.getWaiting(), text(queued.getWhy()),
                      ticket(queued.getTicket())};
      }
      case schema::Message::ADMITTED: return Admitted{from.getAdmitted()};
      case schema::Message::REFUSED:
        return Refused{from.getRefused().getConnection(), text(from.getRefused().getText())};
      case schema::Message::IDENTITY_READ: return IdentityRead{text(from.getIdentityRead())};
      case schema::Message::LOGIN: return login(from.getLogin());
      case schema::Message::GONE: return Gone{from.getGone().getConnection(), text(from.getGone().getText())};
      case schema::Message::PASSED: {
        auto passed = from.getPassed();
        return Passed{passed.getConnection(), descriptor(passed.getSocket()), tls_key(passed.getTlsKey())};
      }
      case schema::Message::TURNED_AWAY: {
        auto away = from.getTurnedAway();
        return TurnedAway{name(away.getPeer()),   name(away.getKind()),       text(away.getReason()),
                          name(away.getTenant()), name(away.getCredential()), away.getUntold()};
      }
      case schema::Message::HELLO:
        return Hello{from.getHello().getVersion(), bytes_or_none(from.getHello().getKey(), kKeeperKeyBytes, "a key")};
      case schema::Message::GRACE: return Grace{from.getGrace()};
      case schema::Message::PUT: return Put{entry(from.getPut())};
      case schema::Message::REWRITE:
        return Rewrite{text(from.getRewrite().getName(), kEntryNameBytesMax), entry_text(from.getRewrite().getText())};
      case schema::Message::TOLD: {
        auto told = from.getTold();
        return Told{told.getConnection(), text(told.getText(), kToldBytesMax), told.getLast()};
      }
      case schema::Message::REMOVE: return Remove{text(from.getRemove(), kEntryNameBytesMax)};
      case schema::Message::GIVE: return Give{};
      case schema::Message::ENTRY: return Entry{entry(from.getEntry())};
      case schema::Message::GIVEN: return Given{from.getGiven()};
    }
    throw Impossible{fmt::format("a message of kind {}", unsigned(from.which()))};
  }

 private:
  // Empty when it did not come: who has no descriptors left gets messages without them.
  OwnedDescriptor descriptor(uint8_t place) {
    if (place == 0 || place > descriptors_.size()) return {};
    return std::move(descriptors_[place - 1u]);
  }

  static ShareToken token(capnp::Data::Reader from) { return sixteen(from, "a token"); }
  static std::string tls_key(capnp::Data::Reader from) { return bytes_or_none(from, kTlsKeyBytes, "a TLS key"); }
  static std::string ticket(capnp::Data::Reader from) { return bytes_or_none(from, kWireIdBytes, "a ticket"); }
  static std::string entry_text(capnp::Data::Reader from) {
    if (from.size() > kEntryTextBytesMax) throw Impossible{fmt::format("an entry of {} bytes", from.size())};
    return {from.asChars().begin(), from.size()};
  }
  static EndCause cause(uint8_t number) {
    if (number >= kEndCauses) throw Impossible{fmt::format("an end of cause {}", number)};
    return EndCause(number);
  }
  template <class List>
  static void check_devices(const List& devices) {
    if (devices.size() > kDevicesMax) throw Impossible{fmt::format("{} devices", devices.size())};
  }

  static Inventory inventory(schema::Inventory::Reader from) {
    Inventory inventory{.summary = name(from.getSummary()), .devices = {}};
    check_devices(from.getDevices());
    for (auto device : from.getDevices())
      inventory.devices.push_back({.index = scheduler::DeviceIndex(inventory.devices.size()),
                                   .bytes = device.getBytes(),
                                   .taken_bytes = device.getTakenBytes(),
                                   .name = text(device.getName(), kDeviceNameBytesMax),
                                   .uuid = text(device.getUuid(), kDeviceNameBytesMax)});
    return inventory;
  }
  Serve serve(schema::Serve::Reader from) {
    Serve serve{sixteen(from.getWireId(), "an identity"), spec(from.getSpec()), {}};
    serve.descriptors.client = descriptor(from.getClient());
    serve.descriptors.session_page = descriptor(from.getSessionPage());
    serve.descriptors.doorbell = descriptor(from.getDoorbell());
    serve.descriptors.tenant_page = descriptor(from.getTenantPage());
    serve.descriptors.chunk_memory = descriptor(from.getChunkMemory());
    serve.descriptors.chunk_disk = descriptor(from.getChunkDisk());
    return serve;
  }
  static SessionSpec spec(schema::SessionSpec::Reader from) {
    SessionSpec spec{.number = from.getNumber(),
                     .peer = name(from.getPeer()),
                     .tenant = name(from.getTenant()),
                     .identified = from.getIdentified(),
                     .devices = {},
                     .tls_key = tls_key(from.getTlsKey()),
                     .host_memory_bytes = from.getHostMemoryBytes(),
                     .resume_grace_ms = from.getResumeGraceMs(),
                     .hang_up_grace_ms = from.getHangUpGraceMs(),
                     .lanes_max = from.getLanesMax(),
                     .chunks_charged = from.getChunksCharged(),
                     .ledger_slot = from.getLedgerSlot()};
    check_devices(from.getDevices());
    for (auto device : from.getDevices()) spec.devices.push_back({device.getIndex(), device.getLimitBytes()});
    return spec;
  }
  Arrival arrival(schema::Arrival::Reader from) {
    return {.connection = from.getConnection(),
            .socket = descriptor(from.getSocket()),
            .peer = name(from.getPeer()),
            .address = name(from.getAddress()),
            .tls = from.getTls(),
            .unix_tenant = name(from.getUnixTenant()),
            .open_tenant = name(from.getOpenTenant()),
            .management = from.getManagement(),
            .rdma = from.getRdma()};
  }
  static Login login(schema::Login::Reader from) {
    return {.connection = from.getConnection(),
            .tenant = name(from.getTenant()),
            .security = name(from.getSecurity()),
            .credential = name(from.getCredential()),
            .gpus = from.getGpus(),
            .memory_bytes = from.getMemoryBytes(),
            .program = name(from.getProgram()),
            .host = name(from.getHost()),
            .process_id = from.getProcessId(),
            .peer = name(from.getPeer()),
            .management = from.getManagement(),
            .resume = bytes_or_none(from.getResume(), kWireIdBytes, "a session's identity"),
            .ticket = ticket(from.getTicket()),
            .query = name(from.getQuery())};
  }
  KeptEntry entry(schema::Entry::Reader from) {
    KeptEntry entry{.session = from.getSession(),
                    .awaited = from.getAwaited(),
                    .name = text(from.getName(), kEntryNameBytesMax),
                    .text = entry_text(from.getText()),
                    .descriptors = {}};
    if (from.getDescriptors().size() > kDescriptorsMax) throw Impossible{"too many descriptors"};
    for (uint8_t place : from.getDescriptors()) entry.descriptors.push_back(descriptor(place));
    return entry;
  }

  std::vector<OwnedDescriptor> descriptors_;
};

}  // namespace

Packet encode(Message& message) {
  Packet packet;
  // One segment: the bounds of its parts together stay below it.
  capnp::MallocMessageBuilder builder(kPacketBytesMax / sizeof(capnp::word), capnp::AllocationStrategy::FIXED_SIZE);
  Writer writer(builder.initRoot<schema::Message>(), packet.descriptors);
  std::visit(writer, message);
  auto segments = builder.getSegmentsForOutput();
  if (segments.size() != 1) std::abort();
  packet.words = kj::heapArray(segments[0]);
  return packet;
}

tl::expected<Message, std::string> decode(std::span<const std::byte> bytes, std::vector<OwnedDescriptor> descriptors,
                                          Speaker speaker) {
  if (bytes.empty() || bytes.size() > kPacketBytesMax || bytes.size() % sizeof(capnp::word) != 0)
    return tl::unexpected(fmt::format("what cannot be: {} bytes", bytes.size()));
  std::vector<capnp::word> words(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.data(), bytes.data(), bytes.size());
  std::optional<Message> message;
  std::string impossible;
  auto fault = wire::read_guarded([&] {
    try {
      wire::SegmentReader segment({words.data(), words.size()});
      auto root = segment.getRoot<schema::Message>();
      if (!may_say(speaker, root.which()))
        throw Impossible{fmt::format("a message of kind {}", unsigned(root.which()))};
      message = Reader(std::move(descriptors)).read(root);
    } catch (const Impossible& said) {
      impossible = said.what;
    }
  });
  ::explicit_bzero(words.data(), bytes.size());  // it may have held a key
  if (fault) impossible = *fault;
  if (!message) return tl::unexpected("what cannot be: " + impossible);
  return std::move(*message);
}

}  // namespace gpuwire::server::ipc
