// A session with a scripted server, on every transport.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "client_stub/session/call.hpp"
#include "client_stub/session/connected_session.hpp"
#include "schema/session.capnp.h"
#include "test/client_stub/session/fake_server.hpp"
#include "test/protocol/transport/pairs.hpp"

namespace gpuwire::test {

// Records all notices; the test sets the sinks.
class RecordingHandler : public client::NoticeHandler {
 public:
  void notice(wire::NoticeOrdinal ordinal, capnp::MessageReader& message) override;
  client::BulkSink bulk_for(wire::NoticeOrdinal ordinal, capnp::MessageReader& message, size_t bulk_bytes) override;
  void bulk_stored(wire::NoticeOrdinal ordinal, capnp::MessageReader& message,
                   std::span<const std::byte> text) override;
  void ended(CUresult result, std::string_view reason) override;

  std::function<void(wire::NoticeOrdinal, capnp::MessageReader&)> on_notice;
  client::BulkSink sink;  // for copy_data
  std::vector<std::byte> text;
  std::atomic<int> notices{0}, stored{0}, ends{0};
  std::atomic<int> end_result{0};
  std::string end_reason;  // read it when `ends` is 1 or the session is gone
};

struct Fixture {
  Fixture(Ends ends, FakeServer::Serve serve);
  ~Fixture();
  RecordingHandler handler;
  std::unique_ptr<FakeServer> server;
  std::unique_ptr<client::Session> session;
  CUresult started = CUDA_ERROR_UNKNOWN;
  std::string error;
  client::Session& operator*() { return *session; }

  // Send a posted call, or a called one, that carries `number`.
  CUresult post(uint64_t number, const client::Bulk& bulk = {}, uint64_t* sequence = nullptr);
  CUresult call(uint64_t number, const client::Bulk& bulk = {}, const client::BulkSink& sink = {});
};

// Returns the number of a message of Fixture::post or call.
uint64_t number_in(FakeServer& server);

// Returns the stderr of a piece of code. The process must have no other thread that prints.
std::string stderr_of(const std::function<void()>& body);

template <class Body>
void on_every_transport(Body&& body) {
  for (const auto& kind : pair_kinds()) {
    SUBCASE(kind.name.c_str()) {
      INFO("transport: ", kind.name, ", seed ", test_seed());
      body(kind);
    }
  }
}

// Answers every called frame with success until the client closes.
void answer_all(FakeServer& server);

}  // namespace gpuwire::test
