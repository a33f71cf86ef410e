// The notices of a server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "client_stub/driver/state/session/session_part.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

class ServerSession;

// The notices of one session. Thread: the one that reads the connection. Lock: only leaf locks.
class Notices final : public NoticeHandler {
 public:
  Notices(ServerSession& session, SessionParts& parts) noexcept : session_(session), parts_(parts) {}

  void notice(wire::NoticeOrdinal ordinal, capnp::MessageReader& message) override;
  BulkSink bulk_for(wire::NoticeOrdinal ordinal, capnp::MessageReader& message, size_t bulk_bytes) override;
  void bulk_stored(wire::NoticeOrdinal ordinal, capnp::MessageReader& message,
                   std::span<const std::byte> text) override;
  void ended(CUresult result, std::string_view reason) override;
  std::chrono::nanoseconds upkeep(std::chrono::steady_clock::time_point now) noexcept override;

 private:
  ServerSession& session_;
  // Notified of the session's loss.
  SessionParts& parts_;
  // The notice's bulk has been stored or discarded. Throws if the copy is reported as successful without all of its
  // bytes.
  void copy_came(uint64_t sequence, uint64_t offset, bool last, bool well);

  // The bulk of an output notice.
  std::vector<std::byte> text_;
  // The stored bytes of the present copy_data notice.
  uint64_t copied_bytes_ = 0;
  // The received bytes of copies in several pieces, by frame.
  std::unordered_map<uint64_t, uint64_t> copied_;
};

}  // namespace gpuwire::client
