// File descriptors that stand for memory or a pool of the server. Natively they are the driver's; here each is an end
// of a socket pair with a message in it that nobody takes out: the token under which the server keeps the driver's own
// (protocol/api/session.toml, share_export). It can be passed on, inherited and duplicated like any descriptor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "client_stub/driver/state/call/caller.hpp"
#include "client_stub/driver/state/session/session_part.hpp"
#include "protocol/threads/mutex.hpp"
#include "protocol/transport/own_descriptor.hpp"

namespace gpuwire::client {

using ShareToken = std::array<uint8_t, 16>;

inline constexpr size_t kSharesMax = 1024;  // of one session, at a time; the server has the same bound

// All threads. The objects that this process has exported from one session, until the last copy of the descriptor is
// closed in every process.
class Shares final : public SessionPart {
 public:
  explicit Shares(SessionParts& parts) noexcept : SessionPart(parts) {}

  // Makes a descriptor for the program. exec closes descriptors of memory and not those of pools, as with the driver.
  // Returns -1 if there are no more descriptors, or kSharesMax exist.
  int give_out(const ShareToken& token, bool close_on_exec) noexcept;
  // Returns the token of a descriptor that this or another process has exported, or nothing for another descriptor.
  static std::optional<ShareToken> token_of(int descriptor) noexcept;
  // Makes the server forget shares that no process can import any more. Called where memory is made and released; costs
  // one poll(2), and nothing without exports.
  void sweep(const Caller& caller) noexcept;
  // Makes the server forget a share that no process can import.
  static void withdraw(const Caller& caller, const ShareToken& token) noexcept;

  void ended(SessionEnd) noexcept override {}      // the server has forgotten them; descriptors close with the process
  void after_fork_in_child() noexcept override {}  // the descriptors are the parent's, and inherited as natively

 private:
  struct Share {
    transport::OwnDescriptor own_end;
    ShareToken token;
  };
  Mutex mutex_;
  std::vector<Share> shares_ GUARDED_BY(mutex_);
};

}  // namespace gpuwire::client
