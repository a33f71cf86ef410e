// What the server tells unasked.
#pragma once

#include "client_stub/driver/session/session_part.hpp"
#include "client_stub/session/session.hpp"

namespace gpuwire::client {

class ServerSession;

// To one session. Runs on whichever thread reads the connection; takes only leaf locks.
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
  SessionParts& parts_;          // told when the session breaks off
  std::vector<std::byte> text_;  // the bulk of an output notice
};

}  // namespace gpuwire::client
