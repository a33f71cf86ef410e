// All messages between the server's processes: messages.capnp in C++, which has the meaning of each message and field.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "server/base/owned_descriptor.hpp"
#include "server/ipc/end_cause.hpp"
#include "server/ipc/inventory.hpp"
#include "server/ipc/kept_entry.hpp"
#include "server/ipc/session_spec.hpp"

namespace gpuwire::server::ipc {

// Incremented with every change of the messages between a broker and a worker, or of their meaning: a broker may find
// workers of an older broker.
inline constexpr uint32_t kVersion = 5;
// The same for the messages between a broker and a keeper, which may be of another release.
inline constexpr uint32_t kKeeperVersion = 2;

// The number of a request, which the requesting process chooses: its answer has the same number.
using RequestId = uint64_t;
using ConnectionId = uint64_t;
using ShareToken = std::array<uint8_t, 16>;

// --- a worker, to the broker

struct Ready {
  Inventory inventory;
};
struct Failed {
  std::string why;
};
struct Begun {
  std::string client;
};
struct Ended {
  EndCause cause = EndCause::internal;
  std::string why;
};
struct Note {
  std::string text;
};
struct Share {
  RequestId request = 0;
  ShareToken token{};
  uint32_t kind = 0;
  std::string user;
  OwnedDescriptor descriptor;
};
struct Claim {
  RequestId request = 0;
  ShareToken token{};
  uint32_t kind = 0;
  std::string user;
};
struct Withdraw {
  ShareToken token{};
};
struct MemoryWanted {
  RequestId request = 0;
  uint32_t column = 0;
  uint64_t bytes = 0;
  bool ahead = false;
};
struct Detached {
  uint32_t grace_ms = 0;
  std::string why;
};
struct Attached {};
struct ResumeRefused {
  std::string why;
};

// --- the broker, to a worker

// The objects that come with a session; a part of the broker without an object leaves its field empty.
struct SessionDescriptors {
  OwnedDescriptor client, session_page, doorbell, tenant_page, chunk_memory, chunk_disk, user_page;
};
struct Serve {
  std::array<uint8_t, 16> wire_id{};
  SessionSpec spec;
  SessionDescriptors descriptors;
};
struct Stop {
  std::string why;
  StopKind kind = StopKind::ended;
};
struct Warn {
  std::string text;
};
struct Answer {
  RequestId request = 0;
  bool yes = false;
  OwnedDescriptor descriptor;
};
struct Attach {
  OwnedDescriptor socket;
  std::string tls_key;
};
struct Adopted {};
struct Unattended {};

// --- the broker, to the login process

struct Identity {
  OwnedDescriptor authority, server_certificate, server_key, credentials;
};
struct Arrival {
  ConnectionId connection = 0;
  OwnedDescriptor socket;
  std::string peer, address;
  bool tls = false;
  std::string unix_tenant, open_tenant;
  bool management = false;
  bool rdma = false;
  std::string unix_user = {};
};
struct Queued {
  ConnectionId connection = 0;
  uint32_t place = 0, waiting = 0;
  std::string why, ticket;
};
struct Admitted {
  ConnectionId connection = 0;
};
struct Refused {
  ConnectionId connection = 0;
  std::string why;
};

// --- the login process, to the broker

struct IdentityRead {
  std::string error;
};
struct Login {
  ConnectionId connection = 0;
  std::string tenant, security, credential;
  uint32_t gpus = 0;
  uint64_t memory_bytes = 0;
  std::string program, host;
  uint32_t process_id = 0;
  std::string peer;
  bool management = false;
  std::string resume, ticket;
  std::string query;
  std::string gpu_type;
  std::string user = {};
};
struct Gone {
  ConnectionId connection = 0;
  std::string why;
};
struct Passed {
  ConnectionId connection = 0;
  OwnedDescriptor socket;
  std::string tls_key;
};
// For the audit: `kind` is one of a few words (docs/monitoring.md).
struct TurnedAway {
  std::string peer, kind, reason, tenant, credential;
  uint32_t untold = 0;
};

// --- the broker and its keeper

struct Hello {
  uint32_t version = kKeeperVersion;
  std::string key;
};
struct Grace {
  uint32_t ms = 0;
};
struct Put {
  KeptEntry entry;
};
struct Rewrite {
  std::string name, text;
};
struct Remove {
  std::string name;
};
struct Give {};
struct Entry {
  KeptEntry entry;
};
struct Given {
  uint32_t count = 0;
};

// --- the broker, to the login process

struct Told {
  ConnectionId connection = 0;
  std::string text;
  bool last = false;
};

// --- suspension

// The outcome of a move. refused: nothing has changed, and the process runs on. no_room: the device has too little free
// memory; the contents stay with the host. lost: the process cannot run on. gone: it has ended.
enum class MoveResult : uint8_t { done, refused, no_room, lost, gone };
inline constexpr size_t kMoveResults = 5;

// The broker, to the suspender, and its answers.
struct Move {
  uint64_t order = 0;
  uint32_t process_id = 0;
  bool resume = false;
  OwnedDescriptor process;
};
struct SuspenderReady {
  std::string why;
};
struct Moved {
  uint64_t order = 0;
  MoveResult result = MoveResult::lost;
  std::string why;
};

// A worker, to the broker.
struct Quiet {
  std::string why;
};
struct ReturnWanted {};

// The broker, to a worker.
struct Quiesce {};
struct GoOn {};
struct MoveBlocks {
  bool back = false;
};

// A worker, to the broker. The result is never `gone`.
struct BlocksMoved {
  bool back = false;
  MoveResult result = MoveResult::lost;
  std::string why;
};

// In the order of the schema's union.
using Message = std::variant<Ready, Failed, Begun, Ended, Note, Share, Claim, Withdraw, MemoryWanted, Detached,
                             Attached, ResumeRefused, Serve, Stop, Warn, Answer, Attach, Adopted, Unattended, Identity,
                             Arrival, Queued, Admitted, Refused, IdentityRead, Login, Gone, Passed, TurnedAway, Hello,
                             Grace, Put, Rewrite, Remove, Give, Entry, Given, Told, Move, SuspenderReady, Moved, Quiet,
                             ReturnWanted, Quiesce, GoOn, MoveBlocks, BlocksMoved>;

// For std::visit: a function for each kind that counts, and [](auto&) {} for the others.
template <class... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Match(Cases...) -> Match<Cases...>;

}  // namespace gpuwire::server::ipc
