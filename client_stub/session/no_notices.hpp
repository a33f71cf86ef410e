// The receiver of notices for sessions to which the server sends none: management sessions, and sessions that only
// measure the connection.
#pragma once

#include <span>
#include <string_view>

#include "client_stub/session/session.hpp"

namespace gpuwire::client {

class NoNotices final : public NoticeHandler {
 public:
  void notice(wire::NoticeOrdinal, capnp::MessageReader&) override {}
  BulkSink bulk_for(wire::NoticeOrdinal, capnp::MessageReader&, size_t) override { return {}; }
  void bulk_stored(wire::NoticeOrdinal, capnp::MessageReader&, std::span<const std::byte>) override {}
  void ended(CUresult, std::string_view) override {}
};

}  // namespace gpuwire::client
