// KeptSession is a session's entry, which a broker stores for its successor. It is authoritative: the successor asks
// the worker for none of it.
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
  std::string build;  // of the broker that wrote it
  // without values of the configuration (number of the tenant, class); places in the queue follow from the numbers and
  // rounds
  SessionRecord record;
  unsigned gpus = 0;                      // the number that its client asked for
  uint64_t queue_round = 0;               // while queued: of its tenant's turns
  std::vector<std::string> device_uuids;  // of record.devices
  StopOrder stop;                         // its reason is not empty if the session was told to end
  uint32_t resume_grace_ms = 0;
  // The parts fill these fields (SessionAttachments::note).
  uint32_t ledger_slot = 0;
  uint64_t host_before_bytes = 0;  // host memory of its process before it had the session
  int64_t page_began_ns = 0;       // CLOCK_MONOTONIC, when its page was made
  uint32_t lanes = 0;              // the session's share of its tenant's lanes
  uint8_t suspension = 0;          // SuspensionPhase
  // CLOCK_MONOTONIC, when its memory was last back on the GPU, and the duration of that return; 0: it has not returned
  int64_t returned_ns = 0, return_took_ns = 0;
};

// Returns the layout of the messages and pages that a broker and a worker share. A session with another one cannot
// continue.
std::string kept_build();

std::string encode(const KeptSession& session);
// The error names the invalid field. With another build, every other field may be wrong, too.
tl::expected<KeptSession, std::string> decode_kept_session(const std::string& text);

// A descriptor that a session's worker shares; the entry's name has its token.
struct KeptShare {
  scheduler::SessionId session{};
  uint32_t kind = 0;
  std::string user;
};
std::string encode(const KeptShare& share);
tl::expected<KeptShare, std::string> decode_kept_share(const std::string& text);

// Encodes the inventory as the server's first worker sent it.
std::string encode_kept_inventory(const Inventory& inventory);
std::optional<Inventory> decode_kept_inventory(const std::string& text);

// Names of entries.
std::string kept_name(scheduler::SessionId session);
// The name of a waiting session's entry.
std::string kept_place_name(scheduler::SessionId session);
bool is_place(const std::string& name);
// The name of the entry of a total that outlives sessions (server/control/kept_totals.hpp).
std::string kept_total_name(const std::string& of);
bool is_total(const std::string& name);
std::string kept_name(const ShareToken& token);
// Returns the token; nothing: the entry is no share.
std::optional<ShareToken> token_of(const std::string& name);
inline constexpr const char* kKeptInventory =
    "inventory";  // its text: the Inventory of the server's first worker, from before the first session
inline constexpr const char* kKeptNumbers = "numbers";  // its text: the last number of a session

}  // namespace gpuwire::server
