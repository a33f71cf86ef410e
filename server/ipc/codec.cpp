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

// An invalid message; thrown and caught only in this file.
struct Impossible {
  std::string what;
};

// --- the kinds of fields -------------------------------------------------------------------------------------------
// Each kind has two functions. to_wire() gives the written form of a member, and from_wire() checks the received form
// and gives the member's value. `descriptors` are those of the packet.

struct Plain {
  template <class T>
  T to_wire(T value, auto&) const {
    return value;
  }
  template <class T>
  T from_wire(T value, auto&) const {
    return value;
  }
};
constexpr Plain kPlain;

// A longer text is cut.
struct TextOf {
  size_t bytes_max;
  std::string to_wire(const std::string& text, auto&) const { return text.substr(0, bytes_max); }
  std::string from_wire(capnp::Text::Reader from, auto&) const {
    if (from.size() > bytes_max) throw Impossible{fmt::format("a text of {} bytes", from.size())};
    return {from.begin(), from.size()};
  }
};
constexpr TextOf kText{kTextBytesMax}, kName{kNameBytesMax}, kToldText{kToldBytesMax}, kDeviceName{kDeviceNameBytesMax},
    kEntryName{kEntryNameBytesMax};

capnp::Data::Reader as_data(const auto& bytes) {
  return {reinterpret_cast<const kj::byte*>(bytes.data()), bytes.size()};
}

// This many bytes, or none.
struct BytesOrNone {
  size_t bytes;
  const char* what;
  capnp::Data::Reader to_wire(const std::string& value, auto&) const { return as_data(value); }
  std::string from_wire(capnp::Data::Reader from, auto&) const {
    if (from.size() != 0 && from.size() != bytes) throw Impossible{fmt::format("{} of {} bytes", what, from.size())};
    return {from.asChars().begin(), from.size()};
  }
};
constexpr BytesOrNone kTlsKey{kTlsKeyBytes, "a TLS key"}, kTicket{kWireIdBytes, "a ticket"},
    kResume{kWireIdBytes, "a session's identity"}, kKeeperKey{kKeeperKeyBytes, "a key"};

struct Sixteen {
  const char* what;
  capnp::Data::Reader to_wire(const std::array<uint8_t, 16>& bytes, auto&) const { return as_data(bytes); }
  std::array<uint8_t, 16> from_wire(capnp::Data::Reader from, auto&) const {
    std::array<uint8_t, 16> bytes;
    if (from.size() != bytes.size()) throw Impossible{fmt::format("{} of {} bytes", what, from.size())};
    std::copy(from.begin(), from.end(), bytes.begin());
    return bytes;
  }
};
constexpr Sixteen kToken{"a token"}, kWireId{"an identity"};

// A longer text becomes empty, because a part of it could have another meaning.
struct EntryText {
  capnp::Data::Reader to_wire(const std::string& text, auto&) const {
    return text.size() <= kEntryTextBytesMax ? as_data(text) : capnp::Data::Reader();
  }
  std::string from_wire(capnp::Data::Reader from, auto&) const {
    if (from.size() > kEntryTextBytesMax) throw Impossible{fmt::format("an entry of {} bytes", from.size())};
    return {from.asChars().begin(), from.size()};
  }
};
constexpr EntryText kEntryText;

template <class Enum>
struct OneOf {
  size_t count;
  const char* what;
  uint8_t to_wire(Enum value, auto&) const { return uint8_t(value); }
  Enum from_wire(uint8_t number, auto&) const {
    if (number >= count) throw Impossible{fmt::format("{} {}", what, number)};
    return Enum(number);
  }
};
constexpr OneOf<StopKind> kStopKind{kStopKinds, "a stop of kind"};
constexpr OneOf<EndCause> kEndCause{kEndCauses, "an end of cause"};
constexpr OneOf<MoveResult> kMoveResult{kMoveResults, "a move of result"};

// A descriptor is sent as its index among those of the packet, counted from 1. A missing descriptor is empty: a process
// without free descriptors receives messages without them.
struct Place {
  uint8_t to_wire(OwnedDescriptor& descriptor, std::vector<OwnedDescriptor*>& descriptors) const {
    if (!descriptor) return 0;
    descriptors.push_back(&descriptor);
    return uint8_t(descriptors.size());
  }
  OwnedDescriptor from_wire(uint8_t place, std::vector<OwnedDescriptor>& descriptors) const {
    if (place == 0 || place > descriptors.size()) return {};
    return std::move(descriptors[place - 1u]);
  }
};
constexpr Place kPlace;

// --- the two directions --------------------------------------------------------------------------------------------
// fields(io, value) describes a structure, and travel(io, message) a message's member of the union, both for either
// direction: `io` is an Out or an In at a structure of the schema.

template <class At>
struct Out {
  At at;
  std::vector<OwnedDescriptor*>& descriptors;

  template <class Structure>
  Out<Structure> inside(Structure structure) const {
    return {structure, descriptors};
  }
  void field(const auto& kind, auto& member, auto set, auto) { set(at, kind.to_wire(member, descriptors)); }
  void part(auto& member, auto init, auto) {
    auto io = inside(init(at));
    fields(io, member);
  }
  void nothing(auto set) { set(at); }
  void devices(auto& members, auto init, auto) {
    auto list = init(at, unsigned(std::min(members.size(), kDevicesMax)));
    for (unsigned i = 0; i < list.size(); ++i) {
      auto io = inside(list[i]);
      fields(io, members[i]);
    }
  }
  void places(std::vector<OwnedDescriptor>& members, auto init, auto) {
    auto list = init(at, unsigned(std::min(members.size(), kDescriptorsMax)));
    for (unsigned i = 0; i < list.size(); ++i) list.set(i, kPlace.to_wire(members[i], descriptors));
  }
};

template <class At>
struct In {
  At at;
  std::vector<OwnedDescriptor>& descriptors;

  template <class Structure>
  In<Structure> inside(Structure structure) const {
    return {structure, descriptors};
  }
  void field(const auto& kind, auto& member, auto, auto get) { member = kind.from_wire(get(at), descriptors); }
  void part(auto& member, auto, auto get) {
    auto io = inside(get(at));
    fields(io, member);
  }
  void nothing(auto) {}
  void devices(auto& members, auto, auto get) {
    const auto list = get(at);
    if (list.size() > kDevicesMax) throw Impossible{fmt::format("{} devices", list.size())};
    for (auto device : list) {
      auto io = inside(device);
      fields(io, members.emplace_back());
    }
  }
  void places(std::vector<OwnedDescriptor>& members, auto, auto get) {
    const auto list = get(at);
    if (list.size() > kDescriptorsMax) throw Impossible{"too many descriptors"};
    for (uint8_t place : list) members.push_back(kPlace.from_wire(place, descriptors));
  }
};

// `Name`: of the field in messages.capnp.
#define FIELD(kind, Name, member) \
  io.field(                       \
      kind, member, [](auto at, const auto& value) { at.set##Name(value); }, [](auto at) { return at.get##Name(); })
#define PART(Name, member) \
  io.part(                 \
      member, [](auto at) { return at.init##Name(); }, [](auto at) { return at.get##Name(); })
#define NOTHING(Name) io.nothing([](auto at) { at.set##Name(); })
#define LIST(of, Name, members) \
  io.of(                        \
      members, [](auto at, unsigned count) { return at.init##Name(count); }, [](auto at) { return at.get##Name(); })

// --- structures ----------------------------------------------------------------------------------------------------

void fields(auto& io, ServerDevice& device) {
  FIELD(kDeviceName, Name, device.name);
  FIELD(kDeviceName, Uuid, device.uuid);
  FIELD(kPlain, Bytes, device.bytes);
  FIELD(kPlain, TakenBytes, device.taken_bytes);
}
void fields(auto& io, Inventory& inventory) {
  FIELD(kName, Summary, inventory.summary);
  LIST(devices, Devices, inventory.devices);
}
void fields(auto& io, SessionSpec::Device& device) {
  FIELD(kPlain, Index, device.index);
  FIELD(kPlain, LimitBytes, device.limit_bytes);
}
void fields(auto& io, SessionSpec& spec) {
  FIELD(kPlain, Number, spec.number);
  FIELD(kName, Peer, spec.peer);
  FIELD(kName, Tenant, spec.tenant);
  LIST(devices, Devices, spec.devices);
  FIELD(kTlsKey, TlsKey, spec.tls_key);
  FIELD(kPlain, HostMemoryBytes, spec.host_memory_bytes);
  FIELD(kPlain, LedgerSlot, spec.ledger_slot);
  FIELD(kPlain, LedgerUser, spec.ledger_user);
  FIELD(kPlain, UserLimitBytes, spec.user_limit_bytes);
  FIELD(kPlain, Identified, spec.identified);
  FIELD(kPlain, ResumeGraceMs, spec.resume_grace_ms);
  FIELD(kPlain, HangUpGraceMs, spec.hang_up_grace_ms);
  FIELD(kPlain, LanesMax, spec.lanes_max);
  FIELD(kPlain, ChunksCharged, spec.chunks_charged);
  FIELD(kPlain, Evicts, spec.evicts);
}
void fields(auto& io, KeptEntry& entry) {
  FIELD(kPlain, Session, entry.session);
  FIELD(kPlain, Awaited, entry.awaited);
  FIELD(kEntryName, Name, entry.name);
  FIELD(kEntryText, Text, entry.text);
  LIST(places, Descriptors, entry.descriptors);
}
void fields(auto& io, Ended& ended) {
  FIELD(kEndCause, Cause, ended.cause);
  FIELD(kText, Why, ended.why);
}
void request_fields(auto& io, auto& request) {
  FIELD(kPlain, Request, request.request);
  FIELD(kToken, Token, request.token);
  FIELD(kPlain, Kind, request.kind);
  FIELD(kName, User, request.user);
}
void fields(auto& io, Share& share) {
  request_fields(io, share);
  FIELD(kPlace, Descriptor, share.descriptor);
}
void fields(auto& io, Claim& claim) { request_fields(io, claim); }
void fields(auto& io, MemoryWanted& wanted) {
  FIELD(kPlain, Request, wanted.request);
  FIELD(kPlain, Column, wanted.column);
  FIELD(kPlain, Bytes, wanted.bytes);
  FIELD(kPlain, Ahead, wanted.ahead);
}
void fields(auto& io, Detached& detached) {
  FIELD(kPlain, GraceMs, detached.grace_ms);
  FIELD(kText, Why, detached.why);
}
void fields(auto& io, Serve& serve) {
  FIELD(kWireId, WireId, serve.wire_id);
  PART(Spec, serve.spec);
  FIELD(kPlace, Client, serve.descriptors.client);
  FIELD(kPlace, SessionPage, serve.descriptors.session_page);
  FIELD(kPlace, Doorbell, serve.descriptors.doorbell);
  FIELD(kPlace, TenantPage, serve.descriptors.tenant_page);
  FIELD(kPlace, ChunkMemory, serve.descriptors.chunk_memory);
  FIELD(kPlace, ChunkDisk, serve.descriptors.chunk_disk);
  FIELD(kPlace, UserPage, serve.descriptors.user_page);
}
void fields(auto& io, Stop& stop) {
  FIELD(kText, Why, stop.why);
  FIELD(kStopKind, Kind, stop.kind);
}
void fields(auto& io, Answer& answer) {
  FIELD(kPlain, Request, answer.request);
  FIELD(kPlain, Yes, answer.yes);
  FIELD(kPlace, Descriptor, answer.descriptor);
}
void fields(auto& io, Attach& attach) {
  FIELD(kPlace, Socket, attach.socket);
  FIELD(kTlsKey, TlsKey, attach.tls_key);
}
void fields(auto& io, Identity& identity) {
  FIELD(kPlace, Authority, identity.authority);
  FIELD(kPlace, ServerCertificate, identity.server_certificate);
  FIELD(kPlace, ServerKey, identity.server_key);
  FIELD(kPlace, Credentials, identity.credentials);
}
void fields(auto& io, Arrival& arrival) {
  FIELD(kPlain, Connection, arrival.connection);
  FIELD(kPlace, Socket, arrival.socket);
  FIELD(kName, Peer, arrival.peer);
  FIELD(kName, Address, arrival.address);
  FIELD(kPlain, Tls, arrival.tls);
  FIELD(kName, UnixTenant, arrival.unix_tenant);
  FIELD(kName, OpenTenant, arrival.open_tenant);
  FIELD(kPlain, Management, arrival.management);
  FIELD(kPlain, Rdma, arrival.rdma);
  FIELD(kName, UnixUser, arrival.unix_user);
}
void fields(auto& io, Queued& queued) {
  FIELD(kPlain, Connection, queued.connection);
  FIELD(kPlain, Place, queued.place);
  FIELD(kPlain, Waiting, queued.waiting);
  FIELD(kText, Why, queued.why);
  FIELD(kTicket, Ticket, queued.ticket);
}
void reason_fields(auto& io, auto& ended) {
  FIELD(kPlain, Connection, ended.connection);
  FIELD(kText, Text, ended.why);
}
void fields(auto& io, Refused& refused) { reason_fields(io, refused); }
void fields(auto& io, Gone& gone) { reason_fields(io, gone); }
void fields(auto& io, Login& login) {
  FIELD(kPlain, Connection, login.connection);
  FIELD(kName, Tenant, login.tenant);
  FIELD(kName, Security, login.security);
  FIELD(kName, Credential, login.credential);
  FIELD(kPlain, Gpus, login.gpus);
  FIELD(kPlain, MemoryBytes, login.memory_bytes);
  FIELD(kName, Program, login.program);
  FIELD(kName, Host, login.host);
  FIELD(kPlain, ProcessId, login.process_id);
  FIELD(kName, Peer, login.peer);
  FIELD(kPlain, Management, login.management);
  FIELD(kResume, Resume, login.resume);
  FIELD(kTicket, Ticket, login.ticket);
  FIELD(kName, Query, login.query);
  FIELD(kName, GpuType, login.gpu_type);
  FIELD(kName, User, login.user);
}
void fields(auto& io, Told& told) {
  FIELD(kPlain, Connection, told.connection);
  FIELD(kToldText, Text, told.text);
  FIELD(kPlain, Last, told.last);
}
void fields(auto& io, Passed& passed) {
  FIELD(kPlain, Connection, passed.connection);
  FIELD(kPlace, Socket, passed.socket);
  FIELD(kTlsKey, TlsKey, passed.tls_key);
}
void fields(auto& io, TurnedAway& away) {
  FIELD(kName, Peer, away.peer);
  FIELD(kName, Kind, away.kind);
  FIELD(kText, Reason, away.reason);
  FIELD(kName, Tenant, away.tenant);
  FIELD(kName, Credential, away.credential);
  FIELD(kPlain, Untold, away.untold);
}
void fields(auto& io, Hello& hello) {
  FIELD(kPlain, Version, hello.version);
  FIELD(kKeeperKey, Key, hello.key);
}
void fields(auto& io, Move& move) {
  FIELD(kPlain, Order, move.order);
  FIELD(kPlain, ProcessId, move.process_id);
  FIELD(kPlain, Resume, move.resume);
  FIELD(kPlace, Process, move.process);
}
void fields(auto& io, Moved& moved) {
  FIELD(kPlain, Order, moved.order);
  FIELD(kMoveResult, Result, moved.result);
  FIELD(kText, Why, moved.why);
}
void fields(auto& io, BlocksMoved& moved) {
  FIELD(kPlain, Back, moved.back);
  FIELD(kMoveResult, Result, moved.result);
  FIELD(kText, Why, moved.why);
}
void fields(auto& io, Rewrite& rewrite) {
  FIELD(kEntryName, Name, rewrite.name);
  FIELD(kEntryText, Text, rewrite.text);
}

// --- messages: the member of the union for each
// --------------------------------------------------------------------------

void travel(auto& io, Ready& ready) { PART(Ready, ready.inventory); }
void travel(auto& io, Failed& failed) { FIELD(kText, Failed, failed.why); }
void travel(auto& io, Begun& begun) { FIELD(kText, Begun, begun.client); }
void travel(auto& io, Ended& ended) { PART(Ended, ended); }
void travel(auto& io, Note& note) { FIELD(kText, Note, note.text); }
void travel(auto& io, Share& share) { PART(Share, share); }
void travel(auto& io, Claim& claim) { PART(Claim, claim); }
void travel(auto& io, Withdraw& withdraw) { FIELD(kToken, Withdraw, withdraw.token); }
void travel(auto& io, MemoryWanted& wanted) { PART(MemoryWanted, wanted); }
void travel(auto& io, Detached& detached) { PART(Detached, detached); }
void travel(auto& io, Attached&) { NOTHING(Attached); }
void travel(auto& io, ResumeRefused& refused) { FIELD(kText, ResumeRefused, refused.why); }
void travel(auto& io, Serve& serve) { PART(Serve, serve); }
void travel(auto& io, Stop& stop) { PART(Stop, stop); }
void travel(auto& io, Warn& warn) { FIELD(kText, Warn, warn.text); }
void travel(auto& io, Answer& answer) { PART(Answer, answer); }
void travel(auto& io, Attach& attach) { PART(Attach, attach); }
void travel(auto& io, Adopted&) { NOTHING(Adopted); }
void travel(auto& io, Unattended&) { NOTHING(Unattended); }
void travel(auto& io, Identity& identity) { PART(Identity, identity); }
void travel(auto& io, Arrival& arrival) { PART(Arrival, arrival); }
void travel(auto& io, Queued& queued) { PART(Queued, queued); }
void travel(auto& io, Admitted& admitted) { FIELD(kPlain, Admitted, admitted.connection); }
void travel(auto& io, Refused& refused) { PART(Refused, refused); }
void travel(auto& io, IdentityRead& read) { FIELD(kText, IdentityRead, read.error); }
void travel(auto& io, Login& login) { PART(Login, login); }
void travel(auto& io, Gone& gone) { PART(Gone, gone); }
void travel(auto& io, Passed& passed) { PART(Passed, passed); }
void travel(auto& io, TurnedAway& away) { PART(TurnedAway, away); }
void travel(auto& io, Hello& hello) { PART(Hello, hello); }
void travel(auto& io, Grace& grace) { FIELD(kPlain, Grace, grace.ms); }
void travel(auto& io, Put& put) { PART(Put, put.entry); }
void travel(auto& io, Rewrite& rewrite) { PART(Rewrite, rewrite); }
void travel(auto& io, Remove& remove) { FIELD(kEntryName, Remove, remove.name); }
void travel(auto& io, Give&) { NOTHING(Give); }
void travel(auto& io, Entry& entry) { PART(Entry, entry.entry); }
void travel(auto& io, Given& given) { FIELD(kPlain, Given, given.count); }
void travel(auto& io, Told& told) { PART(Told, told); }
void travel(auto& io, Move& move) { PART(Move, move); }
void travel(auto& io, SuspenderReady& ready) { FIELD(kText, SuspenderReady, ready.why); }
void travel(auto& io, Moved& moved) { PART(Moved, moved); }
void travel(auto& io, Quiet& quiet) { FIELD(kText, Quiet, quiet.why); }
void travel(auto& io, ReturnWanted&) { NOTHING(ReturnWanted); }
void travel(auto& io, Quiesce&) { NOTHING(Quiesce); }
void travel(auto& io, GoOn&) { NOTHING(GoOn); }
void travel(auto& io, MoveBlocks& move) { FIELD(kPlain, MoveBlocks, move.back); }
void travel(auto& io, BlocksMoved& moved) { PART(BlocksMoved, moved); }

#undef FIELD
#undef PART
#undef NOTHING
#undef LIST

// --- incoming messages ---------------------------------------------------------------------------------------------

// The process that may send the message.
bool may_send(Speaker speaker, Kind kind) {
  switch (speaker) {
    case Speaker::worker:
      return kind <= schema::Message::RESUME_REFUSED || kind == schema::Message::QUIET ||
             kind == schema::Message::RETURN_WANTED || kind == schema::Message::BLOCKS_MOVED;
    // For all other processes; each has its own channel, so none receives another's message.
    case Speaker::broker:
      return (kind >= schema::Message::SERVE && kind <= schema::Message::REFUSED) ||
             (kind >= schema::Message::HELLO && kind <= schema::Message::GIVE) || kind == schema::Message::TOLD ||
             kind == schema::Message::MOVE || kind == schema::Message::QUIESCE || kind == schema::Message::GO_ON ||
             kind == schema::Message::MOVE_BLOCKS;
    case Speaker::auth_server: return kind >= schema::Message::IDENTITY_READ && kind <= schema::Message::TURNED_AWAY;
    case Speaker::keeper: return kind == schema::Message::ENTRY || kind == schema::Message::GIVEN;
    case Speaker::suspender: return kind == schema::Message::SUSPENDER_READY || kind == schema::Message::MOVED;
  }
  return false;
}

// The alternatives of Message are in the order of the union.
static_assert(std::variant_size_v<Message> == size_t(schema::Message::BLOCKS_MOVED) + 1);

template <size_t... kIndexes>
std::optional<Message> read(In<schema::Message::Reader> io, std::index_sequence<kIndexes...>) {
  std::optional<Message> message;
  auto read_as = [&]<size_t kIndex>() {
    if (size_t(io.at.which()) == kIndex) travel(io, std::get<kIndex>(message.emplace(std::in_place_index<kIndex>)));
  };
  (read_as.template operator()<kIndexes>(), ...);
  if (auto* ready = message ? std::get_if<Ready>(&*message) : nullptr) {
    auto& devices = ready->inventory.devices;
    for (size_t i = 0; i < devices.size(); ++i) devices[i].index = scheduler::DeviceIndex(i);
  }
  return message;
}

}  // namespace

Packet encode(Message& message) {
  Packet packet;
  // The message has one segment: the limits of its parts together are below the segment's size.
  capnp::MallocMessageBuilder builder(kPacketBytesMax / sizeof(capnp::word), capnp::AllocationStrategy::FIXED_SIZE);
  Out<schema::Message::Builder> out{builder.initRoot<schema::Message>(), packet.descriptors};
  std::visit([&](auto& said) { travel(out, said); }, message);
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
  auto fault = wire::read_guarded_within_memory([&] {
    try {
      wire::SegmentReader segment({words.data(), words.size()});
      auto root = segment.getRoot<schema::Message>();
      if (!may_send(speaker, root.which()))
        throw Impossible{fmt::format("a message of kind {}", unsigned(root.which()))};
      message = read({root, descriptors}, std::make_index_sequence<std::variant_size_v<Message>>());
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
