// What a broker writes down of a session, for the broker that comes after it. It is the truth about the session:
// nothing of it is asked of the worker.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <tl/expected.hpp>

#include "server/broker/session/session_registry.hpp"
#include "server/broker/session/share_table.hpp"
#include "server/ipc/inventory.hpp"

namespace gpuwire::server {

struct KeptSession {
  std::string build;         // of the broker that wrote it
  SessionRecord record;      // without what the configuration says (number of the tenant, class); places in the queue
                             // follow from the numbers and rounds
  unsigned gpus = 0;         // as its client has asked for
  uint64_t queue_round = 0;  // while it waits: of its tenant's turns
  std::vector<std::string> device_uuids;  // of record.devices
  StopOrder stop;                         // its reason not empty: it was told to end
  uint32_t resume_grace_ms = 0;
  // The parts' (SessionAttachments::note).
  uint32_t ledger_slot = 0;
  uint64_t host_before_bytes = 0;  // what its process had of this machine's memory before it had the session
  int64_t page_began_ns = 0;       // CLOCK_MONOTONIC, when its page was made
  uint32_t lanes = 0;              // that it may have, of its tenant's
};

// The layout of what a broker and a worker share: messages and pages. Who says another one cannot be carried on.
std::string kept_build();

std::string encode(const KeptSession& session);
// The error says what cannot be. Of another build everything else may be wrong, too.
tl::expected<KeptSession, std::string> decode_kept_session(const std::string& text);

// What a session's worker shares: one descriptor, under a token that its name says.
struct KeptShare {
  scheduler::SessionId session{};
  uint32_t kind = 0;
  std::string user;
};
std::string encode(const KeptShare& share);
tl::expected<KeptShare, std::string> decode_kept_share(const std::string& text);

// As the server's first worker told it, in its own words.
std::string encode_kept_inventory(const Inventory& inventory);
std::optional<Inventory> decode_kept_inventory(const std::string& text);

// Names of entries.
std::string kept_name(scheduler::SessionId session);
// Of one that waits in the queue.
std::string kept_place_name(scheduler::SessionId session);
bool is_place(const std::string& name);
// Of what servers count for longer than sessions last (server/control/kept_totals.hpp).
std::string kept_total_name(const std::string& of);
bool is_total(const std::string& name);
std::string kept_name(const ShareToken& token);
// Nothing: it is no share's.
std::optional<ShareToken> token_of(const std::string& name);
inline constexpr const char* kKeptInventory =
    "inventory";  // text: an Inventory, as the server's first worker told it when there were no sessions
inline constexpr const char* kKeptNumbers = "numbers";  // text: the last number of a session

}  // namespace gpuwire::server
